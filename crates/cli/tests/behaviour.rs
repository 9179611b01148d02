// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a command run under debox exactly as it runs without?
//!
//! Against a broker of the tests' own, so no privileges are needed.

mod common;

use common::{Behaviour, DEBOX, FakeBroker, golden, masked, text};
use debox_abi::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn broker() -> FakeBroker {
    FakeBroker::start(Behaviour::default())
}

fn kill(pid: u32, signal: i32) {
    // SAFETY: no memory involved; the process is a child of ours, not reaped.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < until, "{what}: not within 10 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ")
        .next()
        .and_then(|s| s.chars().next())
        .unwrap_or('-')
}

/// Starts `sh -c script` under debox and waits for its first line.
fn start_script(
    broker: &FakeBroker,
    script: &str,
) -> (Child, BufReader<std::process::ChildStdout>, String) {
    let mut child = broker
        .debox(&["run", "-q", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    (child, out, line.trim_end().to_owned())
}

#[test]
fn a_broker_may_listen_under_a_name_without_a_file() {
    let broker = FakeBroker::start_named(&format!("@debox-cli-test-{}", std::process::id()));
    assert_eq!(
        broker
            .run(&["run", "--", "sh", "-c", "exit 3"])
            .status
            .code(),
        Some(3)
    );
    let name = broker.socket();
    let named = ["status", "--socket", name.to_str().unwrap()];
    let out = Command::new(DEBOX).args(named).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(
        text(&out.stdout).contains("1,234") || text(&out.stdout).contains("1 234"),
        "{}",
        text(&out.stdout)
    );
}

#[test]
fn exit_status_passes_through() {
    let broker = broker();
    for status in [0, 1, 7, 125, 126, 127, 128, 255] {
        let out = broker.run(&["run", "--", "sh", "-c", &format!("exit {status}")]);
        assert_eq!(out.status.code(), Some(status));
    }
}

#[test]
fn commands_that_cannot_run_say_why() {
    let broker = broker();
    let out = broker.run(&["run", "--", "no-such-command"]);
    assert_eq!(out.status.code(), Some(127));
    assert_eq!(
        text(&out.stderr),
        "debox: no-such-command: command not found\n"
    );
    let out = broker.run(&["run", "--", "/etc/passwd"]);
    assert_eq!(out.status.code(), Some(126));
    assert!(
        text(&out.stderr).contains("/etc/passwd: Permission denied"),
        "{}",
        text(&out.stderr)
    );
    let script = broker.directory().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let out = broker.run(&["run", "--", script.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(126));
    assert!(text(&out.stderr).contains("its interpreter does not exist"));
    assert!(!text(&out.stderr).contains("CALL"), "a report of nothing");
}

#[test]
fn a_script_without_interpreter_line_runs_in_sh() {
    let broker = broker();
    let script = broker.directory().join("script");
    std::fs::write(&script, "echo \"$1 and $2\"; exit 3\n").unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let out = broker.run(&["run", "--", script.to_str().unwrap(), "one", "two"]);
    assert_eq!(
        (text(&out.stdout).as_str(), out.status.code()),
        ("one and two\n", Some(3))
    );
}

#[test]
fn death_by_signal_passes_through_without_a_second_core() {
    let broker = broker();
    for signal in [
        libc::SIGTERM,
        libc::SIGKILL,
        libc::SIGSEGV,
        libc::SIGINT,
        libc::SIGPIPE,
        libc::SIGRTMIN() + 3,
    ] {
        let mut command = broker.debox(&["run", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        let out = command.current_dir(broker.directory()).output().unwrap();
        assert_eq!(out.status.signal(), Some(signal));
        assert!(!out.status.core_dumped());
        assert!(
            text(&out.stderr).contains("ended by signal"),
            "{}",
            text(&out.stderr)
        );
    }
}

#[test]
fn signals_sent_to_debox_reach_the_command() {
    let broker = broker();
    let script = "n=0; trap 'n=$((n+1)); echo got' USR1 USR2 TERM HUP INT QUIT ALRM; echo ready; \
                  while [ $n -lt 7 ]; do sleep 0.02; done; exit 42";
    let (mut child, mut out, ready) = start_script(&broker, script);
    assert_eq!(ready, "ready");
    for signal in [
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGALRM,
    ] {
        kill(child.id(), signal);
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, "got\n", "signal {signal}");
    }
    assert_eq!(child.wait().unwrap().code(), Some(42));
}

#[test]
fn what_the_terminal_sends_reaches_the_command_once() {
    // The kernel sends to the group itself; debox must not send it again.
    let broker = broker();
    let script = "trap 'n=$((n+1))' INT; n=0; echo $$; sleep 1000; sleep 0.3; echo $n";
    let mut child = Command::new("script")
        .args([
            "-qec",
            &format!(
                // exec: a shell in between would end by the signal itself
                "exec {DEBOX} run -q -o /dev/null -- sh -c \"{}\"",
                script.replace('$', "\\$")
            ),
            "/dev/null",
        ])
        .env("DEBOX_SOCKET", broker.socket())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script(1) of util-linux (bsdutils) is needed");
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut pid = String::new();
    out.read_line(&mut pid).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let mut keyboard = child.stdin.take().unwrap();
    keyboard.write_all(b"\x03").unwrap();
    keyboard.flush().unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest.trim().trim_start_matches("^C").trim(), "1", "{rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn stopping_and_continuing() {
    let broker = broker();
    let (mut child, _out, pid) = start_script(&broker, "echo $$; exec sleep 1000");
    let command: u32 = pid.parse().unwrap();
    kill(command, libc::SIGSTOP);
    wait_until("debox stops with its command", || state(child.id()) == 'T');
    // t: on its way into the execve, where debox traces it.
    assert!(matches!(state(command), 'T' | 't'));
    kill(child.id(), libc::SIGCONT);
    wait_until("the command continues with debox", || {
        state(command) == 'S' && state(child.id()) == 'S'
    });
    kill(child.id(), libc::SIGTERM);
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

/// Runs a shell script bare and under debox; `@` stands for the command prefix.
fn both(broker: &FakeBroker, script: &str) -> (String, String) {
    let run = |prefix: &str| {
        let mut command = Command::new("sh");
        command
            .args(["-c", &script.replace('@', prefix)])
            .env("DEBOX_SOCKET", broker.socket());
        let out = command.current_dir("/").output().unwrap();
        text(&out.stdout)
    };
    (run(""), run(&format!("{DEBOX} run -q -o /dev/null --")))
}

#[test]
fn the_command_sees_what_it_would_see_without_debox() {
    let broker = broker();
    for script in [
        "@ grep -E '^(Sig(Blk|Ign|Cgt|Pnd)|ShdPnd|Umask|Cap|NoNewPrivs|Seccomp|Groups|Uid)' /proc/self/status",
        "trap '' PIPE USR1 CHLD HUP INT QUIT TERM; @ grep ^SigIgn /proc/self/status",
        "umask 027; ulimit -n 50; ulimit -l 64; ulimit -c 0; @ cat /proc/self/limits",
        "ulimit -Sn 40; @ sh -c 'ulimit -Sn; ulimit -Hn'",
        "@ env | grep -v ^_=",
        "A=1; export A; B='x\ny' @ env -u _ | sort",
        "cd /tmp; @ pwd",
        "exec 5</etc/passwd 7>/dev/null; @ ls /proc/self/fd",
        "@ ls /proc/self/fd <&-",
        "@ ls /proc/self/fd 2>&-",
        "echo text from a pipe | @ cat",
        "@ sh -c 'cat; echo end' </dev/null",
        "@ sh -c 'echo $0 $#' a b c",
        "@ cat /proc/self/oom_score_adj /proc/self/comm /proc/self/timerslack_ns",
        "@ sh -c 'ps -o pgid= -p $$ | tr -d \" \" | grep -c .'",
        "yes | @ head -1; echo ${PIPESTATUS:-}",
    ] {
        let (bare, under) = both(&broker, script);
        assert_eq!(under, bare, "{script}");
        assert!(!bare.is_empty(), "{script} printed nothing");
    }
}

#[test]
fn the_command_is_a_direct_child_in_the_same_group_and_session() {
    let broker = broker();
    let (mut child, mut out, ids) = start_script(&broker, "cut -d' ' -f4,5,6 /proc/$$/stat; cat");
    let own = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let own: Vec<&str> = own.rsplit(") ").next().unwrap().split(' ').collect();
    assert_eq!(ids, format!("{} {} {}", child.id(), own[2], own[3]));
    kill(child.id(), libc::SIGTERM);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    child.wait().unwrap();
}

#[test]
fn a_pipe_ends_when_the_command_closes_it() {
    let broker = broker();
    // Descriptor 9 is a pipe to `cat`, which must see the end while the
    // command goes on; the same for standard output.
    let script = format!(
        "{{ {DEBOX} run -q -o /dev/null -- sh -c 'echo one >&9; exec 9>&- >&-; sleep 1000' 9>&1 >/dev/null & }} | cat; echo over; kill $!"
    );
    let mut child = Command::new("sh")
        .args(["-c", &script])
        .env("DEBOX_SOCKET", broker.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let group = child.id();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = String::new();
        for _ in 0..2 {
            out.read_line(&mut lines).unwrap();
        }
        sender.send(lines).unwrap();
    });
    let lines = receiver.recv_timeout(Duration::from_secs(10));
    // SAFETY: the group that was made above.
    unsafe { libc::kill(-(group as i32), libc::SIGKILL) };
    child.wait().unwrap();
    assert_eq!(lines.expect("cat saw no end of its input"), "one\nover\n");
}

#[test]
fn the_report_goes_where_it_was_asked_to_go() {
    let broker = broker();
    let out = broker.run(&["run", "--capture=boundary", "--", "echo", "hello"]);
    assert_eq!(text(&out.stdout), "hello\n");
    // Beside much else it takes a second.
    let said = masked(&text(&out.stderr)).replace("hello: # s;", "hello: # ms;");
    golden("run.txt", &said);

    let file = broker.directory().join("report");
    let out = broker.run(&[
        "run",
        "--capture=boundary",
        "-o",
        file.to_str().unwrap(),
        "--",
        "echo",
        "hello",
    ]);
    assert_eq!(
        (text(&out.stdout).as_str(), text(&out.stderr).as_str()),
        ("hello\n", "")
    );
    let written = std::fs::read_to_string(&file).unwrap();
    assert_eq!(
        masked(&written),
        std::fs::read_to_string("tests/golden/run.txt").unwrap()
    );

    let out = broker.run(&["run", "--capture=boundary", "-o", "-", "--", "true"]);
    assert!(text(&out.stdout).starts_with("true: "));

    let out = broker.run(&[
        "run",
        "--capture=boundary",
        "-q",
        "--top",
        "1",
        "--sort",
        "name",
        "--",
        "true",
    ]);
    golden("run_top.txt", &masked(&text(&out.stderr)));

    let out = broker.run(&["run", "--color", "always", "--", "true"]);
    assert!(text(&out.stderr).contains("\x1b[1m"));
}

#[test]
fn every_document_says_its_schema_first_and_goes_to_its_file() {
    let broker = broker();
    let place = |name: &str| broker.directory().join(name).to_str().unwrap().to_owned();
    let (run, again) = (place("run.json"), place("again.json"));
    for (command, arguments) in [
        ("run", &["--", "true"][..]),
        ("report", &[&run]),
        ("diff", &[&run, &again]),
        ("status", &[]),
        ("doctor", &[]),
    ] {
        let file = match command {
            "run" => run.clone(),
            "report" => again.clone(),
            _ => place(command),
        };
        let out = broker.run(&[&[command, "--json", "-o", &file], arguments].concat());
        assert_eq!(text(&out.stdout), "", "{command}: {}", text(&out.stderr));
        let written = std::fs::read_to_string(&file).expect(command);
        let document = match command {
            "run" => "report",
            command => command,
        };
        let words: Vec<&str> = written.split_whitespace().take(5).collect();
        let schema = format!("\"debox.{document}\",");
        let first = ["{", "\"schema\":", &schema, "\"schema_version\":", "1,"];
        assert_eq!(words, first, "{command}");
    }
}

#[test]
fn the_json_report_has_the_documented_fields() {
    let broker = broker();
    let out = broker.run(&[
        "run",
        "--capture=boundary",
        "--json",
        "-o",
        "-",
        "--",
        "sh",
        "-c",
        "exit 4",
    ]);
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["schema"], "debox.report");
    assert_eq!(report["schema_version"], 1);
    assert_eq!(report["run"]["exit"]["code"], 4);
    assert_eq!(report["run"]["command"][2], "exit 4");
    assert_eq!(report["totals"]["calls"], 21);
    assert_eq!(report["calls"][0]["name"], "read");
    assert_eq!(report["calls"][0]["cpu_ns"], 4_000_000);
    assert_eq!(report["blocking"][0]["line"], 321);
    let documentation = include_str!("../../../docs/json.md");
    let mut stack = vec![&report];
    while let Some(value) = stack.pop() {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    assert!(
                        documentation.contains(&format!("`{name}`"))
                            || documentation.contains(&format!("\"{name}\"")),
                        "docs/json.md does not tell {name}"
                    );
                    stack.push(value);
                }
            }
            serde_json::Value::Array(items) => stack.extend(items),
            _ => {}
        }
    }
}

