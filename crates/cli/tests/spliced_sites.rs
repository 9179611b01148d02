// SPDX-License-Identifier: MIT OR Apache-2.0
//! `debox run --capture=splice --call-site` without privileges and without a broker: is each call told with the place
//! in the program that it came from?

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Output};

#[path = "common/splice.rs"]
mod splice;

use splice::{NOBODY, Place, needs, notes, row};

/// A folder of who has no privileges.
fn place() -> Place {
    let place = Place::new();
    if needs::is_root() {
        std::os::unix::fs::chown(place.0.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    place
}

trait Sites {
    fn as_somebody(&self, command: &mut Command);
    fn sites(&self, words: &[&str]) -> (Output, Value);
    fn built(&self, text: &str) -> String;
}

impl Sites for Place {
    /// Without privileges, and with as little around it as there can be.
    fn as_somebody(&self, command: &mut Command) {
        command.env("HOME", self.0.path());
        command.env_remove("LD_LIBRARY_PATH");
        if needs::is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
    }

    fn sites(&self, words: &[&str]) -> (Output, Value) {
        let file = self.0.path().join("report.json");
        let _ = std::fs::remove_file(&file);
        let mut command = self.debox(&["run", "--capture=splice", "--call-site", "--json"]);
        command
            .args(["-o", file.to_str().unwrap(), "--"])
            .args(words);
        self.as_somebody(&mut command);
        let output = command.output().unwrap();
        let report = std::fs::read_to_string(&file).unwrap_or_else(|_| panic!("{output:?}"));
        let report: Value = serde_json::from_str(&report).unwrap();
        add_up(&report);
        (output, report)
    }

    /// Without debug information: places are told to the byte.
    fn built(&self, text: &str) -> String {
        let (source, program) = (self.file("source.c", text), self.0.path().join("program"));
        let built = Command::new("cc")
            .args(["-O2", "-pthread", "-o"])
            .args([program.to_str().unwrap(), &source])
            .status();
        assert!(built.unwrap().success());
        program.to_str().unwrap().to_owned()
    }
}

fn number(row: &Value, field: &str) -> u64 {
    row[field].as_u64().unwrap()
}

/// Calls that no program can tell the end of: whoever measures them knows no place.
fn ends_untold(call: &str) -> bool {
    call.starts_with("exec") || call.starts_with("exit")
}

/// All places of a call have together what the call has, and nothing was measured that nobody measures.
fn add_up(report: &Value) {
    let fields = ["count", "errors", "wall_ns"];
    let mut by_call: BTreeMap<&str, [u64; 3]> = BTreeMap::new();
    for site in report["call_sites"].as_array().unwrap() {
        let sums = by_call.entry(site["call"].as_str().unwrap()).or_default();
        for (sum, field) in sums.iter_mut().zip(fields) {
            *sum += match site[field].as_u64() {
                None if field == "wall_ns" && ends_untold(site["call"].as_str().unwrap()) => 0,
                value => value.unwrap(),
            };
        }
        for field in ["cpu_ns", "blocked_ns", "runq_ns", "irq_ns"] {
            assert_eq!(site[field], Value::Null, "{site}");
        }
    }
    for call in report["calls"].as_array().unwrap() {
        let name = call["name"].as_str().unwrap();
        let mut sites = by_call.remove(name).unwrap_or_default();
        if ends_untold(name) {
            sites[2] = call["wall_ns"].as_u64().unwrap_or(0);
        }
        let sums = fields.map(|field| call[field].as_u64().unwrap_or(0));
        assert_eq!(sites, sums, "{call}");
    }
    assert!(by_call.is_empty(), "{by_call:?}");
}

/// How many calls of `call` came from places that begin so.
fn from(report: &Value, call: &str, place: &str) -> u64 {
    row(&report["call_sites"], "call", call)
        .into_iter()
        .filter(|site| site["place"].as_str().unwrap().starts_with(place))
        .map(|site| number(site, "count"))
        .sum()
}

fn unknown(report: &Value) -> u64 {
    let sites = report["call_sites"].as_array().unwrap().iter();
    let unknown = sites.filter(|site| site["place"] == "(unknown)");
    // The execve that begins it all is made by nobody of the program.
    let all: u64 = unknown.map(|site| number(site, "count")).sum();
    all - 1
}

/// What strace says: by call, the names that a place may have, and how often.
fn by_strace(place: &Place, words: &[&str]) -> BTreeMap<(String, Vec<String>), u64> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-k", "-qq", "-e", "signal=none", "-o"]);
    let file = place.0.path().join("strace");
    strace.arg(&file);
    place.as_somebody(&mut strace);
    strace.env("XDG_CACHE_HOME", place.0.path());
    let done = strace.args(words).output().expect("strace is needed");
    assert!(done.status.success(), "{done:?}");
    let text = std::fs::read(&file).unwrap();
    let text = String::from_utf8_lossy(&text).into_owned();
    std::fs::remove_file(&file).unwrap();
    let mut all = BTreeMap::new();
    let (mut call, mut outermost) = (None::<String>, None);
    let mut end = |call: &mut Option<String>, place: Option<Vec<String>>| {
        if let (Some(call), Some(place)) = (call.take(), place) {
            *all.entry((call, place)).or_insert(0) += 1;
        }
    };
    for line in text.lines() {
        let Some(frame) = line.trim_start().strip_prefix("> ") else {
            end(&mut call, outermost.take());
            let line = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
            call = (line.split_once('(')).map(|(name, _)| name.to_owned());
            continue;
        };
        // /usr/bin/x(function+0x12) [0x1234]
        let (path, rest) = frame.split_once('(').unwrap_or((frame, ""));
        let module = path.rsplit('/').next().unwrap_or(path);
        let at = rest
            .rsplit_once('[')
            .map_or("", |(_, at)| at.trim_end_matches(']'));
        let mut names = vec![format!("{module}+{at}")];
        if let Some((function, _)) = rest.split_once(')')
            && !function.is_empty()
        {
            names.push(format!("{function} ({module})"));
        }
        outermost = Some(names.clone());
        if !["libc.so.6", "ld-linux-x86-64.so.2"].contains(&module) {
            end(&mut call, Some(names));
        }
    }
    end(&mut call, outermost.take());
    all
}

const STATIC: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline)) static
static int fd;
static char b[512];
NOINLINE void reads(int n) { for (int i = 0; i < n; i++) pread(fd, b, sizeof b, i); }
NOINLINE void others(int n) { for (int i = 0; i < n; i++) { getppid(); pread(fd, b, 1, 0); } }
NOINLINE void deep(int n) { char room[n]; room[0] = 1; __asm__ volatile("" : : "r"(room) : "memory"); if (n > 1) deep(n - 1); else lseek(fd, 0, SEEK_SET); }
NOINLINE void prints(int n) { for (int i = 0; i < n; i++) { printf("%d\n", i); fflush(stdout); } }
NOINLINE void allocates(void) { for (int i = 0; i < 40; i++) free(malloc(1 << 20)); }
static int order(const void *a, const void *c) { struct stat s; stat("/", &s); return *(const int *)a - *(const int *)c; }
int main(void)
{
	int all[] = { 3, 1, 2, 5, 4 };

	fd = open("/etc/passwd", O_RDONLY);
	reads(30); others(20); deep(50); prints(7); allocates();
	qsort(all, 5, sizeof *all, order);
	others(3); close(77);
	return 0;
}
"#;

