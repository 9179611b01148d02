// SPDX-License-Identifier: MIT OR Apache-2.0
//! Does a spliced program do what it does otherwise, and is each call counted as strace counts it?

use debox_command::{Environment, Hold, Inherited, Program, Start};
use debox_splice::{Counted, Run, Sampling};
use debox_symbol::syscall_name;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// target/release, where the tests lie one folder deeper.
fn built() -> PathBuf {
    let me = std::env::current_exe().unwrap();
    me.parent().and_then(Path::parent).unwrap().to_owned()
}

fn images() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn compile(compiler: &str, source: &Path, program: &Path) {
    compile_with(compiler, &[], source, program);
}

fn compile_with(compiler: &str, options: &[&str], source: &Path, program: &Path) {
    let built = std::process::Command::new(compiler)
        .args(options)
        .args(["-O2", "-o"])
        .args([program, source])
        .arg("-lpthread")
        .status();
    assert!(
        built.is_ok_and(|built| built.success()),
        "{compiler} is needed"
    );
}

/// Its exit status, and what was counted.
fn spliced(folder: &Path, words: &[&str]) -> (i32, Counted) {
    spliced_by(folder, words, None)
}

/// Of calls of any length, as soon as one is known.
const ONE_IN_16: Sampling = Sampling {
    one_in: 16,
    after: 1,
    below_ns: u64::MAX,
};

fn spliced_by(folder: &Path, words: &[&str], sampling: Option<Sampling>) -> (i32, Counted) {
    let run = Run::new(folder, &built().join("debox-splice.bin"), 1 << 31).unwrap();
    if let Some(rule) = sampling {
        run.sample(rule);
    }
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let program = Program::resolve(&words).unwrap();
    let environment = Environment::inherited();
    // Once: from then on signals are blocked here. SIGPIPE, which Rust's runtime has ignored, as
    // std::process does for strace's.
    static INHERITED: LazyLock<Inherited> = LazyLock::new(|| {
        // SAFETY: no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        Inherited::take()
    });
    let inherited = &*INHERITED;
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .unwrap();
    let start = Start {
        streams: [Some(null.as_fd()).filter(|_| std::env::var("DEBOX_SPLICE_SHOW").is_err()); 3],
        ..Start::new(&program, &environment, inherited)
    };
    let held = start.hold(Hold::Asleep, || Ok(())).unwrap();
    let following = run.follow(held.pid()).unwrap();
    let mut child = held.start().unwrap();
    following.begun();
    let ended = loop {
        if let Some(ended) = child.ended() {
            break ended;
        }
        run.samples_look(&|_| 0).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    (ended.status(), run.counted().unwrap())
}

/// Ends that strace does not count, what is left on purpose, and the execve that begins it all.
const NOT_HELD_AGAINST: [&str; 3] = ["exit", "exit_group", "rt_sigreturn"];

type Counts = BTreeMap<String, (u64, u64)>;

/// What strace writes of a command; None: it is not here.
fn strace(options: &[&str], words: &[&str]) -> Option<String> {
    let out = tempfile::NamedTempFile::new().unwrap();
    let done = std::process::Command::new("strace")
        .arg("-f")
        .args(options)
        .arg("-o")
        .arg(out.path())
        .args(words)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status();
    done.ok()?;
    let written = std::fs::read(out.path()).unwrap();
    Some(String::from_utf8_lossy(&written).into_owned())
}

/// Calls and errors by name, as strace counts them.
fn strace_counts(words: &[&str]) -> Option<Counts> {
    let mut counts = Counts::new();
    for line in strace(&["-c"], words)?.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (Some(Ok(calls)), Some(name)) = (words.get(3).map(|n| n.parse()), words.last()) else {
            continue;
        };
        let errors = if words.len() > 5 {
            words[4].parse().unwrap()
        } else {
            0
        };
        if *name != "total" && !NOT_HELD_AGAINST.contains(name) {
            counts.insert((*name).to_owned(), (calls, errors));
        }
    }
    Some(counts)
}

