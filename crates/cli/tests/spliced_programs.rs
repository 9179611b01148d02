// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that do with stacks, threads, calls and their own code what few do: do they end as they do without, and is
//! each call counted?

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

#[path = "common/splice.rs"]
mod splice;

use splice::{NOBODY, Place, Who, count, needs, notes, row, sum, users};

/// One of `tests/splice`, built here.
fn built(place: &Place, name: &str) -> String {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/splice");
    place.program_of(name, &sources.join(format!("{name}.c")))
}

/// How it ends without.
fn bare(words: &[&str]) -> Option<i32> {
    let done = Command::new(words[0]).args(&words[1..]).output().unwrap();
    done.status.code()
}

fn errors(report: &Value, call: &str) -> u64 {
    sum(report, call, "errors")
}

fn wall_ms(report: &Value, call: &str) -> u64 {
    sum(report, call, "wall_ns") / 1_000_000
}

/// Spliced, as root and as somebody: it ends as it does bare, and nothing is missing.
fn each(name: &str, check: impl Fn(Who, &Value)) {
    for user in users() {
        let place = Place::new();
        let program = built(&place, name);
        let alone = bare(&[&program]);
        let (output, report) = place.spliced(user, &[], &[&program]);
        assert_eq!(output.status.code(), alone, "{user:?}: {output:?}");
        assert_eq!(notes(&report, "splice_untold"), [""; 0], "{user:?}");
        check(user, &report);
    }
}

/// Go's programs have no C library, and threads of their own making.
#[test]
fn go_is_counted() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/truth/gocalls");
    assert!(
        program.exists(),
        "{}: make test-programs",
        program.display()
    );
    let words = [program.to_str().unwrap(), "300"];
    for user in users() {
        let place = Place::new();
        let (output, report) = place.spliced(user, &[], &words);
        assert_eq!(output.status.code(), Some(0), "{user:?}: {output:?}");
        assert_eq!(count(&report, "getppid"), 1200, "{user:?}");
        for kind in ["splice_untold", "splice_left", "splice_boundary"] {
            assert_eq!(notes(&report, kind), [""; 0], "{user:?}");
        }
    }
}

#[test]
fn stacks_are_switched_out_of_calls() {
    each("coroutines", |user, report| {
        assert_eq!(count(report, "getppid"), 1201, "{user:?}");
        assert_eq!(count(report, "getpid"), 200, "{user:?}");
        assert_eq!(count(report, "clock_nanosleep"), 21, "{user:?}");
        assert_eq!(errors(report, "clock_nanosleep"), 1, "{user:?}");
        // It was left after 20 ms.
        assert!(wall_ms(report, "clock_nanosleep") >= 20, "{report}");
    });
}

/// One of each three calls is left for elsewhere, and so has failed.
#[test]
fn a_handler_says_where_and_how_it_returns() {
    each("contexts", |user, report| {
        assert_eq!(count(report, "rt_sigsuspend"), 301, "{user:?}");
        assert_eq!(errors(report, "rt_sigsuspend"), 200, "{user:?}");
        assert_eq!(count(report, "getppid"), 602, "{user:?}");
    });
}

#[test]
fn a_call_that_is_stopped_and_goes_on_is_one() {
    each("restarted", |user, report| {
        for (call, failed) in [("clock_nanosleep", 0), ("ppoll", 0), ("futex", 1)] {
            assert_eq!(count(report, call), 1, "{user:?} {call}");
            assert_eq!(errors(report, call), failed, "{user:?} {call}");
            assert!(wall_ms(report, call) >= 300, "{user:?} {call}: {report}");
        }
        assert_eq!(count(report, "restart_syscall"), 0, "{user:?}");
    });
}

