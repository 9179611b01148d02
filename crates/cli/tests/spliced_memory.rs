// SPDX-License-Identifier: MIT OR Apache-2.0
//! A spliced program loads libraries, closes them, makes code itself, gives up rights in all of its threads, or
//! forbids itself what splicing needs when nobody is there any more: does it go on as it would?

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[path = "common/splice.rs"]
mod splice;

use splice::{NOBODY, Place, count, needs, notes, users, writable_code};

/// Each child, and then the parent, load it at the same place: what one has mapped none of the others has.
const LOADS: &str = r#"
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
static int calls(const char *path, int n, int closed)
{
	void *library = dlopen(path, RTLD_NOW);
	long (*raw)(void) = library ? (long (*)(void))dlsym(library, "raw") : 0;
	if (!raw) return 1;
	for (int i = 0; i < n; i++) if (raw() != getppid()) return 2;
	return closed ? dlclose(library) : 0;
}
int main(int argc, char **argv)
{
	int status, bad = 0;
	if (!strcmp(argv[2], "fork")) {
		for (int i = 0; i < 3; i++) {
			if (!fork()) _exit(calls(argv[1], 500, 0));
			bad |= wait(&status) < 0 || status;
		}
		bad |= calls(argv[1], 500, 0);
		if (!fork()) _exit(calls(argv[1], 500, 0));
		bad |= wait(&status) < 0 || status;
	} else {
		/* Each time elsewhere. */
		for (int i = 0; i < atoi(argv[3]); i++) {
			mmap(0, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			bad |= calls(argv[1], 10, 1);
		}
	}
	return bad ? bad : 7;
}
"#;

#[test]
fn processes_that_were_forked_load_the_same_library() {
    for user in users() {
        let place = Place::new();
        let (library, program) = (place.library(), place.program("loads", LOADS));
        let (output, report) = place.spliced(user, &[], &[&program, &library, "fork"]);
        assert_eq!(output.status.code(), Some(7), "{user:?}: {output:?}");
        assert_eq!(
            count(&report, "getppid"),
            5 * 1000,
            "{user:?}: {}",
            report["notes"]
        );
        assert_eq!(notes(&report, "splice_left"), [""; 0], "{user:?}");
    }
}

#[test]
fn a_library_is_loaded_and_closed_more_often_than_there_is_room_for() {
    for user in users() {
        let place = Place::new();
        let (library, program) = (place.library(), place.program("loads", LOADS));
        let (output, report) = place.spliced(user, &[], &[&program, &library, "close", "400"]);
        assert_eq!(output.status.code(), Some(7), "{user:?}: {output:?}");
        assert_eq!(
            count(&report, "getppid"),
            400 * 20,
            "{user:?}: {}",
            report["notes"]
        );
        assert_eq!(notes(&report, "splice_left"), [""; 0], "{user:?}");
    }
}

/// Where a library was that is closed comes memory of its own, which it makes writable, as stacks of threads are.
const CLOSES: &str = r#"
#include <dlfcn.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
static long (*raw)(void);
static int calls(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);
	raw = library ? (long (*)(void))dlsym(library, "raw") : 0;
	for (int i = 0; raw && i < 100; i++) if (raw() != getppid()) return 1;
	return !raw || dlclose(library);
}
int main(int argc, char **argv)
{
	char *at;
	if (calls(argv[1])) return 2;
	at = (char *)((uintptr_t)raw & -4096ul);
	at = mmap(at, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (at == MAP_FAILED || mprotect(at, 4096, PROT_READ | PROT_WRITE)) return 3;
	at[7] = 1;
	return calls(argv[1]) ? 4 : 7;
}
"#;

#[test]
fn memory_where_a_library_was_is_a_programs_own() {
    for user in users() {
        let place = Place::new();
        let library = place.library();
        let program = place.program("closes", CLOSES);
        let (output, report) = place.spliced(user, &[], &[&program, &library]);
        assert_eq!(output.status.code(), Some(7), "{user:?}: {output:?}");
        assert_eq!(count(&report, "getppid"), 400, "{user:?}");
        for kind in ["splice_left", "splice_boundary"] {
            assert_eq!(notes(&report, kind), [""; 0], "{user:?}");
        }
    }
}

/// Twenty threads make calls and look whether a register is as it was; all of them give up rights at once, as the C
/// library has it.
const GIVES_UP: &str = r#"
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static volatile int over;
static void *calls(void *unused)
{
	while (!over) {
		unsigned long r, kept = 0x1234567890abcdef;
		__asm__ volatile("movl $110, %%eax\n\tsyscall" : "=a"(r), "+d"(kept) : : "rcx", "r11", "memory");
		if (kept != 0x1234567890abcdef) _exit(9);
	}
	return 0;
}
int main(int argc, char **argv)
{
	pthread_t thread[20];
	struct timespec from, to;
	for (int i = 0; i < 20; i++) pthread_create(&thread[i], 0, calls, 0);
	usleep(50000);
	clock_gettime(CLOCK_MONOTONIC, &from);
	if (setgid(atoi(argv[1])) || setuid(atoi(argv[1]))) return 3;
	clock_gettime(CLOCK_MONOTONIC, &to);
	if (getuid() != atoi(argv[1])) return 4;
	usleep(50000);
	over = 1;
	for (int i = 0; i < 20; i++) pthread_join(thread[i], 0);
	/* Who waits for an answer that does not come waits for ten seconds. */
	return to.tv_sec - from.tv_sec > 8 ? 5 : 7;
}
"#;

#[test]
fn all_threads_give_up_rights_at_once() {
    if !needs::root() {
        return;
    }
    let place = Place::new();
    let program = place.program("gives-up", GIVES_UP);
    for round in 0..6 {
        let (output, report) = place.spliced(None, &[], &[&program, &NOBODY.to_string()]);
        assert_eq!(output.status.code(), Some(7), "{round}: {output:?}");
        assert_eq!(count(&report, "setuid"), 21, "{round}: {}", report["notes"]);
        let told = notes(&report, "splice_boundary");
        assert_eq!(told.len(), 1, "{round}: {}", report["notes"]);
    }
}

/// What the kernel answers with an error is looked at by nobody else.
const BAD_POINTERS: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void)
{
	struct sock_fprog far = { 100, (struct sock_filter *)8 };
	int folder = open("/", O_PATH);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, 2, (void *)8) != -1 || errno != EFAULT) return 1;
	if (prctl(PR_SET_SECCOMP, 2, &far) != -1 || errno != EFAULT) return 2;
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, (void *)8) != -1 || errno != EFAULT) return 3;
	if (syscall(SYS_execveat, folder, (void *)0, (char *[]){ 0 }, (char *[]){ 0 }, AT_EMPTY_PATH) != -1) return 4;
	if (syscall(SYS_execveat, folder, (void *)8, (char *[]){ 0 }, (char *[]){ 0 }, 0) != -1 || errno != EFAULT) return 5;
	if (syscall(SYS_clone3, (void *)8, 88) != -1 || errno != EFAULT) return 6;
	return 7;
}
"#;