/// Of several programs, one with static functions and such as were not built by us.
#[test]
fn calls_come_from_where_strace_sees_them() {
    let place = place();
    let program = place.built(STATIC);
    let script = "import sqlite3, json, hashlib; d = sqlite3.connect(':memory:'); d.execute('create table t(a)'); \
                  [open('/etc/passwd').read() for _ in range(20)]";
    let commands: [&[&str]; 4] = [
        &[&program],
        &["/usr/bin/python3", "-S", "-E", "-c", script],
        &[
            "sqlite3",
            ":memory:",
            "create table t(a); select count(*) from t",
        ],
        &["ls", "-la", "/usr"],
    ];
    for words in commands {
        let (output, report) = place.sites(words);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(unknown(&report), 0, "{words:?}");
        let strace = by_strace(&place, words);
        let (mut compared, mut programs) = (0, 0);
        for ((call, names), times) in &strace {
            // It ends; and what the kernel's own page asks for, and random places of a heap, differ by run.
            if ["execve", "exit_group", "brk", "getrandom", "munmap"].contains(&call.as_str()) {
                continue;
            }
            let sites = row(&report["call_sites"], "call", call).into_iter();
            let here = sites.filter(|site| names.iter().any(|name| site["place"] == **name));
            let here: u64 = here.map(|site| number(site, "count")).sum();
            let others: u64 = (strace.iter())
                .filter(|((c, n), _)| c == call && n.iter().any(|name| names.contains(name)))
                .map(|(_, times)| times)
                .sum();
            assert_eq!(here, others, "{words:?}: {call} from {names:?}");
            compared += times;
            programs += times * u64::from(!names[0].starts_with("ld-linux"));
        }
        assert!(compared > 20 && programs > 5, "{words:?}: {strace:?}");
    }
}