#[test]
fn a_report_that_cannot_be_written_is_known_before_the_command_runs() {
    let broker = broker();
    let out = broker.run(&["run", "-o", "/no/such/directory/x", "--", "echo", "ran"]);
    assert_eq!(
        (text(&out.stdout).as_str(), out.status.code()),
        ("", Some(125))
    );
    assert!(text(&out.stderr).contains("/no/such/directory/x"));
    let out = broker.run(&["run", "-o", "/dev/full", "--", "sh", "-c", "exit 9"]);
    assert_eq!(
        out.status.code(),
        Some(9),
        "the command's status comes first"
    );
    assert!(
        text(&out.stderr).contains("No space left"),
        "{}",
        text(&out.stderr)
    );
}

#[test]
fn a_broker_that_refuses_is_quoted_and_the_command_does_not_run() {
    for kind in [DEBOX_MSG_ACCOUNT, DEBOX_MSG_JOIN] {
        let broker = FakeBroker::start(Behaviour {
            refuse: Some(kind),
            ..Default::default()
        });
        let out = broker.run(&["run", "--", "echo", "ran"]);
        assert_eq!(
            (text(&out.stdout).as_str(), out.status.code()),
            ("", Some(125))
        );
        assert!(
            text(&out.stderr).contains("this is forbidden here: ask the owner"),
            "{}",
            text(&out.stderr)
        );
    }
}

