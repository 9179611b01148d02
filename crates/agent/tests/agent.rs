// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox agent`: does whoever collects get what happened, in a form that is read, and no more
//! series than was said?

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[path = "../../../tests/fresh_start.rs"]
mod fresh_start;
#[path = "../../../tests/needs.rs"]
mod needs;
mod running;

use running::{Agent, READY, debox, run, sleeper, values, when_there};

#[test]
fn a_file_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.toml");
    let name = file.to_str().unwrap();
    let checked = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let output = debox(&["agent", "--check", "--config", name]);
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let (status, said) = checked("[[policy]]\nname = \"web\"\ncomm = [\"nginx\"]\n");
    assert_eq!(
        (status, said),
        (Some(0), format!("{name}: nothing is wrong\n"))
    );
    let (status, said) = checked("[[policy]]\nnobody = 1\n");
    assert_eq!(status, Some(125), "{said}");
    assert!(
        said.contains(&format!("{name}: line 2, column 1: ")),
        "{said}"
    );
    let (status, said) = checked("[[policy]]\nname = \"web\"\nuid = [\"no such user\"]\n");
    assert_eq!(status, Some(125), "{said}");
    let what = "line 3, column 8: there is no user \"no such user\" here";
    assert!(said.contains(&format!("{name}: {what}")), "{said}");
    let (status, said) = checked("[metrics]\nlisten = \"127.0.0.1\"\n");
    assert_eq!(status, Some(125), "{said}");
    assert!(
        said.contains("line 2, column 10: listen is HOST:PORT"),
        "{said}"
    );
    std::fs::remove_file(&file).unwrap();
    let output = debox(&["agent", "--check", "--config", name]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
}

#[test]
fn what_was_waited_for_is_collected() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dag-*\"]\n[flight]\ndirectory = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\nprograms = 2\n",
    );
    let (head, body) = agent.ask("/");
    assert!(
        head.starts_with("HTTP/1.1 200 ") && body.contains("/metrics"),
        "{head} {body}"
    );
    assert!(agent.ask("/other").0.starts_with("HTTP/1.1 404 "));
    let one = sleeper(agent.folder.path(), "dag-one");
    run(&one, "0.5");
    let first = agent.metrics();
    let slept =
        "debox_blocked_seconds_total{label=\"nanosleep\",call=\"clock_nanosleep\",class=\"idle\"}";
    let sleeps = "debox_sleeps_total{label=\"nanosleep\",call=\"clock_nanosleep\",class=\"idle\"}";
    let is = values(&first);
    assert!(is[slept] > 0.4 && is[slept] < 30.0, "{first}");
    assert_eq!(is[sleeps], 1.0, "{first}");
    let timer = is["debox_wait_root_seconds_total{root=\"timer\"}"];
    assert!(timer > 0.4 && timer <= is[slept] + 1e-6, "{first}");
    run(&one, "0.5");
    run(&sleeper(agent.folder.path(), "dag-two"), "0.5");
    // The third name of at most two.
    run(&sleeper(agent.folder.path(), "dag-three"), "0.5");
    agent.signal(libc::SIGHUP);
    agent.says("read again");
    let second = agent.metrics();
    let now = values(&second);
    assert_eq!(now[sleeps], 4.0, "{second}");
    for (series, value) in &is {
        let is_sum = series.contains("_total");
        assert!(!is_sum || now[series] >= *value, "{series}: {second}");
    }
    let blocked = |program: &str| {
        let mut of = now.iter().filter(|(series, _)| {
            series.starts_with("debox_thread_seconds_total")
                && series.contains(&format!("program=\"{program}\""))
                && (series.contains("state=\"blocked\"") || series.contains("state=\"resting\""))
        });
        of.next().map(|(_, value)| *value)
    };
    // As it was called before its exec it was nobody's.
    assert!(blocked("dag-one").is_some_and(|is| is > 0.9), "{second}");
    let others = [blocked("dag-two"), blocked("dag-three"), blocked("other")];
    assert_eq!(others.iter().flatten().count(), 2, "{second}");
    let text = second.trim_end();
    assert!(text.ends_with("# EOF"), "{second}");
    // What is wrong changes nothing.
    std::fs::write(agent.folder.path().join("agent.toml"), "[nothing]\n").unwrap();
    agent.signal(libc::SIGHUP);
    let line = agent.says("what was read before stays");
    assert!(line.contains("line 1, column 2"), "{line}");
    assert!(agent.metrics().contains(slept));
    assert_eq!(agent.end(), Some(0));
}

/// A Prometheus that collects from an agent.
struct Prometheus {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    fn start(agent: &Agent, features: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let target = agent.place.strip_prefix("http://").unwrap();
        let (target, _) = target.split_once('/').unwrap();
        let config = folder.path().join("prometheus.yml");
        let text = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs: [{{job_name: debox, static_configs: [{{targets: \
             ['{target}']}}]}}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--enable-feature={features}"))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self {
            process: process.unwrap(),
            port,
            _folder: folder,
        }
    }

    /// `data` of its answer, if there is one already.
    fn data(&self, path: &str) -> Option<serde_json::Value> {
        let mut text = String::new();
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        // Of HTTP 1.0: not in chunks.
        let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        stream.read_to_string(&mut text).ok()?;
        let (_, body) = text.split_once("\r\n\r\n")?;
        let answer: serde_json::Value = serde_json::from_str(body).ok()?;
        Some(answer["data"].clone())
    }

    fn asked(&self, what: &str, query: &str) -> Option<serde_json::Value> {
        let query: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        self.data(&format!("/api/v1/{what}query={query}"))
    }

    /// The one value of an expression.
    fn value(&self, expression: &str) -> Option<f64> {
        let data = self.asked("query?", expression)?;
        let found = data["result"].as_array()?;
        assert!(found.len() <= 1, "{expression}: {data}");
        found.first()?["value"][1].as_str()?.parse().ok()
    }

    /// Once an expression is that.
    fn waits_for(&self, expression: &str, value: f64) {
        let until = Instant::now() + READY;
        let mut is = None;
        while Instant::now() < until && is != Some(value) {
            std::thread::sleep(Duration::from_millis(300));
            is = self.value(expression);
        }
        let targets = self.data("/api/v1/targets");
        assert_eq!(is, Some(value), "{expression}: {targets:?}");
    }

