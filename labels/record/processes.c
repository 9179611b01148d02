/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits for processes, signals, time and freezers can be provoked? */
#define _GNU_SOURCE
#include <linux/if_tun.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "record.h"

static void case_wait4(void)
{
	if (partner() == 0)
		pause_forever();
	ready();
	wait(NULL);
}

static void case_waitid(void)
{
	siginfo_t info;
	if (partner() == 0)
		pause_forever();
	ready();
	waitid(P_ALL, 0, &info, WEXITED);
}

static void case_vfork(void)
{
	ready();
	if (vfork() == 0) {
		usleep(100000);
		_exit(0);
	}
}

static void case_nanosleep(void)
{
	struct timespec second = { .tv_sec = 1 };
	ready();
	syscall(SYS_nanosleep, &second, NULL);
}

static void case_clock_nanosleep(void)
{
	struct timespec until;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	ready();
	clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL);
}

static void case_cpu_nanosleep(void)
{
	struct timespec second = { .tv_sec = 1 };
	ready();
	clock_nanosleep(CLOCK_PROCESS_CPUTIME_ID, 0, &second, NULL);
}

static void case_alarm_nanosleep(void)
{
	struct timespec second = { .tv_sec = 1 };
	ready();
	clock_nanosleep(CLOCK_BOOTTIME_ALARM, 0, &second, NULL);
}

static void case_pause(void)
{
	ready();
	pause();
}

static void case_sigsuspend(void)
{
	sigset_t none;
	sigemptyset(&none);
	ready();
	sigsuspend(&none);
}

static void case_sigwait(void)
{
	sigset_t one;
	int signal_number;
	sigemptyset(&one);
	sigaddset(&one, SIGUSR1);
	sigprocmask(SIG_BLOCK, &one, NULL);
	ready();
	sigwait(&one, &signal_number);
}

static void case_signalfd(void)
{
	sigset_t one;
	struct signalfd_siginfo info;
	sigemptyset(&one);
	sigaddset(&one, SIGUSR1);
	sigprocmask(SIG_BLOCK, &one, NULL);
	int fd = MUST(signalfd(-1, &one, 0));
	ready();
	read(fd, &info, sizeof(info));
}

static void case_signal_stop(void)
{
	ready();
	raise(SIGSTOP);
}

static void case_ptrace_stop(void)
{
	if (partner() == 0) {
		MUST(ptrace(PTRACE_SEIZE, getppid(), NULL, NULL));
		usleep(100000);
		kill(getppid(), SIGUSR1);
		pause_forever();
	}
	settle();
	ready();
	sleep(1);
	sleep(1);
}

static void case_cpu_migration(void)
{
	cpu_set_t set;
	ready();
	for (int i = 0; i < 200; i++) {
		CPU_ZERO(&set);
		CPU_SET(i % 2, &set);
		sched_setaffinity(0, sizeof(set), &set);
	}
}

static void *thread_pause(void *unused)
{
	pause_forever();
	return unused;
}

/* A thread that a tracer holds in its exit stop keeps an execve waiting. */
static void case_exec_threads(void)
{
	pthread_t thread;
	MUST(pthread_create(&thread, NULL, thread_pause, NULL));
	int told[2];
	MUST(pipe(told));
	if (partner() == 0) {
		char path[64];
		pid_t parent = getppid();
		for (pid_t tid = parent + 1; tid < parent + 64; tid++) {
			snprintf(path, sizeof(path), "/proc/%d/task/%d", parent, tid);
			if (access(path, F_OK) == 0)
				MUST(ptrace(PTRACE_SEIZE, tid, NULL, PTRACE_O_TRACEEXIT));
		}
		write(told[1], "x", 1);
		pause_forever();
	}
	char byte;
	MUST(read(told[0], &byte, 1));
	ready();
	execl("/proc/self/exe", "record", "-x", NULL);
}

static void case_seccomp_notify(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { 4, code };
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
	ready();
	syscall(SYS_getppid);
}

static void case_freezer(void)
{
	char root[] = "cgroup-XXXXXX", path[128];
	MUST(mkdtemp(root));
	MUST(mount("none", root, "cgroup2", 0, NULL));
	snprintf(path, sizeof(path), "%s/debox-record-%d", root, getpid());
	MUST(mkdir(path, 0755));
	char procs[160], freeze[160];
	snprintf(procs, sizeof(procs), "%s/cgroup.procs", path);
	snprintf(freeze, sizeof(freeze), "%s/cgroup.freeze", path);
	write_file(procs, "%d", getpid());
	pid_t sleeper = getpid();
	/* Not a partner: it has to outlive the sleeper to clean up, and to be
	 * outside of the frozen group. */
	if (fork() == 0) {
		setsid();
		char other[160];
		snprintf(other, sizeof(other), "%s/cgroup.procs", root);
		write_file(other, "%d", getpid());
		usleep(60000);
		write_file(freeze, "1");
		usleep(300000);
		kill(sleeper, SIGKILL);
		usleep(50000);
		write_file(freeze, "0");
		usleep(50000);
		rmdir(path);
		umount2(root, MNT_DETACH);
		rmdir(root);
		_exit(0);
	}
	ready();
	for (;;)
		getppid();
}

/* The version 1 freezer. */
static void case_freezer_v1(void)
{
	char root[] = "cgroup-XXXXXX", path[64], file[96];
	MUST(mkdtemp(root));
	MUST(mount("none", root, "cgroup", 0, "freezer"));
	snprintf(path, sizeof(path), "%s/debox-record-%d", root, getpid());
	MUST(mkdir(path, 0755));
	snprintf(file, sizeof(file), "%s/cgroup.procs", path);
	write_file(file, "%d", getpid());
	pid_t sleeper = getpid();
	if (fork() == 0) {
		char other[96];
		setsid();
		snprintf(other, sizeof(other), "%s/cgroup.procs", root);
		write_file(other, "%d", getpid());
		snprintf(file, sizeof(file), "%s/freezer.state", path);
		usleep(60000);
		write_file(file, "FROZEN");
		usleep(300000);
		kill(sleeper, SIGKILL);
		write_file(file, "THAWED");
		usleep(100000);
		rmdir(path);
		umount2(root, MNT_DETACH);
		_exit(0);
	}
	ready();
	for (;;)
		getppid();
}

const struct test_case processes_cases[] = {
	CASE(wait4, "wait-child"),
	CASE(waitid, "wait-child"),
	CASE(vfork, "vfork"),
	CASE(nanosleep, "nanosleep"),
	CASE(clock_nanosleep, "nanosleep"),
	CASE(cpu_nanosleep, "nanosleep"),
	CASE(alarm_nanosleep, "nanosleep"),
	CASE(pause, "signal-wait"),
	CASE(sigsuspend, "signal-wait"),
	CASE(sigwait, "signal-wait"),
	CASE(signalfd, "signalfd"),
	CASE(signal_stop, "signal-stop"),
	CASE(ptrace_stop, "?"),
	CASE(cpu_migration, "cpu-migration"),
	CASE(exec_threads, "exec"),
	CASE(seccomp_notify, "seccomp-notify"),
	CASE(freezer, "cgroup-freezer"),
	CASE(freezer_v1, "freezer"),
	{ 0 },
};