/// Whether a command reads its own mappings, as grep does to know its stack: those of a spliced
/// program are others, and the kernel hands out whole lines, so that the number of reads follows
/// the length of the paths.
fn reads_its_mappings(words: &[&str]) -> bool {
    strace(&["-e", "trace=open,openat"], words).is_some_and(|opened| opened.contains("/maps\""))
}

fn by_name(counted: &Counted) -> Counts {
    let all = counted
        .calls
        .iter()
        .enumerate()
        .filter(|(_, sums)| sums.count > 0);
    let mut counts: Counts = all
        .map(|(nr, sums)| {
            (
                syscall_name(nr as i32, false).into_owned(),
                (sums.count, sums.errors),
            )
        })
        .filter(|(name, _)| !NOT_HELD_AGAINST.contains(&name.as_str()))
        .collect();
    // The first one is ours.
    counts.entry("execve".into()).or_default().0 += 1;
    counts
}

/// What was counted otherwise, by name.
fn differences(expected: &Counts, found: &Counts) -> BTreeMap<String, String> {
    let names: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    (names.into_iter())
        .map(|name| (name, expected.get(name), found.get(name)))
        .filter(|(_, expected, found)| expected != found)
        .map(|(name, expected, found)| {
            let text = format!("strace {expected:?}, spliced {found:?}");
            (name.clone(), text)
        })
        .collect()
}

/// Programs that make the same calls each time.
const SAME_EACH_TIME: [&str; 30] = [
    "/bin/true",
    "ls -la /usr/lib",
    "cat /etc/passwd /nonexistent",
    "sh -c true;/bin/true;/bin/false;exit_3",
    "sh -c cat</etc/passwd|sort|uniq>/dev/null",
    "find /etc/apt",
    "tar cf /dev/null /etc/apt",
    "grep -r root /etc/apt",
    "awk BEGIN{for(i=0;i<1000;i++)print(i)}",
    "sed -n p /etc/passwd",
    "perl -e print(1)",
    "git --version",
    "env nonexistent-program",
    "dd if=/dev/zero of=/dev/null bs=64k count=100",
    "sort /etc/passwd",
    "wc /etc/services",
    "md5sum /etc/passwd",
    "date -u",
    "id -u",
    "/usr/bin/python3 -S -E -c pass",
    "gzip -c /etc/services",
    "stat /etc/passwd",
    "make --version",
    "sqlite3 :memory: select(1)",
    "du -s /etc/apt",
    "seq 1000",
    // It looks first whether the command has ended, and then waits.
    "timeout 5 sleep 0.2",
    "xargs -a /etc/hostname echo",
    "file /etc/passwd",
    "dpkg --version",
];

fn words_of(command: &str) -> Vec<&str> {
    match command.strip_prefix("sh -c ") {
        Some(script) => vec!["sh", "-c", script],
        None => command.split(' ').collect(),
    }
}

#[test]
fn each_call_is_counted_as_strace_counts_it() {
    as_strace_counts(None);
}

#[test]
fn calls_without_stamps_are_counted_as_strace_counts_them() {
    as_strace_counts(Some(ONE_IN_16));
}

fn as_strace_counts(sampling: Option<Sampling>) {
    let folder = images();
    let mut compared = 0;
    for command in SAME_EACH_TIME {
        let words = words_of(command);
        if debox_command::find(std::ffi::OsStr::new(words[0])).is_err() {
            eprintln!("{command}: {} is not here", words[0]);
            continue;
        }
        let Some(expected) = strace_counts(&words) else {
            eprintln!("NOT RUN: needs strace");
            return;
        };
        let (_, counted) = spliced_by(folder.path(), &words, sampling);
        let mut differ = differences(&expected, &by_name(&counted));
        if reads_its_mappings(&words) {
            differ.remove("read");
        }
        let all = Counted {
            calls: Vec::new(),
            ..counted
        };
        assert!(differ.is_empty(), "{command}: {differ:#?}; {all:?}");
        compared += 1;
    }
    assert!(
        compared >= 25,
        "{compared}: programs of the others are missing here"
    );
}

