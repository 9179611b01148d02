/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which program makes calls in numbers known beforehand, in awkward ways?
 *
 *     calls getppid N           N calls, libc's syscall()
 *     calls threads T N         T threads, N getppid() each
 *     calls fork N              N children, one getppid() each
 *     calls vfork N             N vfork()ed children that execve() /bin/true
 *     calls exec N              execve()s itself N times
 *     calls thread-exec         a second thread execs while the first sleeps
 *     calls killed              a thread blocks in read(); kill -9 by itself
 *     calls signal NR           dies of that signal
 *     calls exit CODE
 *     calls errors N            N close(-1)
 *     calls unknown             a system call number that does not exist
 *     calls handler N           N signals whose handler makes getppid() while
 *                               pause() waits, and a longjmp out of the last
 *     calls sandbox N           N getppid() in a thread and a child behind a
 *                               seccomp filter that kills at other calls
 *     calls strict N            N write() in seccomp's strict mode
 *     calls no-stamps N         N getppid() without the time stamp counter
 *     calls file-limit N        N getppid() in a child that may write 4 KiB files
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void getppids(long n)
{
	for (long i = 0; i < n; i++)
		syscall(SYS_getppid);
}

static void *thread_main(void *n)
{
	getppids((long)n);
	return NULL;
}

static char **self;

static void *thread_exec(void *arg)
{
	char *argv[] = { self[0], "exit", "7", NULL };

	(void)arg;
	usleep(20000);
	execv("/proc/self/exe", argv);
	return NULL;
}

static void *thread_kill(void *arg)
{
	(void)arg;
	usleep(20000);
	kill(getpid(), SIGKILL);
	return NULL;
}

/* Kills the process at any call that a program of C itself does not need for
 * threads, children and output. */
static int sandbox(void)
{
	static const int allowed[] = { SYS_write, SYS_getppid, SYS_clone, SYS_clone3, SYS_vfork,
				       SYS_mmap, SYS_mprotect, SYS_munmap, SYS_madvise, SYS_brk, SYS_futex, SYS_wait4,
				       SYS_rseq, SYS_set_robust_list, SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_exit,
				       SYS_exit_group, SYS_getrandom };
	enum { ALLOWED = sizeof(allowed) / sizeof(*allowed) };
	struct sock_filter code[ALLOWED + 3];
	struct sock_fprog filter = { ALLOWED + 3, code };

	code[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);
	for (int i = 0; i < ALLOWED; i++)
		code[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
							   (unsigned)allowed[i], ALLOWED - i, 0);
	code[ALLOWED + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
	code[ALLOWED + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

static sigjmp_buf jump;
static volatile int handled, last;

static void handler(int n)
{
	(void)n;
	syscall(SYS_getppid);
	if (++handled == last)
		siglongjmp(jump, 1);
}

static void *thread_signal(void *target)
{
	for (int i = 0; i < last; i++) {
		usleep(3000);
		while (handled < i)
			usleep(500);
		pthread_kill(*(pthread_t *)target, SIGUSR1);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	long a = argc > 2 ? atol(argv[2]) : 0, b = argc > 3 ? atol(argv[3]) : 0;
	pthread_t thread;

	self = argv;
	if (!strcmp(what, "getppid")) {
		getppids(a);
	} else if (!strcmp(what, "threads")) {
		for (long done = 0; done < a;) {
			pthread_t some[64];
			long n = a - done < 64 ? a - done : 64;

			for (long i = 0; i < n; i++)
				if (pthread_create(&some[i], NULL, thread_main, (void *)b))
					return 98;
			for (long i = 0; i < n; i++)
				pthread_join(some[i], NULL);
			done += n;
		}
	} else if (!strcmp(what, "fork")) {
		for (long i = 0; i < a; i++) {
			pid_t child = fork();

			if (child < 0)
				return 98;
			if (!child) {
				getppids(1);
				_exit(0);
			}
			waitpid(child, NULL, 0);
		}
	} else if (!strcmp(what, "vfork")) {
		for (long i = 0; i < a; i++) {
			pid_t child = vfork();

			if (child < 0)
				return 98;
			if (!child) {
				char *args[] = { "true", NULL };

				execv("/bin/true", args);
				_exit(1);
			}
			waitpid(child, NULL, 0);
		}
	} else if (!strcmp(what, "exec")) {
		char n[32];
		char *args[] = { argv[0], "exec", n, NULL };

		getppids(1);
		if (a > 0) {
			snprintf(n, sizeof(n), "%ld", a - 1);
			execv("/proc/self/exe", args);
			return 98;
		}
	} else if (!strcmp(what, "thread-exec")) {
		pthread_create(&thread, NULL, thread_exec, NULL);
		for (;;)
			pause();
	} else if (!strcmp(what, "killed")) {
		int fd[2];
		char c;

		if (pipe(fd))
			return 98;
		pthread_create(&thread, NULL, thread_kill, NULL);
		if (read(fd[0], &c, 1) >= 0)
			return 98;
	} else if (!strcmp(what, "signal")) {
		struct rlimit none = { 0, 0 };

		setrlimit(RLIMIT_CORE, &none);
		signal((int)a, SIG_DFL);
		raise((int)a);
	} else if (!strcmp(what, "exit")) {
		_exit((int)a);
	} else if (!strcmp(what, "errors")) {
		for (long i = 0; i < a; i++)
			if (close(-1) != -1 || errno != EBADF)
				return 98;
	} else if (!strcmp(what, "unknown")) {
		if (syscall(9999) != -1 || errno != ENOSYS)
			return 98;
	} else if (!strcmp(what, "sandbox")) {
		pid_t child;
		int status = 0;

		if (sandbox())
			return 98;
		getppids(a);
		pthread_create(&thread, NULL, thread_main, (void *)a);
		pthread_join(thread, NULL);
		child = fork();
		if (child == 0) {
			getppids(a);
			_exit(3);
		}
		if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3)
			return 98;
	} else if (!strcmp(what, "strict")) {
		/* Takes the time stamp counter away, too. */
		prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
		for (long i = 0; i < a; i++)
			if (write(1, ".", 1) != 1)
				syscall(SYS_exit, 98);
		syscall(SYS_exit, 4);
	} else if (!strcmp(what, "no-stamps")) {
		prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
		getppids(a);
	} else if (!strcmp(what, "file-limit")) {
		struct rlimit small = { 4096, 4096 };
		pid_t child;
		int status = 0;

		setrlimit(RLIMIT_FSIZE, &small);
		child = fork();
		if (child == 0) {
			getppids(a);
			_exit(3);
		}
		if (waitpid(child, &status, 0) != child || status != 3 << 8)
			return 98;
	} else if (!strcmp(what, "handler")) {
		struct sigaction sa = { .sa_handler = handler };
		pthread_t main_thread = pthread_self();

		last = (int)a;
		sigaction(SIGUSR1, &sa, NULL);
		pthread_create(&thread, NULL, thread_signal, &main_thread);
		if (!sigsetjmp(jump, 1))
			for (;;)
				pause();
		pthread_join(thread, NULL);
		getppids(1);
	} else {
		fprintf(stderr, "calls: what is \"%s\"?\n", what);
		return 2;
	}
	return 0;
}