/// Bit 3 of its status: it was refused a user namespace, or got one.
#[test]
fn threads_and_processes_of_no_library_are_counted() {
    for user in users() {
        let place = Place::new();
        let program = built(&place, "clones");
        let alone = bare(&[&program]);
        let (output, report) = place.spliced(user, &[], &[&program]);
        let status = output.status.code();
        // Whether users may have namespaces differs.
        let namespace = status == Some(7);
        assert!(namespace || status == Some(8), "{user:?}: {output:?}");
        assert!(user.is_some() || status == alone, "{output:?}");
        assert_eq!(count(&report, "exit"), 10, "{user:?}");
        let left = notes(&report, "splice_left").join("; ");
        match user {
            // What it does then the kernel side counts.
            None => {
                assert_eq!(count(&report, "clone3"), 21, "{left}");
                let calls = 2000 + if namespace { 200 } else { 100 };
                assert_eq!(count(&report, "getppid"), calls, "{left}");
            }
            Some(_) => {
                assert_eq!(count(&report, "clone3"), 20, "{left}");
                assert_eq!(count(&report, "getppid"), 2000, "{left}");
                assert!(left.contains("gave up rights"), "{left}");
            }
        }
    }
}

#[test]
fn io_uring_does_what_it_does_without() {
    each("ring", |user, report| {
        assert_eq!(count(report, "io_uring_setup"), 1, "{user:?}");
        // Not where it is switched off.
        if errors(report, "io_uring_setup") == 0 {
            assert_eq!(count(report, "io_uring_enter"), 201, "{user:?}");
            assert!(wall_ms(report, "io_uring_enter") >= 40, "{report}");
        }
    });
}

/// Where it makes its code writable it has its own, and is the kernel side's from there on, or missing, which is said.
#[test]
fn a_program_that_changes_its_code_changes_its_own() {
    for user in users() {
        let place = Place::new();
        let program = built(&place, "itself");
        let (output, report) = place.spliced(user, &[], &[&program]);
        assert_eq!(output.status.code(), Some(7), "{user:?}: {output:?}");
        assert_eq!(count(&report, "getppid"), 200, "{user:?}");
        let kind = user.map_or("splice_boundary", |_| "splice_left");
        let told = notes(&report, kind).join("; ");
        let why = "code of its own that it changes";
        assert!(told.contains(why), "{user:?}: {told}");
        // Children that did so before changed nothing for their parent.
        assert_eq!(count(&report, "clone"), 3, "{user:?}: {told}");
        if user.is_none() {
            assert_eq!(count(&report, "getpid"), 206, "{told}");
        }
    }
}

/// It finds jumps in it, as docs/splice.md says, and the other captures change nothing.
#[test]
fn a_program_that_compares_its_code_finds_it_changed_by_splicing_alone() {
    let place = Place::new();
    let program = built(&place, "itself");
    let words = [program.as_str(), "compares"];
    assert_eq!(bare(&words), Some(7));
    let (output, _) = place.spliced(None, &[], &words);
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    if !needs::bpf() {
        return;
    }
    for way in ["--capture=boundary", "--capture=sleeps"] {
        let mut debox = place.debox(&["run", way, "-q", "-o", "/dev/null", "--"]);
        let status = debox.args(words).status().unwrap();
        assert_eq!(status.code(), Some(7), "{way}");
    }
}

/// Where its own GS register leads nobody else writes.
const SETS_GS: &str = r#"
#include <unistd.h>
static long own[1024];
int main(void)
{
	__asm__ volatile("wrgsbase %0" : : "r"(own) : "memory");
	for (int i = 0; i < 300; i++) getppid();
	for (int i = 0; i < 1024; i++)
		if (own[i]) return 1;
	return 7;
}
"#;

/// The same, where a library that it loads does so, in a child first.
const LOADS_GS: &str = r#"
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>
static long own[1024];
static int calls(void)
{
	for (int i = 0; i < 100; i++) getppid();
	for (int i = 0; i < 1024; i++)
		if (own[i]) return 0;
	return 1;
}
static int loads(const char *library)
{
	void *there = dlopen(library, RTLD_NOW);
	void (*set)(void *) = there ? (void (*)(void *))dlsym(there, "set") : 0;
	if (!set) return 0;
	set(own);
	return calls();
}
int main(int argc, char **argv)
{
	int status;
	if (!calls()) return 1;
	if (!fork()) _exit(!loads(argv[argc - 1]));
	if (wait(&status) < 0 || status) return 2;
	return loads(argv[argc - 1]) ? 7 : 3;
}
"#;

const BY_LIBRARY: &str =
    "void set(void *to) { __asm__ volatile(\"wrgsbase %0\" : : \"r\"(to) : \"memory\"); }";