#[test]
fn pointers_to_nothing_are_an_error_of_the_call() {
    for user in users() {
        let place = Place::new();
        let program = place.program("bad", BAD_POINTERS);
        assert_eq!(Command::new(&program).status().unwrap().code(), Some(7));
        let (output, _) = place.spliced(user, &[], &[&program]);
        assert_eq!(output.status.code(), Some(7), "{user:?}: {output:?}");
    }
}

/// Code that it writes itself, and makes executable a hundred times.
const WRITES_CODE: &str = r#"
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	/* mov $110, %eax (getppid); syscall; ret */
	static const unsigned char code[] = { 0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xc3 };
	int id = shmget(IPC_PRIVATE, 4096, 0700 | IPC_CREAT);
	void *page = argv[1][0] == 's' ? shmat(id, 0, SHM_EXEC) :
					 mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	shmctl(id, IPC_RMID, 0);
	memcpy(page, code, sizeof code);
	for (int i = 0; i < 100 && argv[1][0] == 'm'; i++) {
		mprotect(page, 4096, PROT_READ | PROT_WRITE);
		mprotect(page, 4096, PROT_READ | PROT_EXEC);
	}
	return argv[1][0] == 'n' || ((int (*)(void))page)() == getppid() ? 7 : 1;
}
"#;