/// Children that share its memory until they execute something, one of which cannot.
const SPAWNS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static char *words[] = { "true", NULL };
static int spawns(const char *path, posix_spawn_file_actions_t *files, posix_spawnattr_t *how)
{
	pid_t child;
	int status, error = posix_spawn(&child, path, files, how, words, environ);
	if (error)
		return error;
	return waitpid(child, &status, 0) != child || status ? -1 : 0;
}
int main(void)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t how;
	sigset_t all;
	FILE *pipe;
	int status;
	pid_t child;
	sigfillset(&all);
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_addclose(&files, 2);
	posix_spawnattr_init(&how);
	posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setsigmask(&how, &all);
	posix_spawnattr_setpgroup(&how, 0);
	for (int i = 0; i < 5; i++) {
		if (spawns("/bin/true", NULL, NULL) || spawns("/bin/true", &files, &how))
			return 1;
		/* Some folders of PATH have it not. */
		if (posix_spawnp(&child, "true", NULL, NULL, words, environ) || waitpid(child, &status, 0) != child || status)
			return 2;
	}
	if (spawns("/nonexistent", NULL, NULL) != ENOENT)
		return 3;
	status = system("/bin/true; exit 3");
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 3 || system("/bin/true; /bin/true"))
		return 4;
	pipe = popen("echo x", "r");
	if (!pipe || fgetc(pipe) != 'x' || pclose(pipe))
		return 5;
	return 7;
}
"#;

#[test]
fn children_that_the_c_library_makes_are_counted_as_strace_counts_them() {
    let folder = images();
    let source = folder.path().join("spawns.c");
    std::fs::write(&source, SPAWNS).unwrap();
    let program = folder.path().join("spawns");
    compile("cc", &source, &program);
    let words = [program.to_str().unwrap()];
    let Some(expected) = strace_counts(&words) else {
        eprintln!("NOT RUN: needs strace");
        return;
    };
    // Fifteen and one in vain by posix_spawn, three shells, and what these make.
    let made: u64 = (["clone", "clone3", "vfork", "fork"].iter())
        .filter_map(|name| expected.get(*name))
        .map(|(calls, _)| calls)
        .sum();
    assert!(made >= 19, "{expected:?}");
    for sampling in [None, Some(ONE_IN_16)] {
        let (status, counted) = spliced_by(folder.path(), &words, sampling);
        assert_eq!(status, 7, "{:?}", counted.why);
        let differ = differences(&expected, &by_name(&counted));
        assert!(differ.is_empty(), "{differ:#?}");
    }
}

/// Cancelled threads, exceptions out of handlers, backtraces and jumps.
#[test]
fn an_unwinder_finds_its_way_through_a_spliced_call() {
    let folder = images();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/splice/unwind.cc");
    let program = folder.path().join("unwind");
    compile("c++", &source, &program);
    for sampling in [None, Some(ONE_IN_16)] {
        let (status, counted) = spliced_by(folder.path(), &[program.to_str().unwrap()], sampling);
        let read = &counted.calls[0];
        let all = Counted {
            calls: Vec::new(),
            ..counted.clone()
        };
        assert_eq!(status, 0, "{all:?}");
        assert_eq!(
            (all.programs, all.programs_left, all.files_left),
            (1, 0, 0),
            "{all:?}"
        );
        // Each ended by its signal: cancelled, thrown out of, interrupted, jumped out of.
        assert!(read.errors >= 20, "{read:?}");
    }
}