/// Nobody is asked before the instruction: so such a program is not begun with, and one is left before it can come to the
/// library's code.
#[test]
fn a_program_that_sets_the_gs_register_by_itself_is_left_it() {
    for user in users() {
        let place = Place::new();
        let sets = place.program("sets", SETS_GS);
        let loads = place.program("loads", LOADS_GS);
        let library = place.library_of("sets", BY_LIBRARY);
        let preload = format!("LD_PRELOAD={library}");
        // How many of 300 its program tells of.
        for (words, told) in [
            (&[sets.as_str()][..], 0),
            (&[loads.as_str(), library.as_str()], 100),
            (
                &[
                    "/usr/bin/env",
                    preload.as_str(),
                    loads.as_str(),
                    library.as_str(),
                ],
                0,
            ),
        ] {
            assert_eq!(bare(words), Some(7), "{words:?}");
            let (output, report) = place.spliced(user, &[], words);
            let of_it = format!("{user:?} {words:?}: {}", report["notes"]);
            assert_eq!(output.status.code(), Some(7), "{of_it} {output:?}");
            let (kind, why, getppids) = match user {
                None => ("splice_boundary", "it sets the GS register itself", 300),
                Some(_) => ("splice_left", "the GS register", told),
            };
            assert_eq!(count(&report, "getppid"), getppids, "{of_it}");
            assert!(notes(&report, kind).join("; ").contains(why), "{of_it}");
        }
    }
}

const OPENS: &str = r#"
#include <dlfcn.h>
int main(int argc, char **argv)
{
	return dlopen(argv[1], RTLD_NOW) ? 7 : 1;
}
"#;

/// Of 64 MB of code.
const LARGE: &str = r#"
__asm__(".text\n.globl raw\nraw: mov $110, %eax\nsyscall\nret\n.fill 67108864, 1, 0x90\n");
"#;

/// What a program waits for before it goes on with a library of which there was no copy is in none of its calls.
#[test]
fn what_a_large_copy_takes_is_told_first() {
    for user in users() {
        let place = Place::new();
        let opens = place.program("opens", OPENS);
        let library = place.library_of("large", LARGE);
        let (output, report) = place.spliced(user, &[], &[&opens, &library]);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        let first = report["verdict"][0].as_str().unwrap();
        let setup = &report["run"]["splice_setup"];
        match user {
            // It is a wait as any other.
            None => {
                assert!(first.contains("DeBox's own work"), "{first}");
                assert!(setup.is_null(), "{setup}");
            }
            Some(_) => {
                assert!(first.contains("DeBox itself took"), "{first}");
                let [asked, total] =
                    ["asked_ns", "total_ns"].map(|key| setup[key].as_u64().unwrap());
                assert!(asked > total, "{setup}");
                let wall = report["run"]["wall_ns"].as_u64().unwrap();
                assert!(asked < wall, "{setup} of {wall}");
            }
        }
        let (_, again) = place.spliced(user, &[], &[&opens, &library]);
        let said = again["verdict"][0].as_str().unwrap();
        assert!(!said.contains("copy"), "{said}");
    }
}

/// mov $35, %eax (nanosleep); syscall; ret: nobody but the kernel knows of it.
const SLEEPS: &str = r#"
#include <string.h>
#include <sys/mman.h>
#include <time.h>
int main(int argc, char **argv)
{
	static const unsigned char code[] = { 0xb8, 35, 0, 0, 0, 0x0f, 0x05, 0xc3 };
	struct timespec time = { 0, 20000000 };
	void *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memcpy(page, code, sizeof code);
	mprotect(page, 4096, PROT_READ | PROT_EXEC);
	for (int i = 0; i < 5; i++) {
		nanosleep(&time, 0);
		if (argc > 1 && ((int (*)(void *, void *))page)(&time, 0)) return 1;
	}
	return 7;
}
"#;