/// Each thread counts, also such as are there at the same time.
#[test]
fn threads_add_up() {
    let place = place();
    let program = place.built(
        r#"
#include <pthread.h>
#include <unistd.h>
__attribute__((noinline)) static void often(void) { for (int i = 0; i < 20000; i++) { getppid(); __asm__ volatile(""); } }
__attribute__((noinline)) static void seldom(void) { for (int i = 0; i < 500; i++) { getppid(); __asm__ volatile(""); } }
static void *run(void *n) { often(); seldom(); return n; }
int main(void)
{
	pthread_t all[100];

	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 50; i++) pthread_create(&all[i], 0, run, 0);
		for (int i = 0; i < 50; i++) pthread_join(all[i], 0);
	}
	return 0;
}
"#,
    );
    let (output, report) = place.sites(&[&program]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(from(&report, "getppid", "often+"), 100 * 20000);
    assert_eq!(from(&report, "getppid", "seldom+"), 100 * 500);
    assert_eq!(from(&report, "exit", "(unknown)"), 0);
}

/// Coroutines, and handlers on stacks of their own, within calls and without.
#[test]
fn stacks_are_switched() {
    let place = place();
    let program = place.built(
        r#"
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline)) static
static ucontext_t back, coroutine[4];
NOINLINE void in_coroutine(void) { getppid(); __asm__ volatile(""); }
static void run(int n) { for (;;) { in_coroutine(); swapcontext(&coroutine[n], &back); } }
NOINLINE void in_handler(void) { getppid(); __asm__ volatile("nop"); }
static void handler(int n) { (void)n; in_handler(); }
int main(void)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
	stack_t own = { .ss_sp = malloc(65536), .ss_size = 65536 };
	struct timespec pause = { 0, 20000000 };
	struct itimerspec soon = { { 0, 0 }, { 0, 5000000 } };
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
	timer_t timer;
	char *stack;

	sigaltstack(&own, 0);
	sigaction(SIGUSR1, &action, 0);
	for (int round = 0; round < 100; round++) {
		int n = round % 4;

		/* Another one each time: what was known of it is gone. */
		stack = mmap(0, 32768, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		getcontext(&coroutine[n]);
		coroutine[n].uc_stack.ss_sp = stack;
		coroutine[n].uc_stack.ss_size = 32768;
		makecontext(&coroutine[n], (void (*)(void))run, 1, n);
		for (int i = 0; i < 10; i++) swapcontext(&back, &coroutine[n]);
		munmap(stack, 32768);
	}
	for (int i = 0; i < 50; i++) raise(SIGUSR1);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	for (int i = 0; i < 5; i++) {
		timer_settime(timer, 0, &soon, 0);
		/* The handler comes within it. */
		nanosleep(&pause, 0);
	}
	return 0;
}
"#,
    );
    let (output, report) = place.sites(&[&program]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(from(&report, "getppid", "in_coroutine+"), 1000, "{report}");
    assert_eq!(from(&report, "getppid", "in_handler+"), 55, "{report}");
    let sleeps = row(&report["calls"], "name", "clock_nanosleep");
    assert_eq!(from(&report, "clock_nanosleep", "main+"), 5, "{sleeps:?}");
    assert_eq!(unknown(&report), 0, "{report}");
}