#[test]
fn brokers_that_break_the_protocol_are_found_out() {
    for (behaviour, word) in [
        (
            Behaviour {
                version: Some(9),
                ..Default::default()
            },
            "version 9",
        ),
        (
            Behaviour {
                no_fds: true,
                ..Default::default()
            },
            "descriptors",
        ),
    ] {
        let broker = FakeBroker::start(behaviour);
        let out = broker.run(&["run", "--", "true"]);
        assert_eq!(out.status.code(), Some(125));
        assert!(text(&out.stderr).contains(word), "{}", text(&out.stderr));
    }
}

/// Reading what is not there any more would end debox by SIGBUS.
#[test]
fn memory_that_can_become_shorter_is_not_mapped() {
    for file in 0..3 {
        for (behaviour, word) in [
            (
                Behaviour {
                    shrinks: Some(file),
                    ..Default::default()
                },
                "not sealed against shrinking",
            ),
            (
                Behaviour {
                    short: Some(file),
                    ..Default::default()
                },
                "are to be read",
            ),
        ] {
            let broker = FakeBroker::start(behaviour);
            let out = broker.run(&["run", "--", "true"]);
            assert_eq!(out.status.code(), Some(125), "{file}: {:?}", out.status);
            assert!(text(&out.stderr).contains(word), "{}", text(&out.stderr));
        }
    }
}