    /// Each exemplar's labels and value, of all series of that name.
    fn exemplars(&self, series: &str) -> Vec<(serde_json::Value, f64)> {
        let path = "query_exemplars?start=0&end=9999999999&";
        let data = self.asked(path, series).unwrap();
        let of = data.as_array().unwrap().iter();
        let all = of.flat_map(|one| one["exemplars"].as_array().unwrap());
        all.map(|exemplar| {
            let value = exemplar["value"].as_str().unwrap().parse().unwrap();
            (exemplar["labels"].clone(), value)
        })
        .collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn prometheus_there() -> bool {
    let there = Command::new("prometheus").arg("--version").output().is_ok();
    if !there {
        needs::not_run("no prometheus is installed");
    }
    there
}

/// Its own parsers are the judges, and what it makes of the figures is what was slept.
#[test]
fn prometheus_reads_it() {
    if !needs::bpf() || !prometheus_there() {
        return;
    }
    // None of the sleeps goes over a period's end.
    let mut agent = Agent::start(&recorded("dbp-*", "period = \"1h\"\n"));
    let native = Prometheus::start(&agent, "native-histograms,exemplar-storage");
    let classic = Prometheus::start(&agent, "exemplar-storage");
    let one = sleeper(agent.folder.path(), "dbp-one");
    for _ in 0..9 {
        run(&one, "0.052");
        run(&one, "0.052");
    }
    run(&one, "0.6");
    run(&one, "0.6");
    let slept = "{label=\"nanosleep\",class=\"idle\"}";
    for server in [&native, &classic] {
        server.waits_for(&format!("debox_sleeps_total{slept}"), 20.0);
        assert_eq!(server.value("up"), Some(1.0));
    }
    let is = |server: &Prometheus, expression: &str| {
        let is = server.value(expression);
        is.unwrap_or_else(|| panic!("{expression} is nothing"))
    };
    let name = format!("debox_blocked_duration_seconds{slept}");
    assert_eq!(is(&native, &format!("histogram_count({name})")), 20.0);
    let sum = is(&native, &format!("histogram_sum({name})"));
    assert!((2.1..2.5).contains(&sum), "{sum}");
    let buckets = "debox_blocked_duration_seconds_bucket{label=\"nanosleep\"}";
    let sums = format!("debox_blocked_duration_seconds_count{slept}");
    assert_eq!(is(&classic, &sums), 20.0);
    // Half, in the bucket of 0.052 s; and 99 of a hundred, in that of 0.6 s.
    for (server, of, bounds) in [
        (&native, name.as_str(), [(0.0442, 0.0625), (0.5, 0.7072)]),
        (&classic, buckets, [(0.03125, 0.0625), (0.5, 1.0)]),
    ] {
        for (quantile, (above, most)) in [0.5, 0.99].into_iter().zip(bounds) {
            let took = is(server, &format!("histogram_quantile({quantile}, {of})"));
            assert!(took > above && took <= most, "{of} {quantile}: {took}");
        }
    }
    let recordings: Vec<String> = std::fs::read_dir(agent.folder.path().join("flight"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for (server, series) in [
        (&native, "debox_blocked_duration_seconds"),
        (&classic, "debox_blocked_duration_seconds_bucket"),
    ] {
        let all = server.exemplars(series);
        let longest = all.iter().find(|(_, value)| *value > 0.5);
        let Some((labels, value)) = longest else {
            panic!("{series}: {all:?}");
        };
        assert!((0.6..0.7).contains(value), "{all:?}");
        assert_eq!(labels["program"], "dbp-one", "{all:?}");
        let file = format!("{}.part.debox", labels["recording"].as_str().unwrap());
        assert!(recordings.contains(&file), "{file}: {recordings:?}");
    }
    drop((native, classic));
    // The older form, to which promtool has its own objections.
    let (head, text) = agent.ask_for("/metrics", "text/plain;version=0.0.4");
    assert!(head.contains("version=0.0.4"), "{head}");
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    promtool
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let said = promtool.wait_with_output().unwrap();
    assert!(said.status.success(), "{said:?}\n{text}");
    assert_eq!(agent.end(), Some(0));
}

/// A sleep that goes over the ends of periods is in the distribution once, with all it took.
#[test]
fn a_sleep_over_many_periods_is_one() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbw-*\"]\nperiod = \"2s\"\n[flight]\ndirectory = \"\"\n\
         [metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let mut long = Command::new(sleeper(agent.folder.path(), "dbw-long"))
        .arg("7")
        .spawn()
        .unwrap();
    let slept = "{label=\"nanosleep\",class=\"idle\"}";
    // While it sleeps there is nothing to tell of.
    std::thread::sleep(Duration::from_secs(3));
    let text = agent.metrics();
    let series = |what: &str| format!("debox_{what}{slept}");
    let bucket = |bound: &str| {
        format!(
            "debox_blocked_duration_seconds_bucket{{label=\"nanosleep\",class=\"idle\",le=\"{bound}\"}}"
        )
    };
    let count = series("blocked_duration_seconds_count");
    assert!(!values(&text).contains_key(count.as_str()), "{text}");
    assert!(long.wait().unwrap().success());
    let text = agent.metrics();
    let is = values(&text);
    assert_eq!(is[count.as_str()], 1.0, "{text}");
    let sum = is[series("blocked_duration_seconds_sum").as_str()];
    assert!((6.9..7.5).contains(&sum), "{text}");
    assert_eq!(is[bucket("4.0").as_str()], 0.0, "{text}");
    assert_eq!(is[bucket("8.0").as_str()], 1.0, "{text}");
    assert_eq!(agent.end(), Some(0));
}

#[test]
fn who_says_nothing_keeps_nobody_away() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbn-*\"]\n[flight]\ndirectory = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let address = agent.place.strip_prefix("http://").unwrap();
    let address: std::net::SocketAddr = address.split_once('/').unwrap().0.parse().unwrap();
    // More than are served at once, and one that goes on after a word.
    let mut silent: Vec<TcpStream> = (0..240)
        .filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok())
        .collect();
    assert!(silent.len() >= 128, "{}", silent.len());
    silent[0].write_all(b"GET /met").unwrap();
    // Neither a letter nor an answer that one had gives anybody more time.
    for (at, stream) in silent.iter_mut().enumerate().skip(1) {
        let said: &[u8] = match at % 2 {
            0 => b"G",
            _ => b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        };
        let _ = stream.write_all(said);
    }
    let begin = Instant::now();
    let open = std::fs::read_dir(format!("/proc/{}/fd", agent.process.id()))
        .unwrap()
        .count();
    assert!(open < 400, "{open}");
    assert!(agent.metrics().contains("debox_build_info"));
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    // They have been closed, one after the other.
    let last = silent.last_mut().unwrap();
    last.set_read_timeout(Some(READY)).unwrap();
    let _ = last.read_to_end(&mut Vec::new());
    assert_eq!(last.read(&mut [0; 1]).unwrap_or(0), 0);
    assert_eq!(agent.end(), Some(0));
}

#[test]
fn a_socket_is_for_its_group_and_a_taken_address_is_told() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbo-*\"]\n[flight]\ndirectory = \"\"\n[metrics]\nlisten = \"FOLDER/metrics.sock\"\n",
    );
    assert!(agent.metrics().contains("debox_build_info"));
    let socket = agent.folder.path().join("metrics.sock");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&socket).unwrap());
    assert_eq!(mode & 0o777, 0o660);
    // Another one does not take it away.
    let file = agent.folder.path().join("agent.toml");
    let second = debox(&["agent", "--config", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(125), "{said}");
    assert!(
        said.contains("cannot listen on") && said.contains("[metrics] listen"),
        "{said}"
    );
    assert!(agent.metrics().contains("debox_build_info"));
    assert_eq!(agent.end(), Some(0));
}

/// Its recordings, the oldest first.
fn recordings(flight: &Path) -> Vec<debox_report::Report> {
    let mut names: Vec<std::path::PathBuf> = std::fs::read_dir(flight)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "debox"))
        .collect();
    names.sort();
    let read = |path: &std::path::PathBuf| debox_record::read(path).unwrap();
    names.iter().map(read).collect()
}

fn waited(reports: &[debox_report::Report], label: &str) -> (u64, u64) {
    let rows = reports.iter().flat_map(|report| &report.blocking);
    let rows = rows.filter(|row| row.label == label);
    rows.fold((0, 0), |sum, row| (sum.0 + row.total_ns, sum.1 + row.count))
}

/// These programs are policy "web", with more lines of it, and their periods are recorded.
fn recorded(comm: &str, more: &str) -> String {
    format!(
        "[[policy]]\nname = \"web\"\ncomm = [\"{comm}\"]\n{more}[flight]\ndirectory = \"FOLDER/flight\"\n\
         [metrics]\nlisten = \"127.0.0.1:0\"\n"
    )
}

/// A sleep that goes on over the ends of periods is of each of them, up to the moment at which it is
/// handed over: nothing is missing, and nothing is there twice.
#[test]
fn periods_hand_threads_over() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(&recorded("dbh-*", "period = \"2s\"\n"));
    let flight = agent.folder.path().join("flight");
    let program = sleeper(agent.folder.path(), "dbh-one");
    let begin = Instant::now();
    run(&program, "7");
    let lived = begin.elapsed().as_nanos() as u64;
    // One that computes all the time, and ends within a period.
    let busy = agent.folder.path().join("dbh-busy");
    std::fs::copy("/bin/dash", &busy).unwrap();
    let script = "i=0; while [ $i -lt 3000000 ]; do i=$((i+1)); done";
    let begin = Instant::now();
    let mut child = Command::new(&busy).args(["-c", script]).spawn().unwrap();
    child.wait().unwrap();
    let computed = begin.elapsed().as_nanos() as u64;
    let figures = agent.metrics();
    assert_eq!(agent.end(), Some(0));
    let reports = recordings(&flight);
    assert!(reports.len() >= 4, "{}", reports.len());
    let (slept, sleeps) = waited(&reports, "nanosleep");
    let near = |is: u64, due: u64| is.abs_diff(due) < 100_000_000;
    assert!(near(slept, 7_000_000_000), "{slept}");
    // Once in each period in which it went on.
    let in_it =
        |report: &&debox_report::Report| report.blocking.iter().any(|row| row.label == "nanosleep");
    let periods = reports.iter().filter(in_it).count();
    assert!(
        periods >= 3 && sleeps == periods as u64,
        "{sleeps} in {periods}"
    );
    // From its exec on, when it got its name, to its end, before this process knew of that.
    let one = self::lived(&reports, "dbh-one");
    assert!(one >= 7_000_000_000 && one <= lived, "{one} of {lived}");
    let busy = self::lived(&reports, "dbh-busy");
    assert!(
        busy <= computed && busy * 10 >= computed * 9,
        "{busy} of {computed}"
    );
    for report in &reports {
        let kinds: Vec<_> = report.notes.iter().map(|note| note.kind).collect();
        let left = debox_report::NoteKind::ThreadsLeft;
        assert!(!kinds.contains(&left), "{:?}", report.notes);
        for row in &report.lives {
            let time = &row.time;
            let parts = time.own_ns
                + time.calls_ns
                + time.exit_ns
                + time.blocked_ns
                + time.outside_ns
                + time.stopped_ns
                + time.runq_ns;
            assert_eq!(parts, time.life_ns, "{row:?}");
        }
    }
    let blocked =
        "debox_blocked_seconds_total{label=\"nanosleep\",call=\"clock_nanosleep\",class=\"idle\"}";
    let shown = values(&figures)[blocked];
    assert!((shown - 7.0).abs() < 0.1, "{shown}");
}