#[test]
fn code_that_a_program_makes_is_said_to_be_missing() {
    for user in users() {
        let place = Place::new();
        let program = place.program("writes", WRITES_CODE);
        for (how, told) in [("mprotect", true), ("shared", true), ("nothing", false)] {
            let (output, report) = place.spliced(user, &[], &[&program, how]);
            assert_eq!(output.status.code(), Some(7), "{user:?} {how}: {output:?}");
            let left = notes(&report, "splice_left").join("; ");
            let text = "1 piece of code from no file";
            assert_eq!(left.contains(text), told, "{user:?} {how}: {left}");
        }
    }
}

/// Waits until it is told, and then forbids itself the time stamp counter: what reads it dies.
const FORBIDS: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	struct timespec moment = { 0, 5000000 };
	close(open(argv[1], O_CREAT | O_WRONLY, 0644));
	if (argv[3][0] == 'n') prctl(PR_SET_DUMPABLE, 0);
	while (access(argv[2], F_OK)) nanosleep(&moment, 0);
	if (prctl(PR_SET_TSC, PR_TSC_SIGSEGV)) return 1;
	for (int i = 0; i < 1000; i++) getppid();
	close(open(argv[4], O_CREAT | O_WRONLY, 0644));
	return 7;
}
"#;

fn comes(path: &Path) -> bool {
    (0..3000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        path.exists()
    })
}

#[test]
fn own_code_comes_back_when_debox_has_gone_or_may_not() {
    for user in users() {
        let place = Place::new();
        let program = place.program("forbids", FORBIDS);
        if user.is_some() {
            std::os::unix::fs::chown(place.0.path(), user, user).unwrap();
        }
        for how in ["killed", "not dumpable"] {
            let file = |name| place.0.path().join(format!("{name}-{}", how.len()));
            let (begun, go, over) = (file("begun"), file("go"), file("over"));
            let mut debox = place.debox(&["run", "--capture=splice", "-q", "--", &program]);
            debox.args([&begun, &go]).arg(how).arg(&over);
            if let Some(user) = user.filter(|_| needs::is_root()) {
                debox.uid(user).gid(user);
            }
            let mut debox = debox.spawn().unwrap();
            let has_begun = comes(&begun);
            if how == "killed" {
                debox.kill().unwrap();
            }
            std::fs::write(&go, "").unwrap();
            let went_on = has_begun && comes(&over);
            if !went_on {
                debox.kill().unwrap();
            }
            let status = debox.wait().unwrap();
            assert!(went_on, "{user:?} {how}: it did not go on");
            assert!(
                how == "killed" || status.code() == Some(7),
                "{user:?}: {status}"
            );
        }
    }
}

/// Nothing becomes executable that was not mapped so; all memory stays where it is; there is little of it.
const WITHIN_BOUNDS: &str = r#"
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int status;
	if (argv[2][0] == 'd' && prctl(65 /* PR_SET_MDWE, Linux 6.3 */, 1, 0, 0, 0)) return 8;
	if (argv[2][0] == 'l' && mlockall(MCL_CURRENT | MCL_FUTURE)) return 8;
	void *library = dlopen(argv[1], RTLD_NOW);
	long (*raw)(void) = library ? (long (*)(void))dlsym(library, "raw") : 0;
	for (int i = 0; raw && i < 1000; i++) raw();
	if (!fork()) return execl("/bin/true", "true", (char *)0);
	return wait(&status) < 0 || status || !raw ? 1 : 7;
}
"#;