/// The unwinder of a program that is one file is told by the file's own code. Without its names nobody knows where: then
/// nothing of it is spliced.
#[test]
fn an_unwinder_of_a_program_of_one_file_is_told_or_it_is_left() {
    let folder = images();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/splice/unwind.cc");
    for (options, left) in [
        (&["-DONE_FILE", "-static"][..], false),
        (&["-DONE_FILE", "-static-pie", "-fPIE"], false),
        (&["-DONE_FILE", "-static", "-s"], true),
        (&["-DONE_FILE", "-static-pie", "-fPIE", "-s"], true),
    ] {
        let program = folder.path().join(format!("unwind{}", options.concat()));
        compile_with("c++", options, &source, &program);
        let table = debox_splice::Table::of(&std::fs::read(&program).unwrap()).unwrap();
        assert_eq!(table.knows_its_calls, left, "{options:?}");
        assert_eq!(
            debox_splice::Table::parse(&table.to_bytes()).unwrap(),
            table
        );
        let (status, counted) = spliced(folder.path(), &[program.to_str().unwrap()]);
        let read = &counted.calls[0];
        assert_eq!(
            (status, counted.programs_left),
            (0, u64::from(left)),
            "{options:?}"
        );
        assert_eq!(read.errors >= 20, !left, "{options:?}: {read:?}");
    }
}

/// Calls that stay where they are, as in glibc from 2.41 on: whoever calls their function is replaced.
#[test]
fn calls_that_are_made_in_place_are_counted() {
    let folder = images();
    let text = in_place_c();
    for text in [text.clone(), format!("#define MARKED\n{text}")] {
        let source = folder.path().join("in_place.c");
        std::fs::write(&source, text).unwrap();
        let program = folder.path().join("in_place");
        compile("cc", &source, &program);
        let file = std::fs::read(&program).unwrap();
        let table = debox_splice::Table::of(&file).unwrap();
        assert!(!table.knows_its_calls);
        assert!(table.sites.iter().any(|site| site.callee().is_some()));
        for sampling in [None, Some(ONE_IN_16)] {
            let words = [program.to_str().unwrap()];
            let (status, counted) = spliced_by(folder.path(), &words, sampling);
            assert_eq!(status, 7, "{counted:?}");
            const READ: usize = 0;
            const GETPPID: usize = 110;
            // Two that wait, one of them jumped out of, and 100 that fail of each; each signal asks once more.
            let read = &counted.calls[READ];
            assert_eq!(read.errors, 201, "{read:?}");
            let getppid = counted.calls[GETPPID].count;
            assert!((2042..=2043).contains(&getppid), "{getppid}");
        }
    }
}

fn in_place_c() -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/splice/in_place.c");
    std::fs::read_to_string(source).unwrap()
}

/// Where it is not known who calls the function that makes them, the file is left.
#[test]
fn a_function_of_calls_in_place_that_anybody_may_call_is_left() {
    let folder = images();
    let text = in_place_c();
    for more in ["jmp made", "call made + 11", "call *slot(%rip)"] {
        let source = folder.path().join("more.c");
        let more = format!(
            "__asm__(\".data\\nslot: .quad made\\n.text\\n.type more,@function\\nmore: {more}\\nret\\n\
             .size more, . - more\\n\");\n"
        );
        std::fs::write(&source, format!("{text}\n{more}")).unwrap();
        let program = folder.path().join("more");
        compile("cc", &source, &program);
        let table = debox_splice::Table::of(&std::fs::read(&program).unwrap()).unwrap();
        assert!(table.knows_its_calls, "{more}");
    }
}