#[test]
fn a_dead_broker_is_told() {
    let broker = FakeBroker::start(Behaviour {
        dead: true,
        ..Default::default()
    });
    let out = broker.run(&["run", "--", "true"]);
    assert!(
        text(&out.stderr).contains("the broker ended during the run"),
        "{}",
        text(&out.stderr)
    );
}

#[test]
fn no_broker_means_advice() {
    let out = Command::new(DEBOX)
        .args(["run", "--socket", "/no/such/socket", "--", "echo", "ran"])
        .output()
        .unwrap();
    assert_eq!(
        (text(&out.stdout).as_str(), out.status.code()),
        ("", Some(125))
    );
    let said = text(&out.stderr);
    assert!(
        said.contains("/no/such/socket") && said.contains("systemctl start deboxd.socket"),
        "{said}"
    );
}

#[test]
fn follow_and_nofollow_are_asked_for() {
    let boundary = "--capture=boundary";
    for (arguments, flags, way) in [
        (&["run", "--", "true"][..], 0, DEBOX_REQ_SPLICE),
        (&["run", boundary, "--", "true"], 0, DEBOX_REQ_BOUNDARY),
        (
            &["run", "--no-follow", "--", "true"],
            DEBOX_REQ_NOFOLLOW,
            DEBOX_REQ_SPLICE,
        ),
    ] {
        let broker = broker();
        broker.run(arguments);
        let seen = broker.seen.lock().unwrap();
        assert!(
            seen.contains(&(
                DEBOX_MSG_ACCOUNT,
                0,
                way | DEBOX_REQ_DETAILS | DEBOX_REQ_ON_CPU
            )),
            "{arguments:?} {seen:?}"
        );
        assert!(seen.contains(&(DEBOX_MSG_JOIN, 0, flags)), "{seen:?}");
    }
}