#[test]
fn what_a_program_forbids_its_memory_is_kept_to() {
    for user in users() {
        let place = Place::new();
        let (library, program) = (place.library(), place.program("bounds", WITHIN_BOUNDS));
        for how in ["deny-write-execute", "lock", "nothing"] {
            let bare = Command::new(&program).args([&library, how]).status();
            if bare.unwrap().code() == Some(8) {
                eprintln!("NOT RUN: {how}: this kernel has it not, or not for us");
                continue;
            }
            let limit = format!("ulimit -v 400000; exec {program} {library} {how}");
            let (output, report) = match how {
                "nothing" => place.spliced(user, &[], &["sh", "-c", &limit]),
                _ => place.spliced(user, &[], &[&program, &library, how]),
            };
            // Who may not lock much is told so as without.
            let locked = user.is_some() && how == "lock" && output.status.code() == Some(8);
            assert!(
                locked || output.status.code() == Some(7),
                "{user:?} {how}: {output:?}"
            );
            if !locked {
                // The shell asks, too.
                let by_shell = u64::from(how == "nothing");
                let all = count(&report, "getppid") - by_shell;
                assert_eq!(all, 1000, "{user:?} {how}: {}", report["notes"]);
                assert_eq!(notes(&report, "splice_left"), [""; 0], "{user:?} {how}");
            }
        }
    }
}

/// Makes calls, and is right with 7: no register is set at its first instruction, and no file is open but the first three.
const LIMITED: &str = r#"
static long call(long nr, long a, long b)
{
	long result;
	asm volatile("syscall" : "=a"(result) : "a"(nr), "D"(a), "S"(b) : "rcx", "r11", "memory");
	return result;
}
__attribute__((used)) static void begin(long set)
{
	int open = 0;
	for (int fd = 3; fd < 256; fd++) open |= call(72, fd, 1) >= 0; /* fcntl, F_GETFD */
	for (int i = 0; i < 1000; i++) call(110, 0, 0); /* getppid */
	call(231, set ? 1 : open ? 2 : 7, 0); /* exit_group */
}
asm(".globl _start\n_start:\n"
    "	orq %rbx, %rax\n	orq %rcx, %rax\n	orq %rdx, %rax\n	orq %rsi, %rax\n	orq %rdi, %rax\n	orq %rbp, %rax\n"
    "	orq %r8, %rax\n	orq %r9, %rax\n	orq %r10, %rax\n	orq %r11, %rax\n	orq %r12, %rax\n	orq %r13, %rax\n"
    "	orq %r14, %rax\n	orq %r15, %rax\n	movq %rax, %rdi\n	andq $-16, %rsp\n	call begin\n");
"#;

/// Counts in memory that its limits do not allow, or finds no number for a file: it stands before its first instruction until
/// it is seen to.
#[test]
fn who_may_not_map_what_it_counts_in_is_taken_at_the_boundary() {
    for user in users() {
        let place = Place::new();
        let source = place.file("limited.c", LIMITED);
        let (program, open) = (place.0.path().join("limited"), place.0.path().join("open"));
        for (how, to) in [("-no-pie", &program), ("-pie", &open)] {
            let built = Command::new("cc")
                .args([
                    "-O1",
                    "-static",
                    "-nostdlib",
                    "-fno-stack-protector",
                    how,
                    "-o",
                ])
                .args([to.as_os_str(), source.as_ref()])
                .status();
            assert!(built.unwrap().success());
        }
        for (limit, program) in [
            ("ulimit -v 16000", program.to_str().unwrap()),
            ("ulimit -n 3", open.to_str().unwrap()),
        ] {
            let line = format!("{limit}; exec {program}");
            let (output, report) = place.spliced(user, &[], &["sh", "-c", &line]);
            assert_eq!(
                output.status.code(),
                Some(7),
                "{user:?} {limit}: {output:?}"
            );
            let told = match user {
                None => {
                    // The shell asks, too.
                    assert_eq!(
                        count(&report, "getppid"),
                        1001,
                        "{limit}: {}",
                        report["notes"]
                    );
                    notes(&report, "splice_boundary")
                }
                Some(_) => notes(&report, "splice_left"),
            };
            assert!(
                told.iter()
                    .any(|note| note.contains("do not let it map what it counts in")),
                "{user:?} {limit}: {}",
                report["notes"]
            );
        }
    }
}