/// What of a program that is not spliced is said.
#[test]
fn a_program_that_cannot_be_followed_is_counted_as_left() {
    let folder = images();
    // A filter that looks at where calls are made: from there on it is as if nothing was.
    let script = "import ctypes, struct\n\
        libc = ctypes.CDLL(None)\n\
        code = b''.join(struct.pack('HBBI', *i) for i in [(0x20, 0, 0, 8), (6, 0, 0, 0x7fff0000)])\n\
        buffer = ctypes.create_string_buffer(code)\n\
        program = struct.pack('HxxxxxxP', 2, ctypes.addressof(buffer))\n\
        assert libc.prctl(38, 1, 0, 0, 0) == 0\n\
        assert libc.prctl(22, 2, ctypes.create_string_buffer(program)) == 0\n\
        import os\n\
        for i in range(1000): os.getppid()\n";
    let (status, counted) = spliced(folder.path(), &["/usr/bin/python3", "-c", script]);
    assert_eq!(status, 0);
    assert_eq!(counted.undone, 1);
    const GETPPID: usize = 110;
    assert_eq!(counted.calls[GETPPID].count, 0, "it was put back before");
}

/// A program begins with blocks for 31 threads. A child of a fork has those of its parent, and
/// each finds more for itself.
#[test]
fn each_of_hundreds_of_threads_is_counted() {
    let folder = images();
    let script = "import os, threading\n\
        def crowd(n):\n  \
          gate = threading.Barrier(n)\n  \
          def one():\n    \
            gate.wait()\n    \
            for i in range(10): os.getppid()\n    \
            gate.wait()\n  \
          all = [threading.Thread(target=one) for _ in range(n)]\n  \
          for t in all: t.start()\n  \
          for t in all: t.join()\n\
        crowd(50)\n\
        if os.fork() == 0:\n  \
          crowd(100); os._exit(0)\n\
        crowd(150)\n\
        os._exit(os.wait()[1])\n";
    let (status, counted) = spliced(folder.path(), &["/usr/bin/python3", "-c", script]);
    assert_eq!(status, 0);
    assert_eq!(counted.threads_lost, 0);
    const GETPPID: usize = 110;
    assert_eq!(counted.calls[GETPPID].count, 10 * (50 + 100 + 150));
}

/// Threads that look whether registers come back from their calls as they were.
const THREADS: &str = r#"
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>
static pthread_barrier_t gate;
static int fd, bad;
static void *one(void *which)
{
	char bytes[64];
	const long count = (long)which % 60 + 1;
	pthread_barrier_wait(&gate);
	for (int i = 0; i < 200; i++) {
		register long rdx asm("rdx") = count;
		register long r10 asm("r10") = 0;
		long got;
		asm volatile("syscall" : "=a"(got), "+r"(rdx) : "a"(17), "D"(fd), "S"(bytes), "r"(r10)
			     : "rcx", "r11", "memory");
		if (got != count || rdx != count)
			__sync_fetch_and_add(&bad, 1);
		getppid();
	}
	pthread_barrier_wait(&gate);
	return NULL;
}
int main(int argc, char **argv)
{
	const long n = atol(argv[1]);
	pthread_t *threads = calloc(n, sizeof(*threads));
	pthread_attr_t small;
	struct sock_filter all[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog filter = { 1, all };
	if (argc > 2 && (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
			 prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)))
		return 3;
	fd = open("/etc/passwd", O_RDONLY);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 65536);
	pthread_barrier_init(&gate, NULL, n);
	for (long i = 0; i < n; i++)
		if (pthread_create(&threads[i], &small, one, (void *)i))
			return 2;
	for (long i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	return bad ? 1 : 0;
}
"#;

fn threads(folder: &Path) -> String {
    let (source, program) = (folder.join("t.c"), folder.join("threads"));
    std::fs::write(&source, THREADS).unwrap();
    compile("cc", &source, &program);
    program.into_os_string().into_string().unwrap()
}

/// Beyond what an area holds threads are not counted, and go on as any other.
#[test]
fn threads_beyond_an_area_run_as_they_would() {
    let folder = images();
    let program = &threads(folder.path());
    // Who has given up rights shares no more of the area than it had.
    let (status, _) = spliced(folder.path(), &[program, "200", "rights"]);
    assert_eq!(status, 0, "registers that did not come back");
    let (status, counted) = spliced(folder.path(), &[program, "1100"]);
    assert_eq!(status, 0, "registers that did not come back");
    // The first thread has one of 1,023 places.
    assert_eq!(counted.threads_lost, 1100 - 1022);
    const GETPPID: usize = 110;
    assert_eq!(counted.calls[GETPPID].count, 200 * 1022);
}