fn kept(flight: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(flight.join("kept")).into_iter().flatten();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn a_snapshot_keeps_the_last_minutes() {
    if !needs::bpf() {
        return;
    }
    let nowhere = tempfile::tempdir().unwrap();
    let nowhere = nowhere.path().to_str().unwrap();
    let said = debox(&["snapshot", "--directory", nowhere]);
    assert_eq!(said.status.code(), Some(125), "{said:?}");
    let mut agent = Agent::start(&recorded("dbs-*", ""));
    let flight = agent.folder.path().join("flight");
    run(&sleeper(agent.folder.path(), "dbs-one"), "0.5");
    // Nobody else writes there.
    let file = agent.folder.path().join("agent.toml");
    let mut second = Command::new(env!("CARGO_BIN_EXE_debox-agent"))
        .args(["agent", "--config"])
        .arg(&file)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut said = BufReader::new(second.stderr.take().unwrap());
    said.read_line(&mut line).unwrap();
    let pid = agent.process.id();
    assert!(
        line.contains(&format!("of another agent, process {pid}")),
        "{line}"
    );
    second.kill().unwrap();
    second.wait().unwrap();
    let directory = flight.to_str().unwrap();
    let output = debox(&["snapshot", "--directory", directory]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let kept = Path::new(said.trim_end());
    assert_eq!(kept.parent(), Some(flight.join("kept").as_path()));
    assert!(agent.says("kept in ").contains("asked for"));
    let why = std::fs::read_to_string(kept.join("why")).unwrap();
    assert_eq!(why, "asked for\n");
    let (slept, sleeps) = waited(&recordings(kept), "nanosleep");
    // A sleep begins a moment after its timer.
    assert!(slept >= 499_000_000 && sleeps == 1, "{slept} {sleeps}");
    assert_eq!(agent.end(), Some(0));
    let output = debox(&["snapshot", "--directory", directory]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(said.contains("no agent records to"), "{said}");
}

#[test]
fn a_snapshot_asks_no_process_of_somebody_elses_choice() {
    if !needs::root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("kept")).unwrap();
    // As who delivers mail does with a mailbox of another user's.
    let path = folder.path().join(".agent.lock");
    let file = std::fs::File::create(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
    // SAFETY: all-zero is a valid flock: the whole file.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: the descriptor is open, the struct a valid local.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETLK, &lock) }, 0);
    // The signal would end this process.
    let output = debox(&["snapshot", "--directory", folder.path().to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(125), "{said}");
    assert!(
        said.contains(&format!("process {}, which is not of", std::process::id())),
        "{said}"
    );
}

#[test]
fn what_is_too_much_is_kept_unasked() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbw-*\"]\nperiod = \"2s\"\n[flight]\ndirectory = \"FOLDER/flight\"\n\
         [[flight.when]]\nlabel = \"nanosleep\"\nabove = \"600ms\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let flight = agent.folder.path().join("flight");
    run(&sleeper(agent.folder.path(), "dbw-one"), "0.3");
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(kept(&flight).is_empty());
    run(&sleeper(agent.folder.path(), "dbw-two"), "2.5");
    let line = agent.says("kept in ");
    assert!(line.contains("label nanosleep: "), "{line}");
    // What goes on is not kept once more.
    run(&sleeper(agent.folder.path(), "dbw-two"), "4.5");
    assert_eq!(kept(&flight).len(), 1);
    assert_eq!(agent.end(), Some(0));
}

#[test]
fn a_kill_takes_seconds() {
    if !needs::bpf() {
        return;
    }
    let config = &recorded("dbk-*", "");
    let mut agent = Agent::start(config);
    let flight = agent.folder.path().join("flight");
    run(&sleeper(agent.folder.path(), "dbk-one"), "0.5");
    when_there(|| agent.metrics().contains("nanosleep").then_some(()));
    when_there(|| (waited(&recordings(&flight), "nanosleep").1 == 1).then_some(()));
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
    let reports = recordings(&flight);
    let recording = reports[0].recording.as_ref().unwrap();
    assert!(!recording.complete, "{recording:?}");
    // The next one goes on beside it.
    let file = agent.folder.path().join("agent.toml");
    let mut next = Command::new(env!("CARGO_BIN_EXE_debox-agent"))
        .args(["agent", "--config"])
        .arg(&file)
        .env_remove("DEBOX_SOCKET")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    when_there(|| (recordings(&flight).len() == 2).then_some(()));
    // SAFETY: kill touches no memory; it is our own child.
    unsafe { libc::kill(i32::try_from(next.id()).unwrap(), libc::SIGTERM) };
    assert_eq!(next.wait().unwrap().code(), Some(0));
    assert_eq!(recordings(&flight).len(), 2);
}

/// The watch goes on, and so do the recordings once there is room.
#[test]
fn a_full_disk_is_said_and_survived() {
    if !needs::bpf() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let flight = folder.path().join("flight");
    std::fs::create_dir(&flight).unwrap();
    let file = folder.path().join("agent.toml");
    let text = format!(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbf-*\"]\nperiod = \"2s\"\n[flight]\ndirectory = \"{}\"\n\
         [metrics]\nlisten = \"127.0.0.1:0\"\n",
        flight.display()
    );
    std::fs::write(&file, text).unwrap();
    // What is mounted is there for this process alone, and goes with it.
    let script = "mount -t tmpfs -o size=256k none \"$1\" && mkdir \"$1/kept\" && touch \"$1/.agent.lock\" && (cat /dev/zero > \"$1/filled\"; true); \
         (sleep 5; rm \"$1/filled\") & exec \"$2\" agent --config \"$3\"";
    let process = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(&flight)
        .arg(env!("CARGO_BIN_EXE_debox-agent"))
        .arg(&file)
        .env_remove("DEBOX_SOCKET")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut agent = Agent::of(process.unwrap(), folder);
    let mut lines = String::new();
    while !lines.contains("goes on") {
        lines += &agent.says("flight recorder");
    }
    // Once, and not each time.
    let full = lines.matches("No space left").count();
    assert!((1..=2).contains(&full), "{lines}");
    // No period came to its end on the disk while that was full: each that ended is counted, and none since.
    let lost = |agent: &Agent| values(&agent.metrics())["debox_recordings_lost_total"];
    let is = lost(&agent);
    assert!((1.0..=5.0).contains(&is), "{is}");
    let seen = format!("/proc/{}/root{}", agent.process.id(), flight.display());
    when_there(|| (recordings(Path::new(&seen)).len() >= 3).then_some(()));
    assert_eq!(lost(&agent), is);
    assert_eq!(agent.end(), Some(0));
}

/// Another file, and whom it names is watched from then on, by the same agent.
#[test]
fn another_whom_is_taken_while_it_runs() {
    if !needs::bpf() {
        return;
    }
    let config = |comm: &str| {
        format!(
            "[[policy]]\nname = \"web\"\ncomm = [\"{comm}\"]\n[flight]\ndirectory = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n"
        )
    };
    let mut agent = Agent::start(&config("dba-one"));
    run(&sleeper(agent.folder.path(), "dba-one"), "0.5");
    run(&sleeper(agent.folder.path(), "dba-two"), "0.5");
    std::fs::write(agent.folder.path().join("agent.toml"), config("dba-two")).unwrap();
    agent.signal(libc::SIGHUP);
    agent.says("read again");
    run(&sleeper(agent.folder.path(), "dba-one"), "0.5");
    run(&sleeper(agent.folder.path(), "dba-two"), "0.5");
    run(&sleeper(agent.folder.path(), "dba-two"), "0.5");
    let figures = agent.metrics();
    let is = values(&figures);
    let blocked = |program: &str| {
        let of = is.iter().filter(|(series, _)| {
            series.starts_with("debox_thread_seconds_total")
                && series.contains(&format!("program=\"{program}\""))
                && (series.contains("state=\"blocked\"") || series.contains("state=\"resting\""))
        });
        of.map(|(_, value)| *value).sum::<f64>()
    };
    assert!((blocked("dba-one") - 0.5).abs() < 0.2, "{figures}");
    assert!((blocked("dba-two") - 1.0).abs() < 0.2, "{figures}");
    assert_eq!(agent.end(), Some(0));
}

/// What `debox fleet` reads of it is tested where that lives.
#[test]
fn periods_go_to_the_fleets_tables() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbt-*\"]\nperiod = \"2s\"\n[flight]\ndirectory = \"\"\n[fleet]\nto = \"FOLDER/fleet\"\n\
         host = \"web/1\"\nevery = \"1s\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    run(&sleeper(agent.folder.path(), "dbt-one"), "3");
    when_there(|| {
        let figures = agent.metrics();
        let is = values(&figures);
        let written = is.get("debox_fleet_periods_total{outcome=\"written\"}");
        written.is_some_and(|periods| *periods >= 1.0).then_some(())
    });
    assert_eq!(agent.end(), Some(0));
    for table in ["periods", "waits", "threads"] {
        let days = agent.folder.path().join("fleet").join(table);
        let day = std::fs::read_dir(&days).unwrap().next().unwrap().unwrap();
        let hosts: Vec<_> = std::fs::read_dir(day.path())
            .unwrap()
            .map(|host| host.unwrap())
            .collect();
        assert_eq!(hosts.len(), 1);
        // What is no name for a folder is written otherwise.
        let name = hosts[0].file_name().into_string().unwrap();
        assert!(
            name.starts_with("host=web") && !name.contains('/'),
            "{name}"
        );
        let files = std::fs::read_dir(hosts[0].path()).unwrap().count();
        assert!(files >= 1, "{table}");
    }
}

/// What no place was there for: as another one is named, and as the agent ends.
#[test]
fn periods_that_the_fleets_tables_lack_are_said_and_counted() {
    if !needs::bpf() {
        return;
    }
    // A file is where the directory should be.
    let config = |to: &str| {
        format!(
            "[[policy]]\nname = \"web\"\ncomm = [\"dbl-*\"]\nperiod = \"2s\"\n[flight]\ndirectory = \"\"\n[fleet]\nto = \"{to}\"\n\
             every = \"1h\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n"
        )
    };
    let mut agent = Agent::start(&config("FOLDER/agent.toml/one"));
    std::thread::sleep(Duration::from_secs(3));
    let two = agent.folder.path().join("agent.toml/two");
    reload(&agent, &config(two.to_str().unwrap()));
    agent.says("periods are not in the fleet's tables: ");
    agent.says("read again");
    let figures = agent.metrics();
    let dropped = values(&figures)["debox_fleet_periods_total{outcome=\"dropped\"}"];
    assert!(dropped >= 1.0, "{figures}");
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(agent.end(), Some(0));
    agent.says("periods are not in the fleet's tables: ");
}

/// The period that is under way as the file comes to name them is the first one in them.
#[test]
fn tables_that_are_named_while_it_runs_have_the_present_period() {
    if !needs::bpf() {
        return;
    }
    let config = |to: &str| {
        format!(
            "[[policy]]\nname = \"web\"\ncomm = [\"dbn-*\"]\nperiod = \"1h\"\n[flight]\ndirectory = \"\"\n[fleet]\nto = \"{to}\"\n\
             [metrics]\nlisten = \"127.0.0.1:0\"\n"
        )
    };
    let mut agent = Agent::start(&config(""));
    run(&sleeper(agent.folder.path(), "dbn-one"), "0.2");
    let tables = agent.folder.path().join("fleet");
    let text = config(tables.to_str().unwrap());
    std::fs::write(agent.folder.path().join("agent.toml"), text).unwrap();
    agent.signal(libc::SIGHUP);
    agent.says("read again");
    assert_eq!(agent.end(), Some(0));
    for table in ["periods", "waits", "threads"] {
        let days = std::fs::read_dir(tables.join(table)).unwrap();
        assert_eq!(days.count(), 1, "{table}");
    }
}

/// The period that is under way ends in the folder in which it began, and leaves nothing half there.
#[test]
fn another_folder_is_taken_while_it_runs() {
    if !needs::bpf() {
        return;
    }
    let config = |directory: &str| {
        format!(
            "[[policy]]\nname = \"web\"\ncomm = [\"dbg-*\"]\n[flight]\ndirectory = \"{directory}\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n"
        )
    };
    let mut agent = Agent::start(&config("FOLDER/first"));
    let folder = agent.folder.path().to_owned();
    run(&sleeper(&folder, "dbg-one"), "0.5");
    let second = folder.join("second");
    let text = config(second.to_str().unwrap());
    std::fs::write(folder.join("agent.toml"), text).unwrap();
    agent.signal(libc::SIGHUP);
    agent.says("read again");
    when_there(|| {
        let names = std::fs::read_dir(&second).ok()?;
        let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .any(|name| name.ends_with(".part.debox"))
            .then_some(())
    });
    let first = recordings(&folder.join("first"));
    assert_eq!(first.len(), 1);
    assert!(first[0].recording.as_ref().unwrap().complete);
    assert_eq!(waited(&first, "nanosleep").1, 1);
    run(&sleeper(&folder, "dbg-one"), "0.5");
    assert_eq!(agent.end(), Some(0));
    assert_eq!(waited(&recordings(&second), "nanosleep").1, 1);
}

/// Recordings of one policy, the oldest first.
fn recordings_of(flight: &Path, policy: &str) -> Vec<debox_report::Report> {
    let end = format!(".{policy}.debox");
    let mut names: Vec<std::path::PathBuf> = std::fs::read_dir(flight)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_str().is_some_and(|path| path.ends_with(&end)))
        .collect();
    names.sort();
    let read = |path: &std::path::PathBuf| debox_record::read(path).unwrap();
    names.iter().map(read).collect()
}

fn names_of(reports: &[debox_report::Report]) -> std::collections::HashSet<String> {
    let rows = reports.iter().flat_map(|report| &report.lives);
    // What an exec left of its name in the policy that it went away from is of no length.
    let rows = rows.filter(|row| row.time.life_ns > 200_000_000);
    rows.map(|row| row.comm.clone()).collect()
}

/// What programs of a name lived, in all of these. (How much of it is a sleep, and how much waiting for a
/// CPU behind it, is the scheduler's to say; that nothing is lost or there twice, is not.)
fn lived(reports: &[debox_report::Report], comm: &str) -> u64 {
    let rows = reports.iter().flat_map(|report| &report.lives);
    let of = rows.filter(|row| row.comm == comm);
    of.map(|row| row.time.life_ns).sum()
}

const SECOND: u64 = 1_000_000_000;

fn child(program: &Path, options: &[&str]) -> Child {
    Command::new(program).args(options).spawn().unwrap()
}

/// What the flight recorder has kept since a condition of policy `web` was met: how long it slept, and how often.
fn kept_once(agent: &mut Agent) -> (u64, u64) {
    let line = agent.says("kept in ");
    assert!(
        line.contains("condition blocked > 200ms") && line.contains("policy web"),
        "{line}"
    );
    let kept = kept(&agent.folder.path().join("flight"));
    assert_eq!(kept.len(), 1);
    waited(&recordings_of(&kept[0], "web"), "nanosleep")
}

/// The first that fits: whoever turns, and when.
#[test]
fn policies_share_out_who_is_watched() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"first\"\ncomm = [\"dpo-a-*\"]\nperiod = \"2s\"\n[[policy]]\nname = \"rest\"\n\
         comm = [\"dpo-*\"]\nperiod = \"3s\"\n[flight]\ndirectory = \"FOLDER/flight\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let flight = agent.folder.path().join("flight");
    let folder = agent.folder.path().to_owned();
    let begin = Instant::now();
    let mut first = child(&sleeper(&folder, "dpo-a-one"), &["8"]);
    let mut rest = child(&sleeper(&folder, "dpo-b-one"), &["8"]);
    // A program of the one becomes one of the other.
    let shell = folder.join("dpo-b-sh");
    std::fs::copy("/bin/dash", &shell).unwrap();
    sleeper(&folder, "dpo-a-nap");
    sleeper(&folder, "dpo-b-nap");
    let script = format!(
        "{0}/dpo-b-nap 1; exec {0}/dpo-a-nap 2.5",
        folder.to_str().unwrap()
    );
    let mut other = child(&shell, &["-c", &script]);
    std::thread::sleep(Duration::from_millis(500));
    let figures = agent.metrics();
    let now = values(&figures);
    let threads =
        |policy: &str| now[format!("debox_policy_threads{{policy=\"{policy}\"}}").as_str()];
    assert!(
        threads("first") >= 1.0 && threads("rest") >= 1.0,
        "{figures}"
    );
    for child in [&mut other, &mut first, &mut rest] {
        assert!(child.wait().unwrap().success());
    }
    let figures = agent.metrics();
    assert_eq!(agent.end(), Some(0));
    let most = begin.elapsed().as_nanos() as u64;
    let whole = |is: u64, seconds: u64| is >= seconds * SECOND && is <= most;
    let first = recordings_of(&flight, "first");
    let (slept, sleeps) = waited(&first, "nanosleep");
    assert!(slept <= 10_600_000_000, "{slept}");
    let is = (lived(&first, "dpo-a-one"), lived(&first, "dpo-a-nap"));
    // The other one was exec'd into this policy.
    assert!(whole(is.0, 8) && whole(is.1 + SECOND / 2, 3), "{is:?}");
    let periods = |reports: &[debox_report::Report], comm: &str| {
        let lives =
            |report: &&debox_report::Report| report.lives.iter().any(|row| row.comm == comm);
        reports.iter().filter(lives).count() as u64
    };
    let times = periods(&first, "dpo-a-one") + periods(&first, "dpo-a-nap");
    // One more for each end of a period, and no other.
    assert!(sleeps >= 4 && sleeps <= times, "{sleeps} in {times}");
    let rest = recordings_of(&flight, "rest");
    let (slept, _) = waited(&rest, "nanosleep");
    assert!(slept <= 9_100_000_000, "{slept}");
    let is = (lived(&rest, "dpo-b-one"), lived(&rest, "dpo-b-nap"));
    assert!(whole(is.0, 8) && whole(is.1, 1), "{is:?}");
    let own = names_of(&first);
    assert!(
        own.contains("dpo-a-one") && own.contains("dpo-a-nap"),
        "{own:?}"
    );
    assert!(own.iter().all(|name| name.starts_with("dpo-a-")), "{own:?}");
    let others = names_of(&rest);
    assert!(
        others.contains("dpo-b-one") && others.contains("dpo-b-sh"),
        "{others:?}"
    );
    assert!(
        others.iter().all(|name| name.starts_with("dpo-b-")),
        "{others:?}"
    );
    // What is open, too, is of whose it is.
    let open = |reports: &[debox_report::Report]| {
        let calls = reports.iter().flat_map(|report| &report.open_calls);
        calls.map(|call| call.comm.clone()).collect::<Vec<_>>()
    };
    let calls = open(&first);
    assert!(calls.iter().any(|comm| comm == "dpo-a-one"), "{calls:?}");
    // And what it waits for, which was found beside the next period.
    let mut calls = first.iter().flat_map(|report| &report.open_calls);
    let explained = calls.any(|call| call.comm == "dpo-a-one" && !call.why.is_empty());
    assert!(explained, "{first:?}");
    let calls = open(&rest);
    assert!(calls.iter().any(|comm| comm == "dpo-b-one"), "{calls:?}");
    assert!(
        calls.iter().all(|comm| comm.starts_with("dpo-b-")),
        "{calls:?}"
    );
    let left = debox_report::NoteKind::ThreadsLeft;
    for report in first.iter().chain(&rest) {
        assert!(
            !report.notes.iter().any(|note| note.kind == left),
            "{:?}",
            report.notes
        );
    }
    // Each sleep once over all policies.
    let blocked =
        "debox_blocked_seconds_total{label=\"nanosleep\",call=\"clock_nanosleep\",class=\"idle\"}";
    let shown = values(&figures)[blocked];
    assert!(shown > 15.0 && shown < 19.8, "{shown}");
}