/// It may lead anywhere as long as nobody makes use of it: then the program goes on as it would.
#[test]
fn a_bad_stack_pointer_is_no_place_and_no_crash() {
    let place = place();
    let program = place.built(
        r#"
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
/* Calls with this stack pointer and frame pointer, and all registers as they were behind it. */
__attribute__((noinline)) static long with(uint64_t rsp, uint64_t rbp, long nr, long a, long b)
{
	register long r10 __asm__("r10") = 10, r8 __asm__("r8") = 8, r9 __asm__("r9") = 9;
	long result = nr, x = 0x1234;

	__asm__ volatile("movq %%rsp, %%r12\n movq %%rbp, %%r13\n movq %[rsp], %%rsp\n movq %[rbp], %%rbp\n"
			 "syscall\n nop\n nop\n nop\n nop\n"
			 "movq %%r12, %%rsp\n movq %%r13, %%rbp\n"
			 : "+a"(result), "+D"(a), "+S"(b), "+d"(x), "+r"(r10), "+r"(r8), "+r"(r9)
			 : [rsp] "r"(rsp), [rbp] "r"(rbp)
			 : "r12", "r13", "rcx", "r11", "memory");
	if (x != 0x1234 || r10 != 10 || r8 != 8 || r9 != 9)
		_exit(9);
	return result;
}
int main(void)
{
	enum { N = 16, PAGE = 4096 };
	const int none = MAP_PRIVATE | MAP_ANONYMOUS;
	char *all = mmap(0, N * PAGE, PROT_READ | PROT_WRITE, none, -1, 0);
	uint64_t at = (uint64_t)all, here = (uint64_t)__builtin_frame_address(0) - 65536;
	long me = getppid();
	const uint64_t bad[] = { 0, 1, 8, 136, PAGE, 0x7ffffffff000, 0xffff800000000000, ~0ull, ~7ull, at + 2 * PAGE };

	mprotect(all, 2 * PAGE, PROT_NONE);
	mprotect(all + 6 * PAGE, PAGE, PROT_READ);
	munmap(all + 9 * PAGE, PAGE);
	for (unsigned long i = 0; i < sizeof bad / sizeof *bad; i++)
		for (unsigned long j = 0; j < sizeof bad / sizeof *bad; j++) {
			if (with(bad[i], bad[j], SYS_getppid, 3, 4) != me) return 1;
			if (with(here, bad[j], SYS_getppid, 3, 4) != me) return 2;
		}
	/* Around each edge, at any alignment. */
	for (uint64_t page = 0; page <= N; page++)
		for (int64_t way = -700; way <= 700; way += 7)
			if (with(at + page * PAGE + way, at + page * PAGE - way, SYS_getppid, 3, 4) != me) return 3;
	/* It takes its own stack away; then it was there, and is so no more. */
	for (int i = 0; i < 100; i++) {
		char *own = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, none, -1, 0);
		uint64_t top = (uint64_t)own + 4 * PAGE;

		if (with(top, top, SYS_getppid, 3, 4) != me) return 4;
		if (i % 2 ? with(top, top, SYS_munmap, (long)own, 4 * PAGE) : with(top, top, SYS_munmap, (long)own + 3 * PAGE, PAGE)) return 5;
		if (with(top, top, SYS_getppid, 3, 4) != me) return 6;
	}
	return 0;
}
"#,
    );
    let (output, report) = place.sites(&[&program]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let calls = number(row(&report["calls"], "name", "getppid")[0], "count");
    assert_eq!(calls, 1 + 2 * 100 + 17 * 201 + 200);
    let known = from(&report, "getppid", "with+") + from(&report, "getppid", "main+");
    assert!(known > 0, "{report}");
    let lost = from(&report, "getppid", "(unknown)");
    assert!(lost >= 200 && lost < calls, "{lost} of {calls}");
}

/// What is found out below the program's stack pointer is no more than is looked at before: 512 bytes, with the
/// program's red zone, which stays as it is. With one word less there is no place.
#[test]
fn so_far_below_the_stack_pointer_and_no_further() {
    let place = place();
    let program = place.built(
        r#"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
enum { PAGE = 4096, RED_ZONE = 128, DEEP = 512, PAINT = 0xa5 };
/* Calls with this stack pointer. */
__attribute__((noinline)) static void with(uint64_t rsp)
{
	long nr = SYS_getppid;

	__asm__ volatile("movq %%rsp, %%r12\n movq %[rsp], %%rsp\n syscall\n nop\n nop\n nop\n nop\n movq %%r12, %%rsp\n"
			 : "+a"(nr)
			 : [rsp] "r"(rsp)
			 : "r12", "rcx", "r11", "memory");
}
int main(void)
{
	const int none = MAP_PRIVATE | MAP_ANONYMOUS;
	unsigned char *all = mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, none, -1, 0), *end = all + 6 * PAGE;
	uint64_t page = (uint64_t)all + 2 * PAGE;
	long deepest = 0;

	mprotect(all, 2 * PAGE, PROT_NONE);
	for (int i = 0; i < 300; i++) {
		/* Nothing is known of memory any more. */
		if (i % 3 == 0) munmap(mmap(0, PAGE, PROT_READ, none, -1, 0), PAGE);
		unsigned char *at = (unsigned char *)page;
		memset(at, PAINT, (size_t)(end - at));
		with((uint64_t)end);
		for (int k = 1; k <= RED_ZONE; k++) if (end[-k] != PAINT) return 2;
		while (at < end && *at == PAINT) at++;
		if (end - at > deepest) deepest = end - at;
	}
	memset((void *)page, 0, 4 * PAGE);
	for (int i = 0; i < 100; i++) with(page + DEEP);
	for (int i = 0; i < 50; i++) with(page + DEEP - 8);
	return printf("%ld\n", deepest) < 0;
}
"#,
    );
    let (output, report) = place.sites(&[&program]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let deepest: u64 = said.trim().parse().unwrap();
    assert!(deepest > 128 && deepest <= 512, "{deepest}");
    assert_eq!(from(&report, "getppid", "with+"), 400, "{report}");
    assert_eq!(from(&report, "getppid", "(unknown)"), 50, "{report}");
}