/// Threads that its own calls make would all have one block: so nothing of the program is spliced.
#[test]
fn a_program_whose_c_library_cannot_be_replaced_goes_on_without() {
    let folder = images();
    let program = &threads(folder.path());
    let (status, _) = spliced(folder.path(), &["true"]);
    assert_eq!(status, 0);
    let libc = std::fs::metadata("/lib/x86_64-linux-gnu/libc.so.6")
        .unwrap()
        .ino();
    let libc = format!("{libc:016x}");
    let mut there = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.get(18..34) == Some(&libc) && !name.contains('.') {
            // What is made anew cannot take its place.
            std::fs::remove_file(entry.path()).unwrap();
            std::fs::create_dir(entry.path()).unwrap();
            std::fs::create_dir(folder.path().join(name + "a")).unwrap();
            there += 1;
        }
    }
    assert_eq!(there, 1);
    let (status, counted) = spliced(folder.path(), &[program, "200"]);
    assert_eq!(status, 0, "registers that did not come back");
    assert_eq!(counted.undone, 1);
}

/// A process that gives up rights could else write where its parent's trampolines jump to, be its
/// block among the first or in what was mapped later.
#[test]
fn whoever_gives_up_rights_shares_nothing_any_more() {
    let folder = images();
    let script = "import ctypes, os, struct, threading\n\
        def gives_up():\n  \
          global status\n  \
          if os.fork() == 0:\n    \
            libc = ctypes.CDLL(None)\n    \
            allow = ctypes.create_string_buffer(struct.pack('HBBI', 6, 0, 0, 0x7fff0000))\n    \
            program = struct.pack('HxxxxxxP', 1, ctypes.addressof(allow))\n    \
            assert libc.prctl(38, 1, 0, 0, 0) == 0\n    \
            assert libc.prctl(22, 2, ctypes.create_string_buffer(program)) == 0\n    \
            for i in range(1000): os.getppid()\n    \
            shared = [l for l in open('/proc/self/maps') if 'debox-splice (deleted)' in l]\n    \
            os._exit(len(shared))\n  \
          status = os.wait()[1]\n\
        over = threading.Event()\n\
        crowd = [threading.Thread(target=over.wait) for _ in range(40)]\n\
        for t in crowd: t.start()\n\
        last = threading.Thread(target=gives_up)\n\
        last.start(); last.join(); over.set()\n\
        for t in crowd: t.join()\n\
        for i in range(500): os.getppid()\n\
        os._exit(status >> 8)\n";
    let (status, counted) = spliced(folder.path(), &["/usr/bin/python3", "-c", script]);
    assert_eq!(status, 0, "mappings that are still shared");
    const GETPPID: usize = 110;
    assert_eq!(counted.calls[GETPPID].count, 500, "the parent's");
    assert_eq!(counted.programs_left, 1, "{:?}", counted.why);
}

/// The folder of the images has to be ours alone.
#[test]
fn a_folder_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = images();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let refused = Run::new(folder.path(), &built().join("debox-splice.bin"), 1 << 31);
    let why = refused.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(why.contains("nobody else can write"), "{why}");
}