/// What was the policy's that is gone is another's from then on, without a gap.
#[test]
fn a_policy_that_is_taken_out_leaves_its_threads_to_the_next() {
    if !needs::bpf() {
        return;
    }
    let rest = "[[policy]]\nname = \"rest\"\ncomm = [\"dq*\"]\n[flight]\ndirectory = \"FOLDER/flight\"\n\
                [metrics]\nlisten = \"127.0.0.1:0\"\n";
    let mut agent = Agent::start(&format!(
        "[[policy]]\nname = \"first\"\ncomm = [\"dqa-*\"]\n{rest}"
    ));
    let folder = agent.folder.path().to_owned();
    let flight = folder.join("flight");
    let mut sleeping = child(&sleeper(&folder, "dqa-one"), &["5"]);
    std::thread::sleep(Duration::from_secs(2));
    let text = rest.replace("FOLDER", folder.to_str().unwrap());
    std::fs::write(folder.join("agent.toml"), text).unwrap();
    agent.signal(libc::SIGHUP);
    agent.says("read again");
    assert!(sleeping.wait().unwrap().success());
    let figures = agent.metrics();
    assert!(!figures.contains("policy=\"first\""), "{figures}");
    assert_eq!(agent.end(), Some(0));
    let first = waited(&recordings_of(&flight, "first"), "nanosleep");
    let rest = waited(&recordings_of(&flight, "rest"), "nanosleep");
    assert_eq!((first.1, rest.1), (1, 1), "{first:?} {rest:?}");
    assert!(first.0 > 1_000_000_000, "{first:?}");
    assert!(first.0 + rest.0 <= 5_100_000_000, "{first:?} {rest:?}");
    let of = |policy: &str| lived(&recordings_of(&flight, policy), "dqa-one");
    let (first, rest) = (of("first"), of("rest"));
    assert!(first + rest >= 5 * SECOND, "{first} {rest}");
}