/// Looks all the while whether any of its memory may be written and executed at once, beside a library that comes and
/// goes, and children that have it, too.
const LOOKS: &str = r#"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int over;
static void look(void)
{
	char line[8192], *rights;
	FILE *maps = fopen("/proc/self/maps", "r");
	if (!maps) _exit(8);
	while (fgets(line, sizeof line, maps)) {
		rights = strchr(line, ' ');
		if (rights && rights[2] == 'w' && rights[3] == 'x') { dprintf(2, "%s", line); _exit(9); }
	}
	fclose(maps);
}
static void *looks(void *unused)
{
	while (!over) look();
	return unused;
}
static int loads(const char *path)
{
	void *library = dlopen(path, RTLD_NOW);
	long (*raw)(void) = library ? (long (*)(void))dlsym(library, "raw") : 0;
	if (!raw || raw() != getppid()) return 1;
	look();
	return dlclose(library);
}
int main(int argc, char **argv)
{
	pthread_t thread;
	int status;
	if (pthread_create(&thread, 0, looks, 0)) return 2;
	for (int i = 0; i < 50; i++) {
		if (loads(argv[1])) return 3;
		if (i % 10) continue;
		if (!fork()) _exit(loads(argv[1]));
		if (wait(&status) < 0 || status) return 4;
	}
	over = 1;
	pthread_join(thread, 0);
	return 7;
}
"#;

/// What a process has made, and those have, and so on.
fn descendants(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let children = (threads.into_iter().flatten().flatten())
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|text| {
            let numbers = text.split_whitespace().map(str::to_owned);
            numbers.collect::<Vec<_>>()
        });
    children
        .filter_map(|number| number.parse().ok())
        .flat_map(|child| std::iter::once(child).chain(descendants(child)))
        .collect()
}

/// By its own looks, and by ours, as programs begin as well.
#[test]
fn no_memory_is_written_and_executed_at_once() {
    for user in users() {
        let place = Place::new();
        let (library, program) = (place.library(), place.program("looks", LOOKS));
        let script = "for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done; exec \"$@\"";
        let mut debox = place.debox(&["run", "--capture=splice", "-q", "-o", "/dev/null", "--"]);
        debox.args(["sh", "-c", script, "sh", &program, &library]);
        if let Some(user) = user.filter(|_| needs::is_root()) {
            std::os::unix::fs::chown(place.0.path(), Some(user), Some(user)).unwrap();
            debox.uid(user).gid(user);
        }
        let mut debox = debox.stdin(Stdio::null()).spawn().unwrap();
        let mut spliced = 0;
        let status = loop {
            for pid in descendants(debox.id()) {
                let found = writable_code(pid);
                assert!(found.is_empty(), "{user:?}: {found:?}");
                let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
                spliced += u32::from(maps.is_ok_and(|maps| maps.contains("debox-splice")));
            }
            if let Some(status) = debox.try_wait().unwrap() {
                break status;
            }
            std::thread::sleep(Duration::from_micros(200));
        };
        assert_eq!(status.code(), Some(7), "{user:?}");
        assert!(spliced > 0, "{user:?}: nothing was seen");
    }
}