/// For --capture=wrap, where what is tested is how it is passed on.
fn any_library() -> String {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .filter_map(|l| l.split_whitespace().nth(5))
        .find(|path| path.contains("libc.so") || path.contains("libc-"))
        .map(str::to_owned)
        .expect("the tests are linked to libc")
}

/// What a user does who wants to count for others: looks for collectors in the
/// temporary directory and in /proc/net/unix, then takes the way it is told, and
/// sends a sealed memory that holds 307 thousand million calls.
const STRANGER: &str = r#"
import fcntl, glob, os, socket, struct, sys
temporary, told = sys.argv[1:3]
page, stripe, rows, version, magic = map(int, sys.argv[3:])

def send(path):
    memory = os.memfd_create("counters", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, page + stripe)
    os.pwrite(memory, struct.pack("=4I", magic, version, os.getpid(), 0), 0)
    os.pwrite(memory, struct.pack("=II", 1, 1), page)
    os.pwrite(memory, struct.pack("=3Q", 1 << 63, 0, 307_200_000_001), page + rows)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        s.connect(path)
        s.sendmsg([struct.pack("=16I", 64, version, 1, stripe, *[0] * 12)],
                  [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", memory))])
    except OSError:
        return False
    return True

found = set()
for directory in glob.glob(temporary + "/debox-*"):
    for path in [directory + "/collect", *glob.glob(directory + "/*"), *glob.glob(directory + "/*/*")]:
        found.add(path)
for line in open("/proc/net/unix"):
    words = line.split()
    if len(words) > 7 and words[7].startswith(temporary):
        found.add(words[7])
print("found" if any(send(path) for path in found) else "nothing", told in found, flush=True)
send(told)
"#;

#[test]
fn ordinary_users_do_not_count_for_roots_run() {
    if !common::needs::root() {
        return;
    }
    let broker = broker();
    let report = broker.directory().join("report.json");
    // Others on the machine have collectors, too.
    let temporary = tempfile::tempdir().unwrap();
    std::fs::set_permissions(
        temporary.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o1777),
    )
    .unwrap();
    let mut child = broker
        .debox(&[
            "run",
            "--capture=wrap",
            "--json",
            "-o",
            report.to_str().unwrap(),
        ])
        .args(["--", "sh", "-c", "echo $DEBOX_COLLECT; read line"])
        .env("TMPDIR", temporary.path())
        .env("DEBOX_WRAP_LIBRARY", any_library())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut told)
        .unwrap();
    let sizes = [
        DEBOX_PAGE_SIZE,
        size_of::<debox_wrap_stripe>(),
        core::mem::offset_of!(debox_wrap_stripe, rows),
        DEBOX_PROTOCOL_VERSION as usize,
        DEBOX_COLLECT_MAGIC as usize,
    ]
    .map(|n| n.to_string());
    let stranger = Command::new("python3")
        .args(["-c", STRANGER])
        .arg(temporary.path())
        .arg(told.trim())
        .args(sizes)
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    assert_eq!(
        (text(&stranger.stdout).trim(), text(&stranger.stderr).trim()),
        ("nothing False", "")
    );
    drop(child.stdin.take());
    child.wait().unwrap();
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let said = report["notes"].to_string();
    assert!(
        said.contains("of user 65534 is not known to be the command's"),
        "{said}"
    );
    assert_eq!(report["calls"].as_array().unwrap().len(), 0, "{report}");
}