#[test]
fn boundary_capture_is_for_a_time() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbb-*\"]\ncapture = \"boundary\"\nfor = \"3s\"\n\
         [flight]\ndirectory = \"FOLDER/flight\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let folder = agent.folder.path().to_owned();
    let program = sleeper(&folder, "dbb-one");
    run(&program, "0.3");
    let line = agent.says("boundary capture has lasted 3 s");
    assert!(
        line.contains("policy web") && line.contains("by sleeps"),
        "{line}"
    );
    let calls = |figures: &str| -> f64 {
        let is = values(figures);
        let of = is
            .iter()
            .filter(|(series, _)| series.starts_with("debox_calls_total"));
        of.map(|(_, value)| *value).sum()
    };
    let before = calls(&agent.metrics());
    assert!(before > 5.0, "{before}");
    run(&program, "0.3");
    let figures = agent.metrics();
    assert_eq!(calls(&figures), before, "{figures}");
    assert_eq!(agent.end(), Some(0));
    let recorded = recordings_of(&folder.join("flight"), "web");
    let captures: Vec<_> = recorded.iter().map(|report| report.run.capture).collect();
    assert_eq!(
        captures,
        [
            debox_report::Capture::Boundary,
            debox_report::Capture::Sleeps
        ]
    );
    // The slowest single calls, the longest first, with what they waited for.
    let slow = &recorded[0].slow_calls;
    let longest = slow
        .first()
        .map(|call| (call.call.as_str(), call.comm.as_str()));
    assert_eq!(longest, Some(("clock_nanosleep", "dbb-one")), "{slow:?}");
    assert!(slow[0].wall_ns >= 300_000_000 && slow[0].sleeps.len() == 1);
    assert!(slow.is_sorted_by_key(|call| std::cmp::Reverse(call.wall_ns)));
    assert!(slow.iter().all(|call| !call.one_sleep));
    // By sleeps, the slowest of these.
    let slow = &recorded[1].slow_calls;
    assert!(slow.iter().all(|call| call.one_sleep), "{slow:?}");
    let longest = slow
        .first()
        .map(|call| (call.call.as_str(), call.comm.as_str()));
    assert_eq!(longest, Some(("clock_nanosleep", "dbb-one")), "{slow:?}");
}

/// Of each call the slowest, whatever others wait for; with what each waited for.
#[test]
fn recordings_have_the_slowest_sleeps() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(&recorded("dbi-*", ""));
    let folder = agent.folder.path().to_owned();
    let shell = folder.join("dbi-sh");
    std::fs::copy("/bin/dash", &shell).unwrap();
    let one = sleeper(&folder, "dbi-one");
    let (long, less) = (sleeper(&folder, "dbi-long"), sleeper(&folder, "dbi-less"));
    let begin = Instant::now();
    // The shell waits for its children: more sleeps than are kept.
    let script = format!(
        "n=0; while [ $n -lt 300 ]; do {} 0.002; n=$((n + 1)); done; {} 0.3; {} 0.2",
        one.display(),
        long.display(),
        less.display()
    );
    assert!(child(&shell, &["-c", &script]).wait().unwrap().success());
    let took_ns = begin.elapsed().as_nanos() as u64;
    assert_eq!(agent.end(), Some(0));
    let recorded = recordings_of(&folder.join("flight"), "web");
    assert_eq!(recorded.len(), 1);
    let report = &recorded[0];
    let slow = &report.slow_calls;
    assert!(slow.iter().all(|call| call.one_sleep), "{slow:?}");
    assert!(slow.len() <= 200, "{}", slow.len());
    assert!(slow.is_sorted_by_key(|call| std::cmp::Reverse(call.wall_ns)));
    let of = |call: &str, comm: &str| -> Vec<&debox_report::SlowCall> {
        let mine = slow.iter().filter(|s| s.call == call && s.comm == comm);
        mine.collect()
    };
    let (long, less) = (
        of("clock_nanosleep", "dbi-long"),
        of("clock_nanosleep", "dbi-less"),
    );
    assert_eq!((long.len(), less.len()), (1, 1), "{slow:?}");
    let (long, less) = (long[0], less[0]);
    assert!(long.wall_ns >= 299_000_000, "{long:?}");
    assert!(less.wall_ns >= 199_000_000, "{less:?}");
    assert!(long.start_ns < less.start_ns && less.start_ns > 0);
    assert!(long.wall_ns + less.wall_ns < took_ns);
    assert!(!of("clock_nanosleep", "dbi-one").is_empty());
    let sleep = &long.sleeps[..];
    assert_eq!(sleep.len(), 1);
    let site = &report.sites[sleep[0].site.unwrap()];
    assert_eq!(site.label, "nanosleep");
    assert!(sleep[0].waker.is_some() || sleep[0].chain.is_some());
    // Where the shell comes back to for its children it has nothing to do, once that is known.
    assert!(of("wait4", "dbi-sh").len() < 10);
    // Sums have all of them.
    assert!(self::waited(&recorded, "nanosleep").1 >= 302);
    let text = debox_report::render_text(report, &debox_report::TextOptions::default());
    assert!(
        text.contains("Slow sleeps, the slowest of each kind"),
        "{text}"
    );
}

#[test]
fn a_call_that_meets_a_condition_is_told_and_kept() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbv-*\"]\ncapture = \"boundary\"\n[[policy.when]]\n\
         condition = \"blocked > 200ms && call == clock_nanosleep\"\ndo = [\"log\", \"keep\"]\n\
         [flight]\ndirectory = \"FOLDER/flight\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let folder = agent.folder.path().to_owned();
    let program = sleeper(&folder, "dbv-one");
    run(&program, "0.05");
    run(&program, "0.4");
    let line = agent.says("clock_nanosleep(");
    assert!(line.contains("dbv-one"), "{line}");
    let (slept, sleeps) = kept_once(&mut agent);
    assert!(sleeps == 2 && slept > 200_000_000, "{slept} {sleeps}");
    // So many in a second are not told one by one, but counted; what goes on is kept once.
    let shell = folder.join("dbv-sh");
    std::fs::copy("/bin/dash", &shell).unwrap();
    let script = format!(
        "for n in 1 2 3 4 5 6; do {} 0.25 & done; wait",
        program.display()
    );
    assert!(child(&shell, &["-c", &script]).wait().unwrap().success());
    agent.signal(libc::SIGUSR1);
    let line = agent.says("of them are told here by this number alone");
    assert!(line.contains("met by 6 calls"), "{line}");
    let figures = agent.metrics();
    let is = values(&figures);
    let of = |outcome: &str| {
        let series = format!(
            "debox_condition_calls_total{{policy=\"web\",condition=\"blocked > 200ms && call == clock_nanosleep\",outcome=\"{outcome}\"}}"
        );
        is[series.as_str()]
    };
    assert_eq!(of("told") + of("held_back"), 7.0, "{figures}");
    assert!(of("held_back") >= 1.0, "{figures}");
    assert!(
        !figures.contains("debox_incomplete_total{what=\"other\"}"),
        "{figures}"
    );
    assert_eq!(agent.end(), Some(0));
}

