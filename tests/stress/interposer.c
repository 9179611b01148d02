/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does a program behave the same, and is every call recorded, when libc's
 * wrappers are interposed?
 *
 * Linked with -ldebox-wrap; the broker is the fake one.
 */
#include <debox.h>
#include <debox_compat.h>

#include "fake_broker.h"

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/stat.h>
#include <time.h>

static int failures, checks;
#define CHECK(cond)                                                                    \
	do {                                                                           \
		checks++;                                                              \
		if (!(cond)) {                                                         \
			failures++;                                                    \
			fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, \
				__func__, #cond);                                      \
		}                                                                      \
	} while (0)

static struct fake broker;
#define KERNEL_BITS (DEBOX_VALID_BLOCKED | DEBOX_VALID_RUNQ | DEBOX_VALID_SLEEPS | DEBOX_VALID_CPU)

static struct debox_info last(void)
{
	struct debox_info i;

	i.size = sizeof i;
	CHECK(debox_last(&i) == 0);
	return i;
}

#define RECORDED(expr, number, result)                                   \
	do {                                                             \
		long want__ = (result);                                  \
		(void)(expr);                                            \
		struct debox_info i__ = last();                          \
		CHECK(i__.nr == (number));                               \
		CHECK(i__.retval == want__);                             \
		CHECK(i__.call_site > (uint64_t)(uintptr_t)here_begin && \
		      i__.call_site < (uint64_t)(uintptr_t)here_end);    \
	} while (0)

extern const char here_begin[] __asm__("__executable_start");
extern const char here_end[] __asm__("etext");

static void test_calls(void)
{
	char name[] = "/tmp/debox-interposer-XXXXXX", buf[64];
	struct iovec iov = { buf, 4 };
	struct stat st;
	struct timespec ts = { 0, 2000000 };
	struct debox_info i;
	int fd, p[2], *leak;
	void *m;

	fd = mkstemp(name);
	RECORDED(write(fd, "hello", 5), SYS_write, 5);
	RECORDED(pread(fd, buf, 5, 0), SYS_pread64, 5);
	RECORDED(pread64(fd, buf, 5, 1), SYS_pread64, 4);
	RECORDED(preadv(fd, &iov, 1, 0), SYS_preadv, 4);
	RECORDED(lseek(fd, 2, SEEK_SET), SYS_lseek, 2);
	RECORDED(read(fd, buf, sizeof buf), SYS_read, 3);
	RECORDED(fsync(fd), SYS_fsync, 0);
	RECORDED(fstat(fd, &st), SYS_newfstatat, 0);
	CHECK(st.st_size == 5);
	RECORDED(fcntl(fd, F_GETFD), SYS_fcntl, 0);
	RECORDED(fcntl(fd, F_SETFD, FD_CLOEXEC), SYS_fcntl, 0);
	RECORDED(fcntl(fd, F_GETFD), SYS_fcntl, FD_CLOEXEC);
	m = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(last().nr == SYS_mmap && last().retval == (long)m);
	RECORDED(munmap(m, 4096), SYS_munmap, 0);
	CHECK(mmap(NULL, 0, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(last().retval == -EINVAL);
	close(fd);
	CHECK(last().nr == SYS_close && last().retval == 0);
	/* The mode is passed on, and only when it is there. */
	unlink(name);
	CHECK(last().nr == SYS_unlink);
	umask(0);
	fd = open(name, O_CREAT | O_RDWR, 0651);
	CHECK(last().nr == SYS_openat && last().retval == fd);
	CHECK(fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0651);
	close(fd);
	fd = openat64(AT_FDCWD, name, O_RDONLY);
	CHECK(fd >= 0);
	close(fd);
	fd = open("/tmp", O_TMPFILE | O_RDWR, 0604);
	CHECK(fd < 0 || (fstat(fd, &st) == 0 && (st.st_mode & 07777) == 0604));
	if (fd >= 0)
		close(fd);
	unlink(name);
	/* Failures: value, errno and record. */
	errno = 0;
	CHECK(open("/nonexistent/x", O_RDONLY) == -1 && errno == ENOENT);
	CHECK(last().retval == -ENOENT);
	errno = 123;
	CHECK(getpid() == (pid_t)syscall(SYS_getpid) && errno == 123);
	CHECK(posix_fadvise(-1, 0, 0, POSIX_FADV_DONTNEED) == EBADF && errno == 123);
	CHECK(last().retval == -EBADF && last().nr == SYS_fadvise64);
	RECORDED(syscall(SYS_getppid), SYS_getppid, getppid());
	CHECK(syscall(SYS_close, -1) == -1 && errno == EBADF && last().retval == -EBADF);
	/* All six arguments arrive. */
	m = (void *)syscall(SYS_mmap, 0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
	CHECK(m != MAP_FAILED);
	*(char *)m = 1;
	m = mremap(m, 8192, 4096, 0);
	CHECK(m != MAP_FAILED && last().nr == SYS_mremap);
	munmap(m, 4096);
	CHECK(pipe(p) == 0);
	leak = &p[0];
	CHECK(write(p[1], "xy", 2) == 2);
	CHECK(ioctl(p[0], FIONREAD, leak) == 0 && *leak == 2 && last().nr == SYS_ioctl);
	/* Blocking: real time passes in the record. */
	nanosleep(&ts, NULL);
	i = last();
	CHECK(i.nr == SYS_clock_nanosleep && i.wall_ns >= 2000000 && i.wall_ns < 1000000000);
	CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL) == 0 && last().retval == 0);
	ts.tv_nsec = -1;
	CHECK(clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, NULL) == EINVAL && last().retval == -EINVAL);
	close(p[1]);
}