/// Calls of all kinds of results, by trampolines that know the number and by one that does not; reads that take
/// little and much, in turns; handlers that make calls, and that jump out of one. It says how often it made what.
const CHEAP: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static volatile long handled, jumped;
static __thread sigjmp_buf back;
static volatile sig_atomic_t jumps;
static long call(long nr, long a, long b, long c)
{
	register long r10 asm("r10") = 1010, r8 asm("r8") = 808, r9 asm("r9") = 909;
	long rdx = c, got;
	asm volatile("syscall" : "=a"(got), "+r"(rdx), "+r"(r10), "+r"(r8), "+r"(r9)
		     : "a"(nr), "D"(a), "S"(b) : "rcx", "r11", "memory");
	if (rdx != c || r10 != 1010 || r8 != 808 || r9 != 909)
		_exit(9);
	return got;
}
static void handler(int n)
{
	(void)n;
	for (int i = 0; i < 3; i++)
		syscall(SYS_getuid);
	handled++;
	if (jumps) {
		jumped++;
		siglongjmp(back, 1);
	}
}
static void *calls(void *which)
{
	const long n = (long)which, parent = getppid();
	for (long i = 0; i < n; i++) {
		if (syscall(SYS_getppid) != parent || call(SYS_close, -1, 0, 77 + i) != -EBADF ||
		    access("/nonexistent", F_OK) != -1 || errno != ENOENT)
			_exit(8);
	}
	return NULL;
}
int main(int argc, char **argv)
{
	/* On no machine in less than some microseconds. */
	static char large[1 << 20];
	const long n = atol(argv[2]);
	struct sigaction act = { .sa_handler = handler, .sa_flags = SA_RESTART };
	timer_t timer;
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	struct itimerspec often = { { 0, 50000 }, { 0, 50000 } }, never = { { 0, 0 }, { 0, 0 } };
	const int zero = open("/dev/zero", O_RDONLY);
	pthread_t thread[3];
	FILE *file;
	calls((void *)n);
	for (int i = 0; i < 3; i++)
		pthread_create(&thread[i], NULL, calls, (void *)n);
	for (int i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	for (long i = 0; i < n / 10; i++)
		if (read(zero, large, 1) != 1 || read(zero, large, sizeof(large)) != sizeof(large))
			return 7;
	sigaction(SIGUSR1, &act, NULL);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &often, NULL);
	for (long i = 0; i < 5 * n; i++)
		if (call(SYS_getpgrp, 0, 0, i) != getpgid(0))
			return 6;
	while (jumped < 200)
		if (!sigsetjmp(back, 1)) {
			jumps = 1;
			for (;;)
				call(SYS_getgid, 0, 0, 5);
		}
	jumps = 0;
	timer_settime(timer, 0, &never, NULL);
	file = fopen(argv[1], "w");
	fprintf(file, "%ld\n", handled);
	return fclose(file) ? 5 : 0;
}
"#;