/// With sleeps alone each sleep is judged as it ends: whatever its call does then.
#[test]
fn a_sleep_that_meets_a_condition_is_told_and_kept() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbk-*\"]\n[[policy.when]]\n\
         condition = \"blocked > 200ms && label == nanosleep\"\ndo = [\"stack\", \"keep\"]\n[[policy.when]]\n\
         condition = \"blocked > 60ms && call == clock_nanosleep && comm =~ 'dbk-t*'\"\n\
         [flight]\ndirectory = \"FOLDER/flight\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let folder = agent.folder.path().to_owned();
    let one = sleeper(&folder, "dbk-one");
    run(&one, "0.05");
    run(&one, "0.08");
    run(&sleeper(&folder, "dbk-two"), "0.08");
    let line = agent.says("clock_nanosleep(");
    assert!(
        line.contains(" dbk-two ") && line.contains(" slept ") && line.contains(" ms at nanosleep"),
        "{line}"
    );
    run(&one, "0.4");
    let line = agent.says("clock_nanosleep(");
    assert!(
        line.contains(" dbk-one ") && line.contains(" slept 4") && !line.contains(" = "),
        "{line}"
    );
    // Where in the kernel, and who woke it.
    let line = agent.says("    slept ");
    assert!(
        line.contains(" at nanosleep in ") && line.contains("woken by (interrupt)"),
        "{line}"
    );
    agent.says("with --capture=sleeps it is not walked");
    let (slept, sleeps) = kept_once(&mut agent);
    assert!(sleeps == 4 && slept > 590_000_000, "{slept} {sleeps}");
    // Those that met none are among the slowest as well, and have met none.
    let in_it = recordings_of(&kept(&folder.join("flight"))[0], "web");
    let mut met: Vec<usize> = (in_it.iter())
        .flat_map(|report| &report.slow_calls)
        .filter(|call| call.one_sleep && call.call == "clock_nanosleep")
        .map(|call| call.conditions.len())
        .collect();
    met.sort_unstable();
    assert_eq!(met, [0, 0, 1, 1]);
    agent.signal(libc::SIGUSR1);
    agent.says("kept in ");
    let figures = agent.metrics();
    let is = values(&figures);
    for condition in [
        "blocked > 200ms && label == nanosleep",
        "blocked > 60ms && call == clock_nanosleep && comm =~ 'dbk-t*'",
    ] {
        let series = format!(
            "debox_condition_calls_total{{policy=\"web\",condition=\"{condition}\",outcome=\"told\"}}"
        );
        assert_eq!(is[series.as_str()], 1.0, "{figures}");
    }
    assert_eq!(agent.end(), Some(0));
}

/// More single calls than was said: what they are told for is left out, and comes back.
#[test]
fn a_storm_of_events_is_more_than_the_budget() {
    if !needs::bpf() {
        return;
    }
    // Who calls is known here alone: each of the calls is told.
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbj-*\"]\ncapture = \"boundary\"\n[[policy.when]]\n\
         condition = \"call == getppid && comm =~ 'dbj-*'\"\n[budget]\nevents_per_s = 20\nevery = \"1s\"\n\
         [flight]\ndirectory = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let folder = agent.folder.path().to_owned();
    let python = folder.join("dbj-storm");
    std::fs::copy("/usr/bin/python3", &python).unwrap();
    let script = "import os, time\nend = time.monotonic() + 20\nwhile time.monotonic() < end:\n    \
                  for n in range(100): os.getppid()\n    time.sleep(0.05)\n";
    let mut storm = child(&python, &["-c", script]);
    let line = agent.says("budget: ");
    assert!(
        line.contains("20 was to be the most") && line.contains("conditions are not looked at"),
        "{line}"
    );
    let figures = agent.metrics();
    let is = values(&figures);
    assert_eq!(is["debox_capture_level{policy=\"web\"}"], 3.0, "{figures}");
    assert!(
        is["debox_budget_exceeded_total{what=\"events\"}"] >= 2.0,
        "{figures}"
    );
    storm.kill().unwrap();
    storm.wait().unwrap();
    let line = agent.says("there is room again");
    assert!(line.contains("all that the file says"), "{line}");
    assert_eq!(
        values(&agent.metrics())["debox_capture_level{policy=\"web\"}"],
        4.0
    );
    assert_eq!(agent.end(), Some(0));
}

#[test]
fn a_budget_of_one_policy_is_none_of_the_others() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbk-*\"]\n[[policy.when]]\ncondition = \"blocked > 1ms && label == nanosleep && comm =~ 'dbk-*'\"\n\
         [policy.budget]\nevents_per_s = 20\n\
         [[policy]]\nname = \"rest\"\ncomm = [\"dbl-*\"]\n[[policy.when]]\ncondition = \"blocked > 200ms && label == nanosleep\"\n\
         [budget]\nevery = \"1s\"\n[flight]\ndirectory = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let folder = agent.folder.path().to_owned();
    let python = folder.join("dbk-storm");
    std::fs::copy("/usr/bin/python3", &python).unwrap();
    let script = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: time.sleep(0.004)\n";
    let mut storm = child(&python, &["-c", script]);
    let line = agent.says("policy web: ");
    assert!(
        line.contains("20 was to be the most") && line.contains("conditions are not looked at"),
        "{line}"
    );
    let figures = agent.metrics();
    let is = values(&figures);
    assert_eq!(is["debox_capture_level{policy=\"web\"}"], 3.0, "{figures}");
    assert_eq!(is["debox_capture_level{policy=\"rest\"}"], 4.0, "{figures}");
    // These go on being judged.
    run(&sleeper(&folder, "dbl-one"), "0.3");
    agent.says("dbl-one");
    storm.kill().unwrap();
    storm.wait().unwrap();
    let line = agent.says("policy web: there is room again");
    assert!(line.contains("all that the file says"), "{line}");
    let level = values(&agent.metrics())["debox_capture_level{policy=\"web\"}"];
    assert_eq!(level, 4.0);
    assert_eq!(agent.end(), Some(0));
}

const AGENT_CPU: &str = "debox_agent_cpu_ratio{what=\"agent\"}";
const PROGRAMS_CPU: &str = "debox_agent_cpu_ratio{what=\"programs\"}";

/// Down to nothing, said at each step; and back.
#[test]
fn a_budget_is_kept_to_the_end() {
    if !needs::bpf() {
        return;
    }
    let config = |cpu: &str| {
        format!(
            "[[policy]]\nname = \"web\"\ncomm = [\"dbu-*\"]\ncapture = \"boundary\"\n[budget]\ncpu = \"{cpu}\"\n\
             every = \"1s\"\n[flight]\ndirectory = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n"
        )
    };
    let mut agent = Agent::start(&config("0.01%"));
    let folder = agent.folder.path().to_owned();
    for step in ["without the ends of calls", "longer", "nothing is watched"] {
        let line = agent.says("budget: ");
        assert!(
            line.contains("0.01 % was to be the most") && line.contains(step),
            "{line}"
        );
        // Its broker is its own, and so are the programs in the kernel.
        assert!(!line.contains("not measured"), "{line}");
    }
    let figures = agent.metrics();
    let is = values(&figures);
    assert!(
        is["debox_budget_exceeded_total{what=\"cpu\"}"] >= 6.0,
        "{figures}"
    );
    assert_eq!(is["debox_capture_level{policy=\"web\"}"], 0.0, "{figures}");
    assert_eq!(is["debox_policy_threads{policy=\"web\"}"], 0.0, "{figures}");
    // While nothing is watched none of the programs runs.
    assert!(
        is[AGENT_CPU] > 0.0 && is.contains_key(PROGRAMS_CPU),
        "{figures}"
    );
    // Its broker is a part of it.
    assert!(!is.contains_key("debox_agent_cpu_ratio{what=\"broker\"}"));
    // It is tried again, by itself.
    let line = agent.says("there is room again");
    assert!(line.contains("longer"), "{line}");
    // And with more room all comes back.
    std::fs::write(folder.join("agent.toml"), config("1000%")).unwrap();
    agent.signal(libc::SIGHUP);
    agent.says("read again");
    run(&sleeper(&folder, "dbu-one"), "0.3");
    let figures = agent.metrics();
    let is = values(&figures);
    assert_eq!(is["debox_capture_level{policy=\"web\"}"], 4.0, "{figures}");
    assert!(
        is.keys()
            .any(|series| series.starts_with("debox_calls_total")),
        "{figures}"
    );
    // Of the CPUs that there are.
    let ran = when_there(|| {
        run(&sleeper(&folder, "dbu-two"), "0.1");
        let figures = agent.metrics();
        let share = values(&figures)[PROGRAMS_CPU];
        (share > 0.0).then_some(share)
    });
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert!(ran < cpus as f64, "{ran}");
    assert_eq!(agent.end(), Some(0));
}

/// A control group with a limit of CPU time, and what is in it; gone with it.
struct Limited(std::path::PathBuf, Child);