static void test_adoption(void)
{
	struct debox_info i;
	uint64_t seq = last().call_seq;

	/* The interposed call belongs to the bracket. */
	CHECK(DEBOX_CALL(getppid()) == getppid());
	seq = last().call_seq;
	DEBOX_CALL(getuid());
	i = last();
	CHECK(i.nr == SYS_getuid && i.call_seq == seq + 1 && i.calls == 1 && (i.valid & DEBOX_VALID_NR));
	DEBOX_CALL((getuid(), getgid(), getppid()));
	i = last();
	CHECK(i.nr == SYS_getuid && i.call_seq == seq + 2 && i.calls == 3);
	CHECK((i.valid & KERNEL_BITS) == KERNEL_BITS);
}

static void test_vfork(void)
{
	struct debox_control *c = NULL, before;
	struct debox_info i;
	int status;
	pid_t pid;

	getppid();
	fake_record(&broker, &c);
	before = *c;
	pid = vfork();
	if (pid == 0) {
		char *const argv[] = { "true", NULL };

		/* All on the parent's memory. */
		close(77);
		getpid();
		execve("/nonexistent", argv, argv);
		execve("/bin/true", argv, argv);
		_exit(1);
	}
	CHECK(pid > 0);
	CHECK(c->open_seq == 0 && !memcmp(&before, c, sizeof before));
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	i = last();
	CHECK(i.nr == SYS_wait4 && i.retval == pid && (i.valid & KERNEL_BITS) == KERNEL_BITS);
	CHECK(i.flags == DEBOX_FLAG_WRAP);
	pid = vfork();
	if (pid == 0)
		_exit(3);
	CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 3);
	/* And inside a bracket. */
	pid = DEBOX_CALL_NR(SYS_vfork, vfork());
	if (pid == 0)
		_exit(4);
	CHECK(last().nr == SYS_vfork && last().retval == pid);
	CHECK(waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 4);
	CHECK(system("exit 5") >> 8 == 5);
	CHECK(last().call_seq > 0);
}

static void test_fork(void)
{
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct debox_info i = { .size = sizeof i };

		failures = 0;
		CHECK(getppid() == (pid_t)broker.state->owner[0]);
		i = last();
		CHECK(i.nr == SYS_getppid && i.pid == (uint32_t)getpid());
		_exit(failures != 0);
	}
	CHECK(last().nr == SYS_clone && last().retval == pid);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* ------------------------------------------------------------ cancellation */

static int cancel_pipe[2];
static int cleaned;

static void clean(void *arg)
{
	struct debox_info i;

	cleaned = 1;
	getppid();
	i = last();
	/* From as deep in the stack as the abandoned bracket was, this call is
	 * taken for one inside it. */
	if (!arg)
		CHECK(i.nr == SYS_getppid && i.flags == DEBOX_FLAG_WRAP);
}

static void *cancelled(void *bracket)
{
	char c;

	fake_bind(&broker, getpid(), (uint32_t)gettid());
	pthread_cleanup_push(clean, bracket);
	if (bracket)
		DEBOX_CALL(read(cancel_pipe[0], &c, 1));
	else
		CHECK(read(cancel_pipe[0], &c, 1) == -2);
	pthread_cleanup_pop(0);
	return NULL;
}

static void test_cancel(void)
{
	CHECK(pipe(cancel_pipe) == 0);
	for (int bracket = 0; bracket < 2; bracket++) {
		pthread_t t;
		void *result;

		cleaned = 0;
		pthread_create(&t, NULL, cancelled, bracket ? &t : NULL);
		usleep(50000);
		pthread_cancel(t);
		pthread_join(t, &result);
		CHECK(result == PTHREAD_CANCELED && cleaned);
		for (uint32_t s = 0; s < broker.state->segments; s++)
			for (uint32_t j = 0; j < DEBOX_SEGMENT_SLOTS; j++)
				CHECK(broker.controls[s][j].open_seq == 0);
	}
}