#[test]
fn sleeps_in_calls_that_no_program_told_of_are_told_by_the_kernel_side() {
    if !needs::bpf() {
        return;
    }
    let place = Place::new();
    let program = place.program("sleeps", SLEEPS);
    for words in [&[program.as_str()][..], &[&program, "untold"]] {
        let (output, report) = place.spliced(None, &[], words);
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        assert_eq!(count(&report, "clock_nanosleep"), 5);
        let told = row(&report["notes"], "kind", "splice_untold");
        if words.len() == 1 {
            assert!(told.is_empty(), "{told:?}");
            continue;
        }
        assert_eq!(told.len(), 1, "{}", report["notes"]);
        assert_eq!(told[0]["count"], 5, "{told:?}");
        let ns = told[0]["time_ns"].as_u64().unwrap();
        assert!(ns >= 99_000_000, "{told:?}");
        // They are where threads wait, and no call's.
        let waits = row(&report["blocking"], "call", "nanosleep").into_iter();
        let sleeps: u64 = waits.map(|row| row["count"].as_u64().unwrap()).sum();
        assert_eq!(sleeps, 5, "{}", report["blocking"]);
        assert_eq!(count(&report, "nanosleep"), 0);
    }
}

/// A service's user: no home that can be written, nothing set.
#[test]
fn who_has_no_home_is_counted() {
    if Path::new("/run/debox/debox.sock").exists() {
        eprintln!("NOT RUN: as somebody without rights, as a broker is there for everybody");
        return;
    }
    let place = Place::new();
    let temporary = place.0.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    std::fs::set_permissions(&temporary, PermissionsExt::from_mode(0o700)).unwrap();
    let user = if needs::is_root() {
        std::os::unix::fs::chown(place.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        std::os::unix::fs::chown(&temporary, Some(NOBODY), Some(NOBODY)).unwrap();
        NOBODY
    } else {
        // SAFETY: no arguments, cannot fail.
        unsafe { libc::geteuid() }
    };
    let report = place.0.path().join("report.json");
    let run = |way: &[&str]| {
        let mut debox = place.debox(&["run", "--json", "-o"]);
        debox.arg(&report).args(way).args(["--", "/bin/true"]);
        debox
            .env_remove("XDG_CACHE_HOME")
            .env("HOME", "/nonexistent");
        if needs::is_root() {
            debox.uid(NOBODY).gid(NOBODY);
        }
        debox.env("TMPDIR", &temporary).output().unwrap()
    };
    let output = run(&[]);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(count(&told, "set_tid_address"), 1, "{}", told["notes"]);
    let folder = temporary.join(format!("debox-splice-{user}"));
    assert!(folder.is_dir());
    // One that somebody else could write, or a link to one, is none.
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    let refused = run(&["--capture=splice"]);
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("/nonexistent/.cache/debox/splice") && said.contains("777"),
        "{said}"
    );
    let elsewhere = temporary.join("elsewhere");
    std::fs::rename(&folder, &elsewhere).unwrap();
    std::fs::set_permissions(&elsewhere, PermissionsExt::from_mode(0o700)).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &folder).unwrap();
    assert_eq!(run(&["--capture=splice"]).status.code(), Some(125));
    let unasked = run(&[]);
    assert_eq!(unasked.status.code(), Some(125), "{unasked:?}");
    let said = String::from_utf8_lossy(&unasked.stderr).into_owned();
    let named = folder.to_str().unwrap();
    // Root would have the kernel side.
    assert!(
        said.contains(named) && said.contains("no privileges"),
        "{said}"
    );
    // Nor is one in a folder where others can rename it.
    std::fs::remove_file(&folder).unwrap();
    std::fs::set_permissions(&temporary, PermissionsExt::from_mode(0o777)).unwrap();
    assert_eq!(run(&["--capture=splice"]).status.code(), Some(125));
}

/// Where code may not be mapped from the folder, that is said before anything has begun; what was not asked for is at
/// the kernel's boundary, and complete.
#[test]
fn where_code_may_not_be_mapped_another_capture_is_taken() {
    if !needs::bpf() {
        return;
    }
    let place = Place::new();
    let folder = place.0.path().join("noexec");
    std::fs::create_dir(&folder).unwrap();
    let report = place.0.path().join("report.json");
    let run = |way: &str| {
        // The mount is this process's alone, and goes with it.
        let script = format!(
            "mount -t tmpfs -o noexec none {folder} && XDG_CACHE_HOME={folder} exec {debox} {way}",
            folder = folder.display(),
            debox = env!("CARGO_BIN_EXE_debox")
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "sh", "-c", &script]);
        unshare.env_remove("DEBOX_SPLICE_RUNTIME").output().unwrap()
    };
    let json = format!("run --json -o {} -- /bin/true", report.display());
    let output = run(&json);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(count(&told, "set_tid_address"), 1, "{}", told["notes"]);
    assert_eq!(told["run"]["capture"], "boundary", "{}", told["run"]);
    let refused = run("run --capture=splice -- /bin/true");
    assert_eq!(refused.status.code(), Some(125), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("noexec") && said.contains("XDG_CACHE_HOME"),
        "{said}"
    );
    let doctor = run("doctor");
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains("noexec"), "{said}");
}