impl Limited {
    /// 5 ms of each 100. None: this machine limits no CPU time.
    fn new(name: &str) -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut found = None;
        for line in mounts.lines() {
            let (front, back) = line.split_once(" - ").unwrap();
            let mount = Path::new(front.split(' ').nth(4).unwrap());
            let mut words = back.split(' ');
            let kind = words.next().unwrap();
            let of_cpu = words.nth(1).unwrap().split(',').any(|word| word == "cpu");
            if kind == "cgroup2" && mount.join("cgroup.subtree_control").exists() {
                // Where it is allowed already, and where it is another tree's, that is no matter.
                let _ = std::fs::write(mount.join("cgroup.subtree_control"), "+cpu");
            } else if !(kind == "cgroup" && of_cpu) {
                continue;
            }
            let folder = mount.join(name);
            std::fs::create_dir(&folder).unwrap();
            let (file, text) = match kind {
                "cgroup2" => ("cpu.max", "5000 100000"),
                _ => ("cpu.cfs_quota_us", "5000"),
            };
            if folder.join(file).exists() {
                std::fs::write(folder.join(file), text).unwrap();
                found = Some(folder);
                break;
            }
            std::fs::remove_dir(&folder).unwrap();
        }
        let folder = found?;
        let script = "echo $$ > \"$1/cgroup.procs\" && while :; do :; done";
        let busy = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&folder)
            .spawn();
        Some(Self(folder, busy.unwrap()))
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.1.kill();
        let _ = self.1.wait();
        // Who has been killed may be in it for a moment.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Whomever the policies name: limits are the machine's, and are told of groups that came later as well.
#[test]
fn groups_that_are_throttled_are_told() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"one\"\ncomm = [\"dbg-*\"]\nperiod = \"2s\"\n[[policy]]\nname = \"rest\"\nperiod = \"2s\"\n\
         [flight]\ndirectory = \"FOLDER/flight\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let name = format!("dbg-limited-{}", std::process::id());
    let Some(limited) = Limited::new(&name) else {
        needs::not_run("groups_that_are_throttled_are_told: no control groups limit CPU time here");
        assert_eq!(agent.end(), Some(0));
        return;
    };
    let series = format!("debox_cpu_throttled_seconds_total{{group=\"/{name}\"}}");
    let told = || values(&agent.metrics()).get(series.as_str()).copied();
    // It is held back for as good as all the time, of which a look sees what was so far.
    when_there(|| told().filter(|seconds| *seconds > 1.0));
    let kernel = || {
        let text = std::fs::read_to_string(limited.0.join("cpu.stat")).unwrap();
        let of = |name: &str| {
            let lines = text.lines();
            let value = lines.filter_map(|line| line.strip_prefix(name)).next()?;
            value.trim().parse::<f64>().ok()
        };
        of("throttled_usec ").map_or_else(|| of("throttled_time ").unwrap() / 1e9, |it| it / 1e6)
    };
    // All that the kernel has counted since the group was made.
    let (before, is, after) = (kernel(), told().unwrap(), kernel());
    assert!(
        before - 6.0 <= is && is <= after + 1e-6,
        "{before} {is} {after}"
    );
    // Periods of whom is in it have it, and of whom is not have not.
    let flight = agent.folder.path().join("flight");
    let held = |policy: &str| {
        let reports = recordings_of(&flight, policy);
        let machines = reports.iter().filter_map(|report| report.machine.as_ref());
        let limits = machines.flat_map(|machine| &machine.limits);
        let ours = limits.filter(|limit| limit.group == format!("/{name}"));
        ours.map(|limit| limit.throttled_ns).sum::<u64>()
    };
    when_there(|| (held("rest") > 1_000_000_000).then_some(()));
    assert_eq!(held("one"), 0);
    drop(limited);
    // It stays what it was.
    let last = told().unwrap();
    assert!(last >= is, "{last} {is}");
    std::thread::sleep(Duration::from_secs(6));
    assert!(told().unwrap() >= last);
    assert_eq!(agent.end(), Some(0));
}

/// Each sleeps longer than the one before; awake, they are behind one that computes on the same CPU. How long they
/// lived at least and at most.
const SLEEPERS: &str = r#"
import os, subprocess, sys, time
cpu = {max(os.sched_getaffinity(0))}
def low():
    os.sched_setaffinity(0, cpu)
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
def there():
    os.sched_setaffinity(0, cpu)
least, most, begun = 0, 0, {}
for n in range(60):
    seconds = 1.2 + 0.05 * n
    least += int(seconds * 1e9)
    now = time.monotonic_ns()
    begun[subprocess.Popen([sys.argv[1], str(seconds)], preexec_fn=low).pid] = now
busy = subprocess.Popen(['/bin/sh', '-c', 'while :; do :; done'], preexec_fn=there)
end = time.monotonic() + 4.5
while begun:
    pid, _ = os.waitpid(-1, os.WNOHANG)
    if pid in begun:
        most += time.monotonic_ns() - begun.pop(pid)
    elif not pid and time.monotonic() > end:
        busy.kill()
    time.sleep(0.002)
busy.kill()
print(least, most)
"#;

/// Woken and without a CPU as a period ends: what it slept, and how long it has waited, is of the one period or of the
/// other, and not of both.
#[test]
fn who_waits_for_a_cpu_as_a_period_ends_is_there_once() {
    if !needs::bpf() {
        return;
    }
    let mut agent = Agent::start(&recorded("dbq-*", "period = \"2s\"\n"));
    let flight = agent.folder.path().join("flight");
    let program = sleeper(agent.folder.path(), "dbq-one");
    let output = Command::new("/usr/bin/python3")
        .args(["-c", SLEEPERS])
        .arg(&program)
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let [least, most] = [0, 1].map(|at| {
        let word = printed.split_whitespace().nth(at);
        word.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)))
            .parse::<u64>()
            .unwrap()
    });
    assert_eq!(agent.end(), Some(0));
    let web = recordings_of(&flight, "web");
    assert!(web.len() >= 3, "{}", web.len());
    let life = lived(&web, "dbq-one");
    assert!(life >= least && life <= most, "{least} {life} {most}");
    let (slept, _) = waited(&web, "nanosleep");
    assert!(slept <= life, "{slept} {life}");
}