#[test]
fn wrap_sets_the_environment_and_says_when_nobody_came() {
    let broker = broker();
    let library = any_library();
    let out = broker
        .debox(&[
            "run",
            "--capture=wrap",
            "--",
            "sh",
            "-c",
            "echo \"$LD_PRELOAD|$DEBOX_SOCKET|$DEBOX_COLLECT\"; ls -ld ${DEBOX_COLLECT%/*}",
        ])
        .env("DEBOX_WRAP_LIBRARY", &library)
        .env("LD_PRELOAD", "")
        .output()
        .unwrap();
    let said = text(&out.stdout);
    let library = std::fs::canonicalize(library).unwrap();
    assert!(
        said.starts_with(&format!(
            "{}|{}|/",
            library.display(),
            broker.socket().display()
        )),
        "{said}"
    );
    assert!(said.contains("drwx--x--x"), "{said}");
    assert!(
        text(&out.stderr).contains("no process loaded the interposer"),
        "{}",
        text(&out.stderr)
    );
    let collect = said.lines().next().unwrap().rsplit('|').next().unwrap();
    assert!(
        !std::path::Path::new(collect).exists(),
        "the socket was left behind"
    );
    assert!(
        broker
            .seen
            .lock()
            .unwrap()
            .contains(&(DEBOX_MSG_ACCOUNT, 0, 0))
    );

    let out = broker
        .debox(&["run", "--capture=wrap", "--", "true"])
        .env("DEBOX_WRAP_LIBRARY", "/no/such.so")
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(125));
    assert!(
        text(&out.stderr).contains("/no/such.so"),
        "{}",
        text(&out.stderr)
    );
}