/// Neither of the counts is an estimate, and what is left out of the times is what it should be.
#[test]
fn what_is_not_stamped_is_counted() {
    const N: u64 = 200_000;
    let folder = images();
    let place = |name: &str| {
        folder
            .path()
            .join(name)
            .into_os_string()
            .into_string()
            .unwrap()
    };
    std::fs::write(place("cheap.c"), CHEAP).unwrap();
    let (program, told) = (place("cheap"), place("told"));
    compile("cc", Path::new(&place("cheap.c")), Path::new(&program));
    let words = [program.as_str(), &told, &N.to_string()];
    let rule = Sampling {
        after: 1000,
        ..ONE_IN_16
    };
    let (status, counted) = spliced_by(folder.path(), &words, Some(rule));
    assert_eq!(status, 0);
    let handled: u64 = std::fs::read_to_string(told)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let of = |nr: i64| &counted.calls[nr as usize];
    assert_eq!(of(libc::SYS_getppid).count, 4 * N + 4);
    assert_eq!(of(libc::SYS_close).errors, 4 * N);
    let asked = of(libc::SYS_access);
    let missing = asked.missing - (asked.count - 4 * N);
    assert_eq!((missing, asked.errors), (4 * N, asked.missing));
    assert_eq!(of(libc::SYS_getuid).count, 3 * handled);
    assert_eq!(of(libc::SYS_getpgrp).count, 5 * N);
    assert_eq!(of(libc::SYS_getpgid).count, 5 * N);
    assert!(
        handled > 200 && counted.abandoned > 0,
        "{handled} {}",
        counted.abandoned
    );
    let read = of(libc::SYS_read);
    let ones = N / 10..N / 10 + 10;
    assert!(ones.contains(&read.ones), "{}", read.ones);
    for nr in [
        libc::SYS_getppid,
        libc::SYS_close,
        libc::SYS_access,
        libc::SYS_getpgrp,
        libc::SYS_read,
    ] {
        let sums = of(nr);
        let stamped: u64 = sums.hist.iter().sum();
        let all = (
            nr,
            sums.count,
            stamped,
            sums.unstamped,
            sums.wall_ns,
            sums.estimated_ns,
        );
        assert_eq!(stamped + sums.unstamped, sums.count, "{all:?}");
        // Some of the first ones were stamped, before anybody looked; and all while a busy machine made them long.
        assert!(sums.unstamped > 0, "{all:?}");
        assert!(stamped > sums.unstamped / 20, "{all:?}");
        let mean = sums.wall_ns as f64 / stamped as f64;
        let estimate = sums.estimated_ns as f64 / sums.unstamped as f64;
        // Waits for a CPU are in both, and there are few of them.
        assert!((0.1..10.0).contains(&(estimate / mean)), "{all:?}");
    }
    // Those that come in turns are all met.
    let from = debox_abi::hist_bucket(4000);
    let (short, long): (u64, u64) = (
        read.hist[..from].iter().sum(),
        read.hist[from..].iter().sum(),
    );
    let share = short as f64 / (short + long) as f64;
    assert!((0.4..0.6).contains(&share), "{short} of {}", short + long);
}

const GO_EXECUTES: &str = r#"
package main

import ("os"; "os/exec")

func main() {
	for i := 0; i < 50; i++ {
		if exec.Command("/bin/true").Run() != nil {
			os.Exit(1)
		}
	}
}
"#;

/// Go's vfork keeps its return address off the stack for the call, and has room for a jump only with what saves it again.
#[test]
fn what_go_programs_execute_is_counted() {
    let folder = images();
    let (source, program) = (folder.path().join("go.go"), folder.path().join("go"));
    let words = [program.to_str().unwrap()];
    // As most of them are given away.
    let stripped = "-ldflags=-s -w";
    for (kind, flags, cgo, sampling) in [
        ("exe", "-ldflags=", "0", None),
        ("exe", "-ldflags=", "0", Some(ONE_IN_16)),
        ("exe", stripped, "0", None),
        ("pie", stripped, "0", None),
        ("exe", stripped, "1", None),
        ("pie", stripped, "1", None),
    ] {
        let text = match cgo {
            "0" => GO_EXECUTES.to_owned(),
            _ => GO_EXECUTES.replace("import (", "import \"C\"\n\nimport ("),
        };
        std::fs::write(&source, text).unwrap();
        let built = std::process::Command::new("go")
            .args(["build", "-buildmode", kind, flags, "-o"])
            .args([&program, &source])
            .env("CGO_ENABLED", cgo)
            .env("GOCACHE", folder.path().join("cache"))
            .env("GO111MODULE", "off")
            .status();
        assert!(
            built.is_ok_and(|built| built.success()),
            "golang-go is needed"
        );
        let (status, counted) = spliced_by(folder.path(), &words, sampling);
        assert_eq!(status, 0, "{:?}", counted.why);
        let of = |nr: i64| counted.calls[nr as usize].count;
        let children = of(libc::SYS_clone) + of(libc::SYS_clone3) + of(libc::SYS_vfork);
        assert!(children >= 50, "{kind} {flags} {cgo}: {children}");
        // The first one is of who begins it all.
        assert_eq!(of(libc::SYS_execve), 50);
        // Go's library looks by a child of its own what a descriptor of a process can do.
        assert!(of(libc::SYS_exit_group) >= 51);
        assert!(counted.places.is_empty(), "{:?}", counted.places);
    }
}