/// Calls whose end is not like that of others.
#[test]
fn calls_that_are_not_like_others_have_their_place() {
    let place = place();
    let program = place.built(
        r#"
#define _GNU_SOURCE
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline)) static
NOINLINE void forks(void) { if (!fork()) { for (int i = 0; i < 3; i++) getppid(); _exit(0); } wait(0); }
NOINLINE void vforks(void) { if (!vfork()) { execl("/bin/true", "true", (char *)0); _exit(1); } wait(0); }
NOINLINE void fails(void) { execl("/nothing", "nothing", (char *)0); __asm__ volatile(""); }
NOINLINE void maps(void) { munmap(mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096); __asm__ volatile(""); }
static sigjmp_buf out;
static void jumps(int n) { (void)n; siglongjmp(out, 1); }
NOINLINE void jumped_out_of(void)
{
	struct itimerval soon = { { 0, 0 }, { 0, 5000 } };
	struct timespec pause = { 2, 0 };

	signal(SIGALRM, jumps);
	if (sigsetjmp(out, 1)) return;
	setitimer(ITIMER_REAL, &soon, 0);
	nanosleep(&pause, 0);
	abort();
}
int main(void)
{
	for (int i = 0; i < 5; i++) { forks(); vforks(); fails(); maps(); jumped_out_of(); }
	return 0;
}
"#,
    );
    let (output, report) = place.sites(&[&program]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(from(&report, "clone", "forks+"), 5, "{report}");
    assert_eq!(from(&report, "getppid", "forks+"), 15, "{report}");
    assert_eq!(from(&report, "exit_group", "forks+"), 5, "{report}");
    assert_eq!(from(&report, "vfork", "vforks+"), 5, "{report}");
    assert_eq!(from(&report, "execve", "vforks+"), 5, "{report}");
    assert_eq!(from(&report, "execve", "fails+"), 5, "{report}");
    let failed = row(&report["call_sites"], "call", "execve").into_iter();
    let failed = failed.filter(|site| site["place"].as_str().unwrap().starts_with("fails+"));
    let failed: Vec<_> = failed.collect();
    assert_eq!(
        failed
            .iter()
            .map(|site| number(site, "errors"))
            .sum::<u64>(),
        5
    );
    // Of these the program knows the end.
    assert!(
        failed.iter().all(|site| number(site, "wall_ns") > 0),
        "{failed:?}"
    );
    for (call, place) in [("execve", "vforks+"), ("exit_group", "forks+")] {
        let sites = row(&report["call_sites"], "call", call).into_iter();
        let mut sites = sites.filter(|site| site["place"].as_str().unwrap().starts_with(place));
        assert!(sites.all(|site| site["wall_ns"].is_null()), "{report}");
    }
    for call in ["mmap", "munmap"] {
        assert_eq!(from(&report, call, "maps+"), 5, "{report}");
    }
    // Whoever jumps out of a call tells nobody where it came from; it is the only one. The last one may be open still.
    let jumped = from(&report, "clock_nanosleep", "(unknown)");
    assert!(jumped == 4 || jumped == 5, "{report}");
    assert_eq!(unknown(&report), jumped, "{report}");
}