#[test]
fn attach_ends_by_time_by_interrupt_and_with_the_process() {
    let broker = broker();
    // Without the test's own output, which it would keep open if the test fails.
    let mut target = Command::new("sleep")
        .arg("1000")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = target.id().to_string();
    let out = broker.run(&["attach", "-p", &pid, "-d", "0.3"]);
    assert_eq!(out.status.code(), Some(0));
    assert!(broker.seen.lock().unwrap().contains(&(
        DEBOX_MSG_WATCH,
        target.id() as i32,
        DEBOX_REQ_DESCENDANTS
    )));
    let report = masked(&text(&out.stderr)).replace(&pid, "PID");
    // It may have been kept waiting for more than a second.
    let report = report.replace("(sleep 1000): # s;", "(sleep 1000): # ms;");
    golden(
        "attach.txt",
        &report
            .split_inclusive('\n')
            // What it hangs in (tests/why.rs) is seen with privileges alone.
            .filter(|l| !l.contains("PID  ") && !l.starts_with("  sleep (PID)"))
            .collect::<String>(),
    );
    assert!(report.contains("clock_nanosleep"), "{report}");

    let child = broker
        .debox(&["attach", "-p", &pid, "--json", "-o", "-"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    kill(child.id(), libc::SIGINT);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["run"]["kind"], "attach");
    assert_eq!(report["open_calls"][0]["call"], "clock_nanosleep");

    let child = broker
        .debox(&["attach", "-p", &pid, "-q"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    target.kill().unwrap();
    target.wait().unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0));
    // The report, and nothing of debox's own beside it.
    let said = text(&out.stderr);
    assert!(
        !said.contains("debox: ") && !said.contains("note: "),
        "{said}"
    );
    assert!(said.contains("Where it blocked"), "{said}");
}

#[test]
fn what_has_ended_and_waits_for_its_parent_is_not_attached_to() {
    let broker = broker();
    let mut child = Command::new("true").spawn().unwrap();
    let stat = format!("/proc/{}/stat", child.id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    let out = broker.run(&["attach", "-p", &child.id().to_string()]);
    assert_eq!(out.status.code(), Some(125));
    assert!(
        text(&out.stderr).contains("has ended"),
        "{}",
        text(&out.stderr)
    );
    child.wait().unwrap();
}

#[test]
fn attach_to_nothing_says_so() {
    let broker = broker();
    let out = broker.run(&["attach", "-p", "2147483646"]);
    assert_eq!(out.status.code(), Some(125));
    assert_eq!(text(&out.stderr), "debox: there is no process 2147483646\n");
}

#[test]
fn status_shows_the_brokers_counters() {
    let broker = broker();
    let out = broker.run(&["status"]);
    assert_eq!(out.status.code(), Some(0));
    let said = text(&out.stdout).replace(broker.socket().to_str().unwrap(), "SOCKET");
    // This process plays the broker.
    let (who, what): (Vec<&str>, Vec<&str>) = said
        .lines()
        .partition(|line| line.starts_with("runs as ") || line.starts_with("for "));
    let pid = std::process::id();
    assert!(who[0].ends_with(&format!(", process {pid}")), "{who:?}");
    assert_eq!(who.len(), 2);
    golden("status.txt", &(what.join("\n") + "\n"));
    let out = broker.run(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(status["broker_pid"], pid);
    assert_eq!(status["slots_used"], 1234);
}

#[test]
fn help_is_complete() {
    for (name, arguments) in [
        ("help.txt", &["--help"][..]),
        ("help_run.txt", &["run", "--help"]),
        ("help_run_all.txt", &["run", "--help-all"]),
        ("help_attach.txt", &["attach", "-h"]),
        ("help_report.txt", &["report", "--help"]),
        ("help_agent.txt", &["agent", "--help"]),
        ("help_serve.txt", &["serve", "--help"]),
        ("help_fleet.txt", &["fleet", "--help"]),
        ("help_fleet_top.txt", &["fleet", "top", "--help"]),
        ("help_diff.txt", &["diff", "--help"]),
        ("help_kern.txt", &["kern", "--help"]),
    ] {
        let out = Command::new(DEBOX)
            .args(arguments)
            .env("COLUMNS", "100")
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(0));
        golden(name, &text(&out.stdout));
    }
}