/// A container's filter, or SELinux, may forbid that anything is traced.
#[test]
fn where_nobody_may_trace_another_capture_is_taken() {
    if !needs::bpf() {
        return;
    }
    let place = Place::new();
    let within = place.program(
        "within",
        r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct sock_filter filter[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
					BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 0, 1),
					BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
					BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
	struct sock_fprog program = { 4, filter };
	if (argc < 2 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		return 9;
	execv(argv[1], argv + 1);
	return 8;
}
"#,
    );
    let debox = env!("CARGO_BIN_EXE_debox");
    let report = place.0.path().join("report.json");
    let run = |words: &[&str]| {
        let mut command = Command::new(&within);
        command
            .arg(debox)
            .args(words)
            .env("XDG_CACHE_HOME", place.0.path());
        command.output().unwrap()
    };
    let output = run(&[
        "run",
        "--json",
        "-o",
        report.to_str().unwrap(),
        "--",
        "/bin/true",
    ]);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    assert_eq!(told["run"]["capture"], "boundary", "{}", told["run"]);
    assert_eq!(count(&told, "set_tid_address"), 1, "{}", told["notes"]);
    let doctor = run(&["doctor"]);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(said.contains("no process may be traced here"), "{said}");
}

/// Code that is mapped to be written at once is no image, which could not be.
#[test]
fn code_that_is_mapped_writable_can_be_written() {
    let place = Place::new();
    let program = place.program(
        "writable",
        r#"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
int main(void)
{
	int fd = open("/proc/self/exe", O_RDONLY);
	long parent;
	/* So that there is something to be replaced. */
	__asm__ volatile("nop; nop; nop; syscall; nop; nop; nop" : "=a"(parent) : "a"(110) : "rcx", "r11", "memory");
	/* Where linkers put code: all pages behind the first. */
	for (int page = 0; page < 3; page++) {
		char *at = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE, fd, page * 4096);
		if (at == MAP_FAILED) return 1;
		at[7] = (char)page;
		if (at[7] != (char)page) return 2;
	}
	return 7;
}
"#,
    );
    for user in users() {
        let (output, report) = Place::new().spliced(user, &[], &[&program]);
        assert_eq!(output.status.code(), Some(7), "{user:?}: {output:?}");
        assert!(count(&report, "mmap") >= 3, "{user:?}");
    }
}

/// A file that is written again, with the time and the length that it had, is another one.
#[test]
fn a_library_that_was_written_again_is_the_new_one() {
    let place = Place::new();
    let library = place.0.path().join("again.so");
    let program = place.program(
        "loads",
        r#"
#include <dlfcn.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	void *library = dlopen(argv[argc - 1], RTLD_NOW);
	int (*which)(void) = library ? (int (*)(void))dlsym(library, "which") : 0;
	return which ? which() : 9;
}
"#,
    );
    let written = |answer: u32| {
        let text = format!(
            "long syscall(long, ...);\nint which(void) {{ return syscall(110) > 0 ? {answer} : 8; }}\n"
        );
        let (source, made) = (place.file("again.c", &text), place.0.path().join("made.so"));
        let mut compiler = Command::new("gcc");
        compiler.args(["-O1", "-shared", "-fPIC", "-o"]).arg(&made);
        assert!(compiler.arg(&source).status().unwrap().success());
        // In place.
        std::fs::write(&library, std::fs::read(&made).unwrap()).unwrap();
        let file = std::fs::File::options().write(true).open(&library).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    };
    for user in users() {
        let kept = Place::new();
        for answer in [3, 5] {
            written(answer);
            let words = [&program, library.to_str().unwrap()];
            let (output, _) = kept.spliced(user, &[], &words);
            assert_eq!(output.status.code(), Some(answer as i32), "{user:?}");
        }
    }
}