static struct debox_info in_handler;

static void on_signal(int sig)
{
	getgid();
	in_handler = last();
}

static void test_signal(void)
{
	struct sigaction sa = { .sa_handler = on_signal };
	struct debox_info i;
	struct timespec ts = { 0, 300000000 };
	struct itimerval it = { .it_value = { 0, 20000 } };
	sigset_t none, old;

	sigaction(SIGALRM, &sa, NULL);
	setitimer(ITIMER_REAL, &it, NULL);
	errno = 0;
	CHECK(nanosleep(&ts, NULL) == -1 && errno == EINTR);
	i = last();
	CHECK(i.nr == SYS_clock_nanosleep && i.retval == -EINTR && i.wall_ns > 10000000);
	CHECK(in_handler.nr == SYS_getgid && in_handler.wall_ns < 10000000);
	/* The mask of sigsuspend is in force, and undone. */
	sigemptyset(&none);
	sigset_t alarm_set;
	sigemptyset(&alarm_set);
	sigaddset(&alarm_set, SIGALRM);
	sigprocmask(SIG_BLOCK, &alarm_set, &old);
	setitimer(ITIMER_REAL, &it, NULL);
	CHECK(sigsuspend(&none) == -1 && errno == EINTR);
	CHECK(last().nr == SYS_rt_sigsuspend && last().retval == -EINTR);
	sigprocmask(SIG_SETMASK, NULL, &none);
	CHECK(sigismember(&none, SIGALRM));
	sigprocmask(SIG_SETMASK, &old, NULL);
}

static void test_descriptors(void)
{
	struct debox_info i;
	int fd;

	/* A program that closes what it never opened finds nothing there. */
	errno = 0;
	for (fd = 500; fd < 600; fd++)
		CHECK(close(fd) == -1 && errno == EBADF);
	CHECK(close_range(500, 700, 0) == 0);
	closefrom(512);
	CHECK(dup2(2, 512) == 512 && dup2(2, 513) == 513);
	CHECK(close(512) == 0 && close(513) == 0);
	usleep(50000);
	getppid();
	i = last();
	CHECK((i.valid & KERNEL_BITS) == KERNEL_BITS);
}

static void test_compat(void)
{
	static DeBoxInfo box;

	CHECK(DeBoxControl(&box, 5, 0) == 0);
	CHECK(write(-1, "", 1) == -1 && errno == EBADF);
	CHECK(box.syscallNum == SYS_write && (DeBoxValid() & DEBOX_VALID_WALL));
	usleep(2000);
	CHECK(box.syscallNum == SYS_clock_nanosleep && box.CallTime.callTimeval.tv_usec >= 2000);
	DeBoxControl(NULL, 0, 0);
	getppid();
	CHECK(box.syscallNum == SYS_clock_nanosleep);
}

#define RUN(t)                                                                  \
	do {                                                                    \
		int before = failures;                                          \
		t();                                                            \
		printf("%-28s %s\n", #t, failures == before ? "ok" : "FAILED"); \
	} while (0)

/* With one thread, the interposer makes the simplest calls itself: results,
 * errno and records stay what libc's functions would have left, and so does the
 * one thing that such a process can still ask of them, its own cancellation. */
static void test_alone(void)
{
	char c;
	int status;
	pid_t pid;

	errno = 0;
	RECORDED(read(-1, &c, 1), SYS_read, -EBADF);
	CHECK(errno == EBADF);
	CHECK(read(-1, &c, 1) == -1);
	CHECK(pread(-1, &c, 1, 0) == -1 && errno == EBADF);
	errno = 0;
	RECORDED(getppid(), SYS_getppid, getppid());
	CHECK(errno == 0);
	pid = fork();
	if (!pid) {
		int fd = open("/dev/zero", O_RDONLY);

		if (pread(fd, &c, 1, 0) != 1)
			_exit(6);
		pthread_cancel(pthread_self());
		pread(fd, &c, 1, 0);
		_exit(7);
	}
	/* The last thread of a process, cancelled, ends it with 0. */
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	fake_start(&broker);
	CHECK(debox_open(NULL) == 0);
	CHECK(debox_status() == DEBOX_STATUS_MEASURED);
	RUN(test_calls);
	RUN(test_alone);
	RUN(test_adoption);
	RUN(test_vfork);
	RUN(test_fork);
	RUN(test_cancel);
	RUN(test_signal);
	RUN(test_descriptors);
	RUN(test_compat);
	/* And again in a process that has had threads. */
	RUN(test_calls);
	fake_stop(&broker);
	printf("%d checks, %d failures\n", checks, failures);
	return failures != 0;
}