/// Code that came from no file makes calls by the C library; it has no name but its address.
#[test]
fn code_that_came_from_no_file_has_its_address() {
    let place = place();
    let program = place.built(
        r#"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
/* push %rbx; mov %rdi, %rbx; 100 times: call *%rbx; pop %rbx; ret */
int main(void)
{
	unsigned char code[] = { 0x53, 0x55, 0x50, 0x48, 0x89, 0xfb, 0xbd, 100, 0, 0, 0, 0xff, 0xd3, 0xff, 0xcd, 0x75, 0xfa, 0x58, 0x5d, 0x5b, 0xc3 };
	void *protected = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *at_once = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memcpy(protected, code, sizeof code);
	memcpy(at_once, code, sizeof code);
	mprotect(protected, 4096, PROT_READ | PROT_EXEC);
	((void (*)(void *))protected)(getppid);
	((void (*)(void *))at_once)(getppid);
	printf("%#lx %#lx\n", (long)protected + 13, (long)at_once + 13);
	return 0;
}
"#,
    );
    let (output, report) = place.sites(&[&program]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for at in text.split_whitespace() {
        let here = from(&report, "getppid", &format!("[jit]+{at}"));
        assert_eq!(here, 100, "{at}: {report}");
    }
}

/// More places than there is room for: which calls are missing is said.
#[test]
fn a_full_table_is_said() {
    let place = place();
    let calls = "getppid(); __asm__ volatile(\"\");\n".repeat(3000);
    let program = place.built(&format!(
        "#include <unistd.h>\nint main(void) {{ for (int i = 0; i < 2; i++) {{\n{calls}}} return 0; }}\n"
    ));
    let (output, report) = place.sites(&[&program]);
    assert!(output.status.success(), "{output:?}");
    let sites = row(&report["call_sites"], "call", "getppid");
    assert!(sites.len() > 900 && sites.len() <= 1025, "{}", sites.len());
    assert_eq!(
        number(row(&report["calls"], "name", "getppid")[0], "count"),
        6000
    );
    let lost = unknown(&report);
    let said = notes(&report, "details_dropped");
    assert!(
        matches!(&said[..], [said] if said.starts_with(&format!("{lost} calls are at an unknown place"))),
        "{said:?}: {lost}"
    );
}

/// Nobody else's are made use of, nor such as others could have changed.
#[test]
fn rows_that_others_could_write_are_made_anew() {
    let place = place();
    let program = place.built(
        "#include <unistd.h>\n__attribute__((noinline)) static void calls(void) \
         { for (int i = 0; i < 100; i++) { getppid(); __asm__ volatile(\"\"); } }\n\
         int main(void) { calls(); return 0; }\n",
    );
    let rows = || -> Vec<PathBuf> {
        let all = std::fs::read_dir(place.0.path().join("debox/splice")).unwrap();
        let paths = all.map(|entry| entry.unwrap().path());
        let rows = paths.filter(|path| path.extension().is_some_and(|end| end == "callers"));
        rows.collect()
    };
    let runs = || {
        let (output, report) = place.sites(&[&program]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(from(&report, "getppid", "calls+"), 100, "{report}");
    };
    runs();
    let first: Vec<_> = rows()
        .into_iter()
        .map(|path| (std::fs::read(&path).unwrap(), path))
        .collect();
    assert!(first.len() >= 3);
    // Whole, but of somebody who may write them; and not whole.
    for (mode, keep) in [(0o666, usize::MAX), (0o444, 100)] {
        for (bytes, path) in &first {
            let mut bytes = bytes.clone();
            let head = bytes.len().min(120);
            bytes[head..].fill(0);
            bytes.truncate(keep);
            std::fs::write(path, bytes).unwrap();
            std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        runs();
        for (bytes, path) in &first {
            assert_eq!(&std::fs::read(path).unwrap(), bytes, "{path:?}");
            let mode = std::fs::metadata(path).unwrap().mode();
            assert_eq!(mode & 0o777, 0o444);
        }
    }
}

/// What it writes there by itself is its own loss.
#[test]
fn a_program_may_write_anything_into_the_sums() {
    let place = place();
    let program = place.built(
        r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) static void calls(void) { for (int i = 0; i < 1000; i++) { getppid(); __asm__ volatile(""); } }
int main(int argc, char **argv)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to, found = 0;
	char line[512];

	calls();
	while (fgets(line, sizeof line, maps))
		/* The sums by place; the rest is what its trampolines jump to. */
		if (strstr(line, "memfd:debox-splice") && sscanf(line, "%lx-%lx", &from, &to) == 2 && to - from == 45056) {
			found++;
			if (argc > 1 && *argv[1] == 'f') memset((void *)from, 0xff, to - from);
			else for (srand(7); from < to; from++) *(char *)from = rand();
		}
	calls();
	return found != 1;
}
"#,
    );
    for words in [&[program.as_str()][..], &[&program, "full"]] {
        let (output, report) = place.sites(words);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let calls = row(&report["calls"], "name", "getppid");
        assert_eq!(number(calls[0], "count"), 2000);
    }
}