/// A name is anybody's; who names himself anew all the time neither comes into a policy that asks
/// for more than a name, nor takes anything from it.
#[test]
fn names_that_change_all_the_time_harm_no_policy() {
    if !needs::bpf() || !needs::root() {
        return;
    }
    let mut agent = Agent::start(
        "[[policy]]\nname = \"first\"\ncomm = [\"drv-*\"]\nuid = [\"root\"]\nperiod = \"2s\"\n[[policy]]\nname = \"rest\"\n\
         comm = [\"drv-*\", \"drw-*\"]\nperiod = \"2s\"\n[flight]\ndirectory = \"FOLDER/flight\"\n\
         [metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    let folder = agent.folder.path().to_owned();
    let script = "import ctypes, os, time\nend = time.monotonic() + 9\nnames = [b'drv-evil', b'drw-evil']\n\
                  names += [b'drv-' + b'%d' % n for n in range(5000)]\nos.setresuid(65534, 65534, 65534)\n\
                  libc = ctypes.CDLL(None)\nn = 0\n\
                  while time.monotonic() < end:\n    libc.prctl(15, names[n % len(names)], 0, 0, 0)\n    n += 1\nprint(n)\n";
    let evil = Command::new("/usr/bin/python3")
        .args(["-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let victim = sleeper(&folder, "drv-one");
    for _ in 0..3 {
        run(&victim, "2");
    }
    let renamed = evil.wait_with_output().unwrap();
    let renamed: u64 = String::from_utf8(renamed.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(renamed > 50_000, "{renamed}");
    assert_eq!(agent.end(), Some(0));
    let first = recordings_of(&folder.join("flight"), "first");
    let (slept, _) = waited(&first, "nanosleep");
    let life = lived(&first, "drv-one");
    assert!(
        slept <= 6_100_000_000 && life >= 6 * SECOND,
        "{slept} {life}"
    );
    let names = names_of(&first);
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["drv-one"]);
}

/// An agent of that user, with what its unit gives.
fn agent_as(uid: u32, broker: &debox_tests::Broker, config: &str) -> Agent {
    let folder = tempfile::tempdir().unwrap();
    // What was built may lie below somebody's home.
    let program = folder.path().join("debox-agent");
    std::fs::copy(env!("CARGO_BIN_EXE_debox-agent"), &program).unwrap();
    std::fs::write(folder.path().join("agent.toml"), config).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(uid), Some(uid)).unwrap();
    let id = uid.to_string();
    let process = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups"])
        .args(["--inh-caps", "+perfmon,+sys_ptrace"])
        .args(["--ambient-caps", "+perfmon,+sys_ptrace"])
        .arg(&program)
        .args(["agent", "--config"])
        .arg(folder.path().join("agent.toml"))
        .arg("--socket")
        .arg(broker.socket())
        .env_remove("DEBOX_SOCKET")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    Agent::of(process.unwrap(), folder)
}

/// So many policies, each for programs of a name of its own.
fn policies(comm: &str, count: usize, period: &str) -> String {
    let policy = |n| {
        format!("[[policy]]\nname = \"p{n}\"\ncomm = [\"{comm}-{n}\"]\nperiod = \"{period}\"\n")
    };
    let all: String = (0..count).map(policy).collect();
    format!("{all}[flight]\ndirectory = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n")
}

fn reload(agent: &Agent, config: &str) {
    std::fs::write(agent.folder.path().join("agent.toml"), config).unwrap();
    agent.signal(libc::SIGHUP);
}

/// How many threads each has; None: it is none of the file's.
fn policy_threads(agent: &Agent, count: usize) -> Vec<Option<f64>> {
    let figures = agent.metrics();
    let is = values(&figures);
    let of = |n| format!("debox_policy_threads{{policy=\"p{n}\"}}");
    let all = (0..count).map(|n| is.get(of(n).as_str()).copied());
    all.collect()
}

/// Programs that sleep, ended with the test.
struct Sleeping(Vec<Child>);

impl Sleeping {
    fn start(folder: &Path, comm: &str, count: usize) -> Self {
        let one = |n| child(&sleeper(folder, &format!("{comm}-{n}")), &["600"]);
        Self((0..count).map(one).collect())
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// As the packages have it: the broker's maps and the broker itself count, and what it cannot measure is said.
#[test]
fn a_budget_counts_a_broker_that_is_another_process() {
    if !needs::bpf() || !needs::root() {
        return;
    }
    let broker = debox_tests::Broker::start();
    let uid = broker.counters()["broker_uid"].as_u64().unwrap();
    let mut agent = agent_as(
        u32::try_from(uid).unwrap(),
        &broker,
        "[[policy]]\nname = \"web\"\ncomm = [\"dbm-*\"]\n[budget]\ncpu = \"0.01%\"\nmemory = \"1MB\"\n\
         every = \"1s\"\n[flight]\ndirectory = \"\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
    );
    // The broker has no right to switch it on.
    let always = std::fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").unwrap();
    let always = always.trim() == "1";
    if !always {
        let line = agent.says("[budget]: ");
        assert!(line.contains("kernel.bpf_stats_enabled=1"), "{line}");
    }
    let line = agent.says("budget: ");
    assert_eq!(
        line.contains("not measured of it by programs"),
        !always,
        "{line}"
    );
    let (_, tables) = line.split_once("of memory, ").unwrap();
    let (tables, _) = tables.split_once(" MB of it tables").unwrap();
    // Of the account alone.
    assert!(tables.parse::<u64>().unwrap() >= 5, "{line}");
    let figures = agent.metrics();
    let is = values(&figures);
    assert!(
        is["debox_agent_memory_bytes{what=\"broker\"}"] > 100_000.0,
        "{figures}"
    );
    assert!(is.contains_key("debox_agent_cpu_ratio{what=\"broker\"}"));
    assert_eq!(is.contains_key(PROGRAMS_CPU), always, "{figures}");
    assert_eq!(agent.end(), Some(0));
}

/// As the packages have it: the agent is the broker's own user, who is not root.
#[test]
fn as_many_policies_as_a_file_may_have_need_no_root() {
    if !needs::bpf() || !needs::root() {
        return;
    }
    let broker = debox_tests::Broker::start();
    let uid = broker.counters()["broker_uid"].as_u64().unwrap();
    let uid = u32::try_from(uid).unwrap();
    assert_ne!(uid, 0);
    let most = 16;
    let mut agent = agent_as(uid, &broker, &policies("dbz", most, "3s"));
    let sleeping = Sleeping::start(agent.folder.path(), "dbz", most);
    let all = || {
        policy_threads(&agent, most)
            .iter()
            .all(|is| *is == Some(1.0))
    };
    when_there(|| all().then_some(()));
    // All of them anew, beside those that there are.
    reload(&agent, &policies("dbz", most, "2s"));
    let mut said = String::new();
    while !said.contains("read again") {
        said += &agent.says("");
    }
    // And over ends of their periods.
    std::thread::sleep(Duration::from_secs(5));
    let threads = policy_threads(&agent, most);
    assert!(threads.iter().all(|is| *is == Some(1.0)), "{threads:?}");
    drop(sleeping);
    assert_eq!(agent.end(), Some(0));
    agent.said.read_to_string(&mut said).unwrap();
    for lack in ["accounts open", "not watched", "the period goes on"] {
        assert!(!said.contains(lack), "{said}");
    }
}

/// What could not begin is said, shown, and tried again; also where none of the file's could. Periods of those that
/// could come to their ends meanwhile.
#[test]
fn a_policy_that_finds_no_room_waits_for_it() {
    if !needs::bpf() || !needs::root() {
        return;
    }
    let broker = debox_tests::Broker::start();
    let uid = 65_534;
    let flight = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(flight.path(), Some(uid), Some(uid)).unwrap();
    let policies = |count| {
        let recorded = format!("directory = \"{}\"", flight.path().display());
        policies("dby", count, "2s").replace("directory = \"\"", &recorded)
    };
    let ended = |n: usize| {
        let end = format!(".p{n}.debox");
        let names = std::fs::read_dir(flight.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(&end)).count()
    };
    // Somebody who may have eight accounts.
    let mut agent = agent_as(uid, &broker, &policies(1));
    let sleeping = Sleeping::start(agent.folder.path(), "dby", 10);
    reload(&agent, &policies(10));
    let line = agent.says("is not watched, and is tried again");
    assert!(line.contains("policy p7: "), "{line}");
    assert!(line.contains("the limit of one user is 8"), "{line}");
    let count = |of: f64| {
        let threads = policy_threads(&agent, 10);
        threads.iter().filter(|is| **is == Some(of)).count()
    };
    // The one of before has made room for one more, which ends of periods need.
    when_there(|| (count(1.0) == 7).then_some(()));
    let before: Vec<usize> = (0..7).map(ended).collect();
    let turned = || (0..7).all(|n| ended(n) >= before[n] + 3);
    when_there(|| turned().then_some(()));
    assert_eq!((count(1.0), count(0.0)), (7, 3));
    // All room but that is taken by those of before.
    reload(&agent, &policies(5));
    let line = agent.says("policy p1: ");
    assert!(
        line.contains("is not watched, and is tried again"),
        "{line}"
    );
    let (some, none) = (Some(1.0), None);
    let due = [some, some, some, some, some, none, none, none, none, none];
    when_there(|| (policy_threads(&agent, 10) == due).then_some(()));
    drop(sleeping);
    assert_eq!(agent.end(), Some(0));
    let mut said = String::new();
    agent.said.read_to_string(&mut said).unwrap();
    assert!(!said.contains("the period goes on"), "{said}");
}

/// At its start as well; the one that begins last is not watched rather than that no period ended.
#[test]
fn a_policy_that_finds_no_room_as_the_agent_starts_waits_for_it() {
    if !needs::bpf() || !needs::root() {
        return;
    }
    let broker = debox_tests::Broker::start();
    // Somebody who may have eight accounts.
    let mut agent = agent_as(65_534, &broker, &policies("dbx", 8, "2s"));
    let sleeping = Sleeping::start(agent.folder.path(), "dbx", 8);
    let mut due = vec![Some(1.0); 8];
    due[7] = Some(0.0);
    when_there(|| (policy_threads(&agent, 8) == due).then_some(()));
    // One less has room.
    reload(&agent, &policies("dbx", 7, "2s"));
    due[7] = None;
    when_there(|| (policy_threads(&agent, 8) == due).then_some(()));
    drop(sleeping);
    assert_eq!(agent.end(), Some(0));
}

/// What a person asks for is his as long as he does, over ends of the agent's periods as well; then it
/// is the agent's again.
#[test]
fn who_is_attached_to_beside_the_agent_comes_back_to_it() {
    if !needs::bpf() {
        return;
    }
    let broker = debox_tests::Broker::start();
    let mut agent = Agent::start_with(
        "[[policy]]\nname = \"web\"\ncomm = [\"dbc-*\"]\nperiod = \"2s\"\n[budget]\ncpu = \"1000%\"\n\
         [flight]\ndirectory = \"FOLDER/flight\"\n[metrics]\nlisten = \"127.0.0.1:0\"\n",
        &["--socket", broker.socket().to_str().unwrap()],
    );
    let folder = agent.folder.path().to_owned();
    let mut sleeping = child(&sleeper(&folder, "dbc-one"), &["9"]);
    std::thread::sleep(Duration::from_millis(1_500));
    let recording = folder.join("mine.debox");
    let mut attached = Command::new(debox_tests::debox())
        .args(["attach", "--capture=sleeps", "--socket"])
        .arg(broker.socket())
        .arg("-o")
        .arg(&recording)
        .args(["-p", &sleeping.id().to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(attached.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    std::thread::sleep(Duration::from_millis(4_500));
    // SAFETY: kill touches no memory; it is our own child.
    unsafe { libc::kill(i32::try_from(attached.id()).unwrap(), libc::SIGINT) };
    assert!(attached.wait().unwrap().success(), "{line}");
    assert!(sleeping.wait().unwrap().success());
    assert_eq!(agent.end(), Some(0));
    let mine = lived(&[debox_record::read(&recording).unwrap()], "dbc-one");
    let agents = lived(&recordings(&folder.join("flight")), "dbc-one");
    // Also what lies behind ends of the agent's periods.
    assert!(mine > 4_400_000_000, "{mine} {agents}");
    assert!(agents > 2_000_000_000, "{mine} {agents}");
    // Between his last look and his letting go it is nobody's.
    let all = mine + agents;
    assert!((8 * SECOND..10 * SECOND).contains(&all), "{mine} {agents}");
}
