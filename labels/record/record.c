/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What do the kernel stacks of sleeping threads look like on this kernel?
 *
 * Each case below blocks in one known way. The program runs it in a process
 * of its own, lets ftrace write down the kernel stack at each switch away from
 * that process while it sleeps, and prints the distinct stacks as a fixture
 * for the tests of the label rules (labels/stacks/): `[label] case origin`,
 * then the functions, innermost first.
 *
 *   cc -O1 -static -pthread -o record record.c
 *   ./record [-t MILLISECONDS] [-d DEVICE -f FILESYSTEM] [CASE…]
 *
 * Root only. It uses a tracing instance of its own. Cases that need a disk run
 * only with -d: a scratch device with a fresh file system, which is mounted,
 * written to, frozen and filled. Some cases (marked) change the whole machine
 * for a moment and run only with -m: for throw-away guests.
 *
 * A stack trace from /proc/PID/stack would not do: it leaves out every
 * function of the scheduler's section, so mutexes, rwsems and completions.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <linux/bpf.h>
#include <linux/fuse.h>
#include <linux/fs.h>
#include <linux/futex.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_tun.h>
#include <linux/io_uring.h>
#include <linux/netlink.h>
#include <linux/perf_event.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <linux/vm_sockets.h>
#include <mqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/reboot.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define MIB (1u << 20)

static int ready_pipe[2], go_pipe[2];
static const char *disk_device, *disk_type;
/* Names are relative to a scratch directory that goes away at the end. */
static char scratch[] = "/tmp/debox-record-XXXXXX";
static char disk[64];

static void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void fail(const char *format, ...)
{
	int error = errno;
	va_list arguments;
	va_start(arguments, format);
	fprintf(stderr, "record: ");
	vfprintf(stderr, format, arguments);
	fprintf(stderr, ": %s\n", strerror(error));
	va_end(arguments);
	_exit(3);
}

#define MUST(call) ({ __auto_type must_ = (call); if (must_ == (__typeof__(must_))-1) fail("%s", #call); must_; })

/* Everything before this is set-up and not recorded. */
static void ready(void)
{
	char byte = 0;
	MUST(write(ready_pipe[1], &byte, 1));
	MUST(read(go_pipe[0], &byte, 1));
}

/* A second process of the case; it dies with it. */
static pid_t partner(void)
{
	pid_t child = MUST(fork());
	if (child == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return child;
}

static void pause_forever(void)
{
	for (;;)
		pause();
}

static void settle(void)
{
	usleep(30000);
}

static void write_file(const char *path, const char *format, ...)
{
	char text[256];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, length) != length)
		fail("%s > %s", text, path);
	close(fd);
}

static char *in_disk(const char *name)
{
	static char path[8][PATH_MAX];
	static int next;
	char *result = path[next++ % 8];
	snprintf(result, PATH_MAX, "%s/%s", disk, name);
	return result;
}

/* ------------------------------------------------- pages that never arrive */

static int page_fd;

/* Memory whose first touch blocks for ever (userfaultfd): a way to stop a
 * system call in the middle, holding its locks. */
static char *stuck_memory(size_t size)
{
	page_fd = MUST((int)syscall(SYS_userfaultfd, O_CLOEXEC));
	struct uffdio_api api = { .api = UFFD_API };
	MUST(ioctl(page_fd, UFFDIO_API, &api));
	char *memory = MUST(mmap(NULL, size, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	struct uffdio_register range = {
		.range = { .start = (uintptr_t)memory, .len = size },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	MUST(ioctl(page_fd, UFFDIO_REGISTER, &range));
	return memory;
}

static void case_userfault(void)
{
	volatile char *memory = stuck_memory(4096);
	ready();
	memory[0] = 1;
}

static void case_userfault_read(void)
{
	stuck_memory(4096);
	struct uffd_msg message;
	ready();
	MUST(read(page_fd, &message, sizeof(message)));
}

/* ----------------------------------------------------------------- pipes */

static int pipe_ends[2];

static void fill(int fd)
{
	static char block[65536];
	int flags = fcntl(fd, F_GETFL);
	fcntl(fd, F_SETFL, flags | O_NONBLOCK);
	while (write(fd, block, sizeof(block)) > 0)
		;
	while (write(fd, block, 1) > 0)
		;
	fcntl(fd, F_SETFL, flags);
}

static void case_pipe_read(void)
{
	char byte;
	MUST(pipe(pipe_ends));
	ready();
	read(pipe_ends[0], &byte, 1);
}

static void case_pipe_write(void)
{
	MUST(pipe(pipe_ends));
	fill(pipe_ends[1]);
	ready();
	write(pipe_ends[1], "x", 1);
}

static void case_pipe_splice_in(void)
{
	MUST(pipe(pipe_ends));
	int null = MUST(open("/dev/null", O_WRONLY));
	ready();
	splice(pipe_ends[0], NULL, null, NULL, 4096, 0);
}

static void case_pipe_vmsplice(void)
{
	static char page[4096] __attribute__((aligned(4096)));
	struct iovec vec = { page, sizeof(page) };
	MUST(pipe(pipe_ends));
	fill(pipe_ends[1]);
	ready();
	vmsplice(pipe_ends[1], &vec, 1, 0);
}

static void case_pipe_tee(void)
{
	int other[2];
	MUST(pipe(pipe_ends));
	MUST(pipe(other));
	ready();
	tee(pipe_ends[0], other[1], 4096, 0);
}

static void case_pipe_splice_pipe(void)
{
	int other[2];
	MUST(pipe(pipe_ends));
	MUST(pipe(other));
	write(pipe_ends[1], "x", 1);
	fill(other[1]);
	ready();
	splice(pipe_ends[0], NULL, other[1], NULL, 4096, 0);
}

static void case_fifo_open(void)
{
	char path[] = "fifo-XXXXXX";
	MUST(mkdtemp(path));
	char fifo[64];
	snprintf(fifo, sizeof(fifo), "%s/f", path);
	MUST(mkfifo(fifo, 0600));
	ready();
	open(fifo, O_RDONLY);
}

static void case_pipe_lock(void)
{
	MUST(pipe(pipe_ends));
	if (partner() == 0) {
		write(pipe_ends[1], stuck_memory(4096), 4096);
		_exit(0);
	}
	settle();
	ready();
	write(pipe_ends[1], "x", 1);
}

/* --------------------------------------------------------------- futexes */

static uint32_t word[16];

static void case_futex_wait(void)
{
	ready();
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, NULL);
}

static void case_futex_bitset_timeout(void)
{
	struct timespec until = { .tv_sec = 1u << 30 };
	ready();
	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, 0, &until, NULL, ~0u);
}

static void case_futex_waitv(void)
{
	struct {
		uint64_t value, address;
		uint32_t flags, reserved;
	} waiters[2] = {
		{ 0, (uintptr_t)&word[0], 2, 0 },
		{ 0, (uintptr_t)&word[1], 2, 0 },
	};
	ready();
	syscall(449, waiters, 2, 0, NULL, 0);
}

static void case_futex_pi(void)
{
	uint32_t *shared = MUST(mmap(NULL, 4096, PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	if (partner() == 0) {
		syscall(SYS_futex, shared, FUTEX_LOCK_PI, 0, NULL);
		pause_forever();
	}
	settle();
	ready();
	syscall(SYS_futex, shared, FUTEX_LOCK_PI, 0, NULL);
}

static void case_futex_requeue_pi(void)
{
	ready();
	syscall(SYS_futex, &word[0], FUTEX_WAIT_REQUEUE_PI, 0, NULL, &word[1], 0);
}

/* ------------------------------------------------------------ file locks */

static char lock_path[] = "lock-XXXXXX";

static void hold_lock(short type, int command)
{
	struct flock all = { .l_type = type };
	MUST(mkstemp(lock_path));
	if (partner() == 0) {
		int fd = MUST(open(lock_path, O_RDWR));
		MUST(command ? fcntl(fd, command, &all) : flock(fd, LOCK_EX));
		pause_forever();
	}
	settle();
}

static void case_flock(void)
{
	hold_lock(0, 0);
	int fd = MUST(open(lock_path, O_RDWR));
	ready();
	flock(fd, LOCK_EX);
}

static void case_posix_lock(void)
{
	struct flock all = { .l_type = F_WRLCK };
	hold_lock(F_WRLCK, F_SETLK);
	int fd = MUST(open(lock_path, O_RDWR));
	ready();
	fcntl(fd, F_SETLKW, &all);
}

static void case_ofd_lock(void)
{
	struct flock all = { .l_type = F_WRLCK };
	hold_lock(F_WRLCK, F_SETLK);
	int fd = MUST(open(lock_path, O_RDWR));
	ready();
	fcntl(fd, F_OFD_SETLKW, &all);
}

static void case_lease_break(void)
{
	/* Nobody may have it open for writing, or there is no lease. */
	close(MUST(mkstemp(lock_path)));
	if (partner() == 0) {
		signal(SIGIO, SIG_IGN);
		int fd = MUST(open(lock_path, O_RDONLY));
		MUST(fcntl(fd, F_SETLEASE, F_RDLCK));
		pause_forever();
	}
	settle();
	ready();
	open(lock_path, O_WRONLY);
}

/* ------------------------------------------------- processes and signals */

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

/* ---------------------------------------------------- descriptors' events */

static void case_eventfd_read(void)
{
	eventfd_t value;
	int fd = MUST(eventfd(0, 0));
	ready();
	eventfd_read(fd, &value);
}

static void case_eventfd_write(void)
{
	int fd = MUST(eventfd(0, 0));
	eventfd_write(fd, UINT64_MAX - 1);
	ready();
	eventfd_write(fd, 1);
}

static void case_timerfd(void)
{
	uint64_t expirations;
	struct itimerspec later = { .it_value = { .tv_sec = 100 } };
	int fd = MUST(timerfd_create(CLOCK_MONOTONIC, 0));
	MUST(timerfd_settime(fd, 0, &later, NULL));
	ready();
	read(fd, &expirations, sizeof(expirations));
}

static void case_poll(void)
{
	MUST(pipe(pipe_ends));
	struct pollfd fd = { pipe_ends[0], POLLIN, 0 };
	ready();
	poll(&fd, 1, -1);
}

static void case_ppoll(void)
{
	struct timespec long_time = { .tv_sec = 100 };
	ready();
	ppoll(NULL, 0, &long_time, NULL);
}

static void case_select(void)
{
	struct timeval long_time = { .tv_sec = 100 };
	fd_set set;
	MUST(pipe(pipe_ends));
	FD_ZERO(&set);
	FD_SET(pipe_ends[0], &set);
	ready();
	select(pipe_ends[0] + 1, &set, NULL, NULL, &long_time);
}

static void case_epoll(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	MUST(pipe(pipe_ends));
	int fd = MUST(epoll_create1(0));
	MUST(epoll_ctl(fd, EPOLL_CTL_ADD, pipe_ends[0], &event));
	ready();
	epoll_wait(fd, &event, 1, -1);
}

static void case_epoll_pwait2(void)
{
	struct epoll_event event;
	struct timespec long_time = { .tv_sec = 100 };
	int fd = MUST(epoll_create1(0));
	ready();
	syscall(441, fd, &event, 1, &long_time, NULL, 8);
}

static void case_inotify(void)
{
	char buffer[4096];
	int fd = MUST(inotify_init());
	ready();
	read(fd, buffer, sizeof(buffer));
}

static void case_fanotify_read(void)
{
	char buffer[4096];
	int fd = MUST(fanotify_init(FAN_CLASS_NOTIF, O_RDONLY));
	ready();
	read(fd, buffer, sizeof(buffer));
}

static void case_fanotify_permission(void)
{
	MUST(mkstemp(lock_path));
	if (partner() == 0) {
		int fd = MUST(fanotify_init(FAN_CLASS_CONTENT, O_RDONLY));
		MUST(fanotify_mark(fd, FAN_MARK_ADD, FAN_OPEN_PERM, AT_FDCWD, lock_path));
		pause_forever();
	}
	settle();
	ready();
	open(lock_path, O_RDONLY);
}

static void case_io_uring(void)
{
	struct io_uring_params parameters = { 0 };
	int fd = MUST((int)syscall(SYS_io_uring_setup, 8, &parameters));
	ready();
	syscall(SYS_io_uring_enter, fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
}

static void case_aio(void)
{
	aio_context_t context = 0;
	struct io_event event;
	MUST(syscall(SYS_io_setup, 4, &context));
	ready();
	syscall(SYS_io_getevents, context, 1, 1, &event, NULL);
}

static void case_tun_read(void)
{
	char buffer[2048];
	struct ifreq request = { .ifr_flags = IFF_TUN | IFF_NO_PI };
	int fd = MUST(open("/dev/net/tun", O_RDWR));
	MUST(ioctl(fd, TUNSETIFF, &request));
	ready();
	read(fd, buffer, sizeof(buffer));
}

static void case_kernel_log(void)
{
	char buffer[8192];
	int fd = MUST(open("/dev/kmsg", O_RDONLY));
	lseek(fd, 0, SEEK_END);
	ready();
	read(fd, buffer, sizeof(buffer));
}

/* ------------------------------------------------------------ System V, mq */

static void case_msgrcv(void)
{
	struct {
		long type;
		char text[8];
	} message;
	int queue = MUST(msgget(IPC_PRIVATE, 0600));
	ready();
	msgrcv(queue, &message, sizeof(message.text), 0, 0);
}

static void case_msgsnd(void)
{
	static struct {
		long type;
		char text[4096];
	} message = { .type = 1 };
	int queue = MUST(msgget(IPC_PRIVATE, 0600));
	while (msgsnd(queue, &message, sizeof(message.text), IPC_NOWAIT) == 0)
		;
	ready();
	msgsnd(queue, &message, sizeof(message.text), 0);
}

static void case_semop(void)
{
	struct sembuf down = { 0, -1, 0 };
	int set = MUST(semget(IPC_PRIVATE, 1, 0600));
	ready();
	semop(set, &down, 1);
}

static mqd_t open_mq(void)
{
	struct mq_attr attributes = { .mq_maxmsg = 1, .mq_msgsize = 8 };
	mqd_t queue = mq_open("/debox-record", O_RDWR | O_CREAT, 0600, &attributes);
	if (queue < 0)
		fail("mq_open");
	mq_unlink("/debox-record");
	return queue;
}

static void case_mq_receive(void)
{
	char buffer[8];
	mqd_t queue = open_mq();
	ready();
	mq_receive(queue, buffer, sizeof(buffer), NULL);
}

static void case_mq_send(void)
{
	mqd_t queue = open_mq();
	mq_send(queue, "x", 1, 0);
	ready();
	mq_send(queue, "x", 1, 0);
}

/* --------------------------------------------------------------- sockets */

static struct sockaddr_in local = { .sin_family = AF_INET };
static struct sockaddr_un name_un = { .sun_family = AF_UNIX };
static socklen_t name_un_size;

static int listener(int family, int backlog)
{
	int fd = MUST(socket(family, SOCK_STREAM, 0));
	if (family == AF_INET) {
		socklen_t size = sizeof(local);
		local.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		MUST(bind(fd, (void *)&local, sizeof(local)));
		MUST(getsockname(fd, (void *)&local, &size));
	} else {
		name_un_size = sizeof(name_un);
		MUST(bind(fd, (void *)&name_un, sizeof(sa_family_t)));
		MUST(getsockname(fd, (void *)&name_un, &name_un_size));
	}
	MUST(listen(fd, backlog));
	return fd;
}

static void tcp_pair(int pair[2])
{
	int fd = listener(AF_INET, 8);
	pair[0] = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(connect(pair[0], (void *)&local, sizeof(local)));
	pair[1] = MUST(accept(fd, NULL, NULL));
}

static void loopback_up(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	MUST(ioctl(fd, SIOCGIFFLAGS, &request));
	request.ifr_flags |= IFF_UP;
	MUST(ioctl(fd, SIOCSIFFLAGS, &request));
	close(fd);
}

static void case_tcp_accept(void)
{
	int fd = listener(AF_INET, 8);
	ready();
	accept(fd, NULL, NULL);
}

static void case_tcp_recv(void)
{
	char byte;
	int pair[2];
	tcp_pair(pair);
	ready();
	recv(pair[0], &byte, 1, 0);
}

static void case_tcp_send(void)
{
	int pair[2];
	tcp_pair(pair);
	fill(pair[0]);
	usleep(50000);
	fill(pair[0]);
	ready();
	send(pair[0], "x", 1, 0);
}

static void case_tcp_splice(void)
{
	int pair[2];
	tcp_pair(pair);
	MUST(pipe(pipe_ends));
	ready();
	splice(pair[0], NULL, pipe_ends[1], NULL, 4096, 0);
}

static void case_tcp_connect(void)
{
	/* A full accept queue drops the SYN. */
	listener(AF_INET, 0);
	for (int i = 0; i < 2; i++) {
		int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		connect(fd, (void *)&local, sizeof(local));
	}
	settle();
	int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
	ready();
	connect(fd, (void *)&local, sizeof(local));
}

static void case_tcp_linger(void)
{
	int pair[2];
	struct linger linger = { 1, 100 };
	tcp_pair(pair);
	fill(pair[0]);
	MUST(setsockopt(pair[0], SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
	ready();
	close(pair[0]);
}

static void case_sock_lock(void)
{
	int pair[2];
	tcp_pair(pair);
	if (partner() == 0) {
		send(pair[0], stuck_memory(4096), 4096, 0);
		_exit(0);
	}
	settle();
	ready();
	send(pair[0], "x", 1, 0);
}

static void case_udp_recv(void)
{
	char byte;
	int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	ready();
	recv(fd, &byte, 1, 0);
}

static void case_udp6_recv(void)
{
	char byte;
	int fd = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
	ready();
	recv(fd, &byte, 1, 0);
}

static void case_raw_recv(void)
{
	char byte;
	int fd = MUST(socket(AF_INET, SOCK_RAW, IPPROTO_UDPLITE));
	ready();
	recv(fd, &byte, 1, 0);
}

static void case_packet_recv(void)
{
	char byte;
	int fd = MUST(socket(AF_PACKET, SOCK_RAW, htons(ETH_P_SNAP)));
	ready();
	recv(fd, &byte, 1, 0);
}

static void case_netlink_recv(void)
{
	char byte;
	int fd = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE));
	ready();
	recv(fd, &byte, 1, 0);
}

static void case_vsock_accept(void)
{
	struct sockaddr_vm address = {
		.svm_family = AF_VSOCK,
		.svm_cid = VMADDR_CID_ANY,
		.svm_port = 4321,
	};
	int fd = MUST(socket(AF_VSOCK, SOCK_STREAM, 0));
	MUST(bind(fd, (void *)&address, sizeof(address)));
	MUST(listen(fd, 1));
	ready();
	accept(fd, NULL, NULL);
}

static void case_unix_accept(void)
{
	int fd = listener(AF_UNIX, 8);
	ready();
	accept(fd, NULL, NULL);
}

static void case_unix_connect(void)
{
	listener(AF_UNIX, 0);
	int first = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(connect(first, (void *)&name_un, name_un_size));
	int fd = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	ready();
	connect(fd, (void *)&name_un, name_un_size);
}

static void unix_recv(int type)
{
	char byte;
	int pair[2];
	MUST(socketpair(AF_UNIX, type, 0, pair));
	ready();
	recv(pair[0], &byte, 1, 0);
}

static void unix_send(int type)
{
	int pair[2];
	MUST(socketpair(AF_UNIX, type, 0, pair));
	fill(pair[0]);
	ready();
	send(pair[0], "x", 1, 0);
}

static void case_unix_recv_stream(void)
{
	unix_recv(SOCK_STREAM);
}
static void case_unix_recv_dgram(void)
{
	unix_recv(SOCK_DGRAM);
}
static void case_unix_recv_seqpacket(void)
{
	unix_recv(SOCK_SEQPACKET);
}
static void case_unix_send_stream(void)
{
	unix_send(SOCK_STREAM);
}
static void case_unix_send_dgram(void)
{
	unix_send(SOCK_DGRAM);
}
static void case_unix_send_seqpacket(void)
{
	unix_send(SOCK_SEQPACKET);
}

static void case_unix_lock(void)
{
	char byte;
	int pair[2];
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	MUST(write(pair[1], "xy", 2));
	if (partner() == 0) {
		recv(pair[0], stuck_memory(4096), 1, 0);
		_exit(0);
	}
	settle();
	ready();
	recv(pair[0], &byte, 1, 0);
}

static void case_tcp_send_connecting(void)
{
	listener(AF_INET, 0);
	for (int i = 0; i < 2; i++) {
		int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
		connect(fd, (void *)&local, sizeof(local));
	}
	settle();
	int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	connect(fd, (void *)&local, sizeof(local));
	fcntl(fd, F_SETFL, 0);
	ready();
	send(fd, "x", 1, 0);
}

/* Needs the loopback transport (vsock_loopback). */
static int vsock_pair(int pair[2])
{
	struct sockaddr_vm address = {
		.svm_family = AF_VSOCK,
		.svm_cid = VMADDR_CID_LOCAL,
		.svm_port = 4322,
	};
	int fd = MUST(socket(AF_VSOCK, SOCK_STREAM, 0));
	MUST(bind(fd, (void *)&address, sizeof(address)));
	MUST(listen(fd, 1));
	pair[0] = MUST(socket(AF_VSOCK, SOCK_STREAM, 0));
	MUST(connect(pair[0], (void *)&address, sizeof(address)));
	pair[1] = MUST(accept(fd, NULL, NULL));
	return fd;
}

static void case_vsock_recv(void)
{
	char byte;
	int pair[2];
	vsock_pair(pair);
	ready();
	recv(pair[0], &byte, 1, 0);
}

static void case_vsock_send(void)
{
	int pair[2];
	vsock_pair(pair);
	fill(pair[0]);
	usleep(50000);
	fill(pair[0]);
	ready();
	send(pair[0], "x", 1, 0);
}

static void case_rtnl_lock(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	for (int i = 0; i < 3; i++) {
		if (partner() != 0)
			continue;
		for (;;) {
			struct ifreq tunnel = { .ifr_flags = IFF_TUN | IFF_NO_PI };
			int fd = open("/dev/net/tun", O_RDWR);
			ioctl(fd, TUNSETIFF, &tunnel);
			close(fd);
		}
	}
	int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	MUST(ioctl(fd, SIOCGIFFLAGS, &request));
	ready();
	for (;;)
		ioctl(fd, SIOCSIFFLAGS, &request);
}

/* ------------------------------------------------------------------- tty */

static int pty(int *master)
{
	struct termios raw;
	*master = MUST(posix_openpt(O_RDWR | O_NOCTTY));
	grantpt(*master);
	MUST(unlockpt(*master));
	int slave = MUST(open(ptsname(*master), O_RDWR | O_NOCTTY));
	tcgetattr(slave, &raw);
	cfmakeraw(&raw);
	tcsetattr(slave, TCSANOW, &raw);
	return slave;
}

static void case_tty_read(void)
{
	int master;
	char byte;
	int slave = pty(&master);
	ready();
	read(slave, &byte, 1);
}

static void case_tty_write(void)
{
	int master;
	int slave = pty(&master);
	/* A worker moves what was written to the other end, as far as it has room. */
	for (int i = 0; i < 10; i++) {
		fill(slave);
		usleep(5000);
	}
	ready();
	write(slave, "x", 1);
}

static void case_tty_lock(void)
{
	int master;
	int slave = pty(&master);
	if (partner() == 0) {
		for (;;) {
			static char block[4096];
			write(slave, block, sizeof(block));
		}
	}
	settle();
	ready();
	write(slave, "x", 1);
}

/* ------------------------------------------------------- memory, RCU, BPF */

static void case_perf_close(void)
{
	char text[32] = "";
	int file = MUST(open("/sys/kernel/tracing/events/task/task_rename/id", O_RDONLY));
	MUST(read(file, text, sizeof(text) - 1));
	struct perf_event_attr attributes = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attributes),
		.config = atoi(text),
	};
	ready();
	for (int i = 0; i < 3; i++) {
		int fd = MUST((int)syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0));
		close(fd);
	}
}

static void case_mount_lock(void)
{
	char directory[] = "mount-XXXXXX";
	MUST(mkdtemp(directory));
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	for (int i = 0; i < 4; i++)
		if (partner() == 0)
			for (;;) {
				mount("none", directory, "tmpfs", 0, NULL);
				umount2(directory, MNT_DETACH);
			}
	ready();
	for (;;) {
		mount("none", directory, "tmpfs", 0, NULL);
		umount2(directory, MNT_DETACH);
	}
}

static void case_user_helper(void)
{
	ready();
	for (int i = 0; i < 3; i++)
		socket(AF_X25, SOCK_SEQPACKET, 0);
}

static void case_membarrier(void)
{
	ready();
	for (int i = 0; i < 3; i++)
		syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0);
}

static void case_bpf_detach(void)
{
	struct bpf_insn code[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0 },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr load = {
		.prog_type = BPF_PROG_TYPE_RAW_TRACEPOINT,
		.insns = (uintptr_t)code,
		.insn_cnt = 2,
		.license = (uintptr_t) "GPL",
	};
	int program = MUST((int)syscall(SYS_bpf, BPF_PROG_LOAD, &load, sizeof(load)));
	union bpf_attr attach = {
		.raw_tracepoint = { .name = (uintptr_t) "task_rename", .prog_fd = program },
	};
	ready();
	for (int i = 0; i < 3; i++) {
		int link = MUST((int)syscall(SYS_bpf, BPF_RAW_TRACEPOINT_OPEN, &attach, sizeof(attach)));
		close(link);
	}
}

static void *map_forever(void *unused)
{
	for (;;) {
		char *memory = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
		munmap(memory, 8 * MIB);
	}
	return unused;
}

static void case_mmap_lock(void)
{
	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, map_forever, NULL);
	ready();
	for (;;) {
		char *memory = mmap(NULL, MIB, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		for (int i = 0; i < 256; i++)
			memory[i * 4096] = 1;
		mprotect(memory, MIB / 2, PROT_READ);
		madvise(memory, MIB, MADV_DONTNEED);
		munmap(memory, MIB);
	}
}

static char cgroup_memory[128];

/* -m: uses the version 1 memory controller if it is there, else version 2. */
static bool enter_memory_group(unsigned limit, bool high)
{
	char path[192];
	bool v1 = access("/sys/fs/cgroup/memory/memory.limit_in_bytes", F_OK) == 0;
	if (!v1) {
		char root[] = "cgroup-XXXXXX";
		MUST(mkdtemp(root));
		MUST(mount("none", root, "cgroup2", 0, NULL));
		snprintf(path, sizeof(path), "%s/cgroup.subtree_control", root);
		write_file(path, "+memory");
		snprintf(cgroup_memory, sizeof(cgroup_memory), "%s/debox-record-%d", root, getpid());
	} else {
		snprintf(cgroup_memory, sizeof(cgroup_memory),
			 "/sys/fs/cgroup/memory/debox-record-%d", getpid());
	}
	MUST(mkdir(cgroup_memory, 0755));
	snprintf(path, sizeof(path), "%s/%s", cgroup_memory,
		 v1 ? "memory.limit_in_bytes" : high ? "memory.high" :
						       "memory.max");
	write_file(path, "%u", limit);
	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup_memory);
	write_file(path, "%d", getpid());
	return v1;
}

static void case_oom(void)
{
	if (!enter_memory_group(8 * MIB, false)) {
		errno = EOPNOTSUPP;
		fail("needs the version 1 memory controller");
	}
	char path[192];
	snprintf(path, sizeof(path), "%s/memory.oom_control", cgroup_memory);
	write_file(path, "1");
	char *memory = MUST(mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	ready();
	for (unsigned i = 0; i < 64 * MIB; i += 4096)
		memory[i] = 1;
}

static void case_memory_high(void)
{
	if (enter_memory_group(4 * MIB, true)) {
		errno = EOPNOTSUPP;
		fail("needs the version 2 memory controller");
	}
	char *memory = MUST(mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	ready();
	for (unsigned i = 0; i < 64 * MIB; i += 4096)
		memory[i] = 1;
}

/* ------------------------------------------------------------------ FUSE */

static int fuse_fd;
static char fuse_dir[] = "fuse-XXXXXX";

static void fuse_answer(uint64_t unique, const void *body, size_t size)
{
	char buffer[512];
	struct fuse_out_header header = { .len = sizeof(header) + size, .unique = unique };
	memcpy(buffer, &header, sizeof(header));
	memcpy(buffer + sizeof(header), body, size);
	write(fuse_fd, buffer, header.len);
}

static void fuse_refuse(uint64_t unique, int error)
{
	struct fuse_out_header header = {
		.len = sizeof(header),
		.unique = unique,
		.error = -error,
	};
	write(fuse_fd, &header, sizeof(header));
}

/* A file system that answers what it must, finds every name to be a file
 * except "d" (a directory) and "n" (never answered), and never answers reads,
 * writes and new names. */
static void fuse_serve(void)
{
	static char buffer[256 * 1024];
	for (;;) {
		if (read(fuse_fd, buffer, sizeof(buffer)) < 0)
			_exit(0);
		struct fuse_in_header *in = (void *)buffer;
		char *body = buffer + sizeof(*in);
		struct fuse_attr attributes = {
			.ino = in->nodeid,
			.size = MIB,
			.nlink = 1,
			.mode = in->nodeid == 1 || in->nodeid == 2 ? S_IFDIR | 0755 : S_IFREG | 0644,
		};
		switch (in->opcode) {
		case FUSE_INIT: {
			struct fuse_init_out out = {
				.major = 7,
				.minor = 31,
				.max_readahead = 65536,
				.max_write = 65536,
				.max_background = 12,
			};
			fuse_answer(in->unique, &out, sizeof(out));
			break;
		}
		case FUSE_LOOKUP: {
			if (body[0] == 'n')
				break;
			struct fuse_entry_out out = { .attr_valid = 100, .entry_valid = 100 };
			out.nodeid = body[0] == 'd' ? 2 : 3;
			attributes.ino = out.nodeid;
			attributes.mode = body[0] == 'd' ? S_IFDIR | 0755 : S_IFREG | 0644;
			out.attr = attributes;
			fuse_answer(in->unique, &out, sizeof(out));
			break;
		}
		case FUSE_GETATTR: {
			struct fuse_attr_out out = { .attr_valid = 100, .attr = attributes };
			fuse_answer(in->unique, &out, sizeof(out));
			break;
		}
		case FUSE_GETXATTR:
			fuse_refuse(in->unique, ENOSYS);
			break;
		case FUSE_OPEN:
		case FUSE_OPENDIR: {
			struct fuse_open_out out = { .fh = 1, .open_flags = FOPEN_KEEP_CACHE };
			fuse_answer(in->unique, &out, sizeof(out));
			break;
		}
		}
	}
}

static char *in_fuse(const char *name)
{
	static char path[4][128];
	static int next;
	char *result = path[next++ % 4];
	snprintf(result, sizeof(path[0]), "%s/%s", fuse_dir, name);
	return result;
}

static void fuse_mount(void)
{
	char options[128];
	MUST(mkdtemp(fuse_dir));
	/* Nobody else may see it: whoever touched it would hang. */
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	fuse_fd = MUST(open("/dev/fuse", O_RDWR));
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse_fd);
	MUST(mount("debox", fuse_dir, "fuse", 0, options));
	if (partner() == 0)
		fuse_serve();
	/* Only the server may hold it, or its death would not end the waiting. */
	close(fuse_fd);
	settle();
}

static void case_fuse_request(void)
{
	fuse_mount();
	struct stat status;
	ready();
	stat(in_fuse("n"), &status);
}

static void case_fuse_daemon(void)
{
	static char buffer[256 * 1024];
	MUST(mkdtemp(fuse_dir));
	char options[128];
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	fuse_fd = MUST(open("/dev/fuse", O_RDWR));
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", fuse_fd);
	MUST(mount("debox", fuse_dir, "fuse", 0, options));
	read(fuse_fd, buffer, sizeof(buffer));
	ready();
	read(fuse_fd, buffer, sizeof(buffer));
}

/* Another process waits for the file system, holding a lock on the way. */
#define WHILE_FUSE_HOLDS(call)        \
	do {                          \
		fuse_mount();         \
		if (partner() == 0) { \
			call;         \
			_exit(0);     \
		}                     \
		settle();             \
	} while (0)

static void case_fuse_page_read(void)
{
	char byte;
	fuse_mount();
	int fd = MUST(open(in_fuse("f"), O_RDWR));
	ready();
	read(fd, &byte, 1);
}

static void case_fuse_page_locked(void)
{
	char byte;
	WHILE_FUSE_HOLDS(read(open(in_fuse("f"), O_RDONLY), &byte, 1));
	int fd = MUST(open(in_fuse("f"), O_RDONLY));
	ready();
	pread(fd, &byte, 1, 0);
}

static void case_fuse_fault_locked(void)
{
	char byte;
	WHILE_FUSE_HOLDS(read(open(in_fuse("f"), O_RDONLY), &byte, 1));
	int fd = MUST(open(in_fuse("f"), O_RDONLY));
	volatile char *page = MUST(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0));
	ready();
	(void)page[0];
}

static void case_dentry_lookup(void)
{
	struct stat status;
	WHILE_FUSE_HOLDS(stat(in_fuse("n"), &status));
	ready();
	stat(in_fuse("n"), &status);
}

static void case_inode_lock_mkdir(void)
{
	WHILE_FUSE_HOLDS(mkdir(in_fuse("d/f"), 0755); mkdir(in_fuse("d/n"), 0755));
	ready();
	mkdir(in_fuse("d/n2"), 0755);
}

static void case_inode_lock_unlink(void)
{
	WHILE_FUSE_HOLDS(unlink(in_fuse("d/f")));
	ready();
	unlink(in_fuse("d/g"));
}

static void case_inode_lock_open(void)
{
	WHILE_FUSE_HOLDS(unlink(in_fuse("d/f")));
	ready();
	open(in_fuse("d/h"), O_RDWR | O_CREAT, 0600);
}

static void case_inode_lock_lookup(void)
{
	struct stat status;
	WHILE_FUSE_HOLDS(unlink(in_fuse("d/f")));
	ready();
	stat(in_fuse("d/i"), &status);
}

static void case_inode_lock_rename(void)
{
	WHILE_FUSE_HOLDS(unlink(in_fuse("d/f")));
	ready();
	rename(in_fuse("d/g"), in_fuse("d/h"));
}

static void case_inode_lock_readdir(void)
{
	char buffer[4096];
	WHILE_FUSE_HOLDS(unlink(in_fuse("d/f")));
	int fd = MUST(open(in_fuse("d"), O_RDONLY | O_DIRECTORY));
	ready();
	syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
}

static void case_inode_lock_chmod(void)
{
	WHILE_FUSE_HOLDS(chmod(in_fuse("f"), 0600));
	ready();
	chmod(in_fuse("f"), 0644);
}

static void case_inode_lock_truncate(void)
{
	WHILE_FUSE_HOLDS(chmod(in_fuse("f"), 0600));
	ready();
	truncate(in_fuse("f"), 0);
}

static void case_inode_lock_xattr(void)
{
	WHILE_FUSE_HOLDS(chmod(in_fuse("f"), 0600));
	ready();
	setxattr(in_fuse("f"), "user.a", "b", 1, 0);
}

static void case_inode_lock_fuse_write(void)
{
	WHILE_FUSE_HOLDS(chmod(in_fuse("f"), 0600));
	int fd = MUST(open(in_fuse("f"), O_RDWR));
	ready();
	write(fd, "x", 1);
}

static void case_inode_lock_fsync(void)
{
	WHILE_FUSE_HOLDS(chmod(in_fuse("f"), 0600));
	int fd = MUST(open(in_fuse("f"), O_RDWR));
	ready();
	fsync(fd);
}

/* ------------------------------------------------------------------ disk */

static void disk_mount(void)
{
	snprintf(disk, sizeof(disk), "%s/disk-XXXXXX", scratch);
	MUST(mkdtemp(disk));
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mount(disk_device, disk, disk_type, 0, NULL));
}

/* The only way to forget cached pages that does no harm to others. */
static void disk_forget(void)
{
	MUST(umount(disk));
	MUST(mount(disk_device, disk, disk_type, 0, NULL));
}

static int disk_file(const char *name, unsigned size, int flags)
{
	static char block[MIB];
	memset(block, 'x', sizeof(block));
	int fd = MUST(open(in_disk(name), O_RDWR | O_CREAT | flags, 0600));
	for (unsigned done = 0; done < size; done += sizeof(block))
		MUST(write(fd, block, size - done < sizeof(block) ? size - done : sizeof(block)));
	return fd;
}

static void case_disk_fsync(void)
{
	disk_mount();
	ready();
	for (int i = 0; i < 5; i++) {
		int fd = disk_file(i % 2 ? "a" : "b", 2 * MIB, O_TRUNC);
		fsync(fd);
		close(fd);
	}
}

static void case_disk_fdatasync_overwrite(void)
{
	disk_mount();
	int fd = disk_file("a", 2 * MIB, 0);
	fsync(fd);
	ready();
	for (int i = 0; i < 5; i++) {
		pwrite(fd, "y", 1, 4096 * i);
		fdatasync(fd);
	}
}

static void case_disk_osync(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, O_DSYNC);
	ready();
	for (int i = 0; i < 5; i++)
		write(fd, "y", 1);
}

static void case_disk_sync_file_range(void)
{
	disk_mount();
	int fd = disk_file("a", 8 * MIB, 0);
	ready();
	sync_file_range(fd, 0, 8 * MIB, SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
}

static void case_disk_syncfs(void)
{
	disk_mount();
	int fd = disk_file("a", 8 * MIB, 0);
	ready();
	syncfs(fd);
}

static void case_disk_page_in(void)
{
	disk_mount();
	close(disk_file("a", 16 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDONLY));
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	char byte;
	ready();
	for (unsigned i = 0; i < 40; i++)
		pread(fd, &byte, 1, i * 37 % 16 * MIB + i * 4096);
}

static void case_disk_page_in_ahead(void)
{
	static char block[65536];
	disk_mount();
	close(disk_file("a", 32 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDONLY));
	ready();
	while (read(fd, block, sizeof(block)) > 0)
		;
}

static void case_disk_sendfile(void)
{
	disk_mount();
	close(disk_file("a", 32 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDONLY));
	int null = MUST(open("/dev/null", O_WRONLY));
	ready();
	while (sendfile(null, fd, NULL, MIB) > 0)
		;
}

static void case_disk_page_in_fault(void)
{
	disk_mount();
	close(disk_file("a", 16 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDONLY));
	volatile char *memory = MUST(mmap(NULL, 16 * MIB, PROT_READ, MAP_SHARED, fd, 0));
	madvise((void *)memory, 16 * MIB, MADV_RANDOM);
	ready();
	for (unsigned i = 0; i < 40; i++)
		(void)memory[i * 37 % 16 * MIB + i * 4096];
}

/* The paper's Figure 4: write() from a mapped file that is not cached. */
static void case_disk_write_mapped(void)
{
	disk_mount();
	close(disk_file("a", 10 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDONLY));
	char *memory = MUST(mmap(NULL, 10 * MIB, PROT_READ, MAP_SHARED, fd, 0));
	int out = MUST(open(in_disk("b"), O_RDWR | O_CREAT | O_TRUNC, 0600));
	ready();
	write(out, memory, 10 * MIB);
}

static void case_disk_direct(void)
{
	disk_mount();
	char *block = MUST(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	close(disk_file("a", 4 * MIB, 0));
	disk_forget();
	int fd = MUST(open(in_disk("a"), O_RDWR | O_DIRECT));
	ready();
	for (int i = 0; i < 4; i++) {
		pread(fd, block, MIB, i * MIB);
		pwrite(fd, block, MIB, i * MIB);
	}
}

static void case_disk_device_direct(void)
{
	char *block = MUST(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	int fd = MUST(open(disk_device, O_RDONLY | O_DIRECT));
	ready();
	for (int i = 0; i < 8; i++)
		pread(fd, block, i % 2 ? MIB : 4096, i * MIB);
}

static void case_disk_discard(void)
{
	uint64_t range[2] = { 0, 64 * MIB };
	int fd = MUST(open(disk_device, O_RDWR));
	range[0] = lseek(fd, 0, SEEK_END) - range[1];
	ready();
	ioctl(fd, BLKDISCARD, range);
	ioctl(fd, BLKZEROOUT, range);
}

static void case_disk_direct_wait(void)
{
	disk_mount();
	char *block = MUST(mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	close(disk_file("a", 8 * MIB, 0));
	int direct = MUST(open(in_disk("a"), O_RDWR | O_DIRECT));
	for (int i = 0; i < 3; i++)
		if (partner() == 0)
			for (;;)
				pread(direct, block, 4 * MIB, 0);
	ready();
	for (int i = 0;; i++)
		ftruncate(direct, 8 * MIB - i % 2 * 4096);
}

static void case_disk_device_page_in(void)
{
	char byte;
	int fd = MUST(open(disk_device, O_RDONLY));
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	MUST(ioctl(fd, BLKFLSBUF, 0));
	ready();
	for (unsigned i = 0; i < 20; i++)
		pread(fd, &byte, 1, i * MIB);
}

static void case_disk_metadata_read(void)
{
	char name[64];
	disk_mount();
	for (int i = 0; i < 60; i++) {
		snprintf(name, sizeof(name), "directory-%d", i);
		mkdir(in_disk(name), 0755);
		for (int j = 0; j < 20; j++) {
			snprintf(name, sizeof(name), "directory-%d/a-long-name-of-a-file-%d", i, j);
			close(disk_file(name, 10, 0));
		}
	}
	disk_forget();
	struct stat status;
	ready();
	for (int i = 0; i < 60; i++) {
		for (int j = 0; j < 20; j += 10) {
			snprintf(name, sizeof(name), "directory-%d/a-long-name-of-a-file-%d", i, j);
			stat(in_disk(name), &status);
		}
		snprintf(name, sizeof(name), "directory-%d/a-long-name-of-a-file-%d", i, 5);
		unlink(in_disk(name));
		snprintf(name, sizeof(name), "directory-%d", i);
		int fd = open(in_disk(name), O_RDONLY | O_DIRECTORY);
		char buffer[4096];
		syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
		close(fd);
	}
}

static void case_disk_inode_lock_write(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, 0);
	if (partner() == 0) {
		pwrite(fd, stuck_memory(8192), 8192, 0);
		_exit(0);
	}
	settle();
	int other = MUST(open(in_disk("a"), O_RDWR));
	ready();
	pwrite(other, "x", 1, 0);
}

static void case_disk_inode_lock_direct(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, 0);
	if (partner() == 0) {
		pwrite(fd, stuck_memory(8192), 8192, 0);
		_exit(0);
	}
	settle();
	char *block = MUST(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	int other = MUST(open(in_disk("a"), O_RDWR | O_DIRECT));
	ready();
	pwrite(other, block, 4096, 0);
}

static void case_disk_inode_lock_fallocate(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, 0);
	if (partner() == 0) {
		pwrite(fd, stuck_memory(8192), 8192, 0);
		_exit(0);
	}
	settle();
	int other = MUST(open(in_disk("a"), O_RDWR));
	ready();
	fallocate(other, 0, 0, 2 * MIB);
}

static void case_disk_file_position(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, 0);
	lseek(fd, 0, SEEK_SET);
	if (partner() == 0) {
		read(fd, stuck_memory(8192), 8192);
		_exit(0);
	}
	settle();
	char byte;
	ready();
	read(fd, &byte, 1);
}

static void case_disk_frozen(void)
{
	disk_mount();
	int fd = disk_file("a", MIB, 0);
	int root = MUST(open(disk, O_RDONLY));
	MUST(ioctl(root, FIFREEZE, 0));
	if (fork() == 0) {
		usleep(200000);
		ioctl(root, FITHAW, 0);
		_exit(0);
	}
	ready();
	write(fd, "x", 1);
}

static void case_disk_frozen_create(void)
{
	disk_mount();
	int root = MUST(open(disk, O_RDONLY));
	MUST(ioctl(root, FIFREEZE, 0));
	if (fork() == 0) {
		usleep(200000);
		ioctl(root, FITHAW, 0);
		_exit(0);
	}
	ready();
	mkdir(in_disk("new"), 0755);
}

static void storm(int seed)
{
	char name[32], other[32];
	for (unsigned i = 0;; i++) {
		snprintf(name, sizeof(name), "f%u-%u", seed, i % 7);
		snprintf(other, sizeof(other), "g%u-%u", seed % 2, i % 5);
		int fd = open(in_disk(name), O_RDWR | O_CREAT, 0600);
		static char block[65536];
		for (unsigned j = 0; j < i % 9; j++)
			write(fd, block, sizeof(block));
		if (i % 3 == 0)
			fsync(fd);
		if (i % 11 == 0)
			ftruncate(fd, 100);
		close(fd);
		rename(in_disk(name), in_disk(other));
		if (i % 4 == 0)
			unlink(in_disk(other));
		if (i % 50 == 0) {
			int root = open(disk, O_RDONLY);
			syncfs(root);
			close(root);
		}
	}
}

static void case_disk_storm(void)
{
	disk_mount();
	for (int i = 1; i < 6; i++)
		if (partner() == 0)
			storm(i);
	ready();
	storm(0);
}

static void case_disk_page_writeback(void)
{
	disk_mount();
	int fd = disk_file("a", 32 * MIB, 0);
	char *memory = MUST(mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
	if (partner() == 0)
		for (;;)
			sync_file_range(fd, 0, 32 * MIB, SYNC_FILE_RANGE_WRITE);
	ready();
	for (int round = 0; round < 20; round++)
		for (unsigned i = 0; i < 32 * MIB; i += 4096) {
			memory[i]++;
			if (i % MIB == 0)
				msync(memory + i, 4096, MS_SYNC);
		}
}

/* -m: the whole machine's limit for dirty pages. */
static void case_disk_dirty_throttle(void)
{
	disk_mount();
	write_file("/proc/sys/vm/dirty_bytes", "%u", 2 * MIB);
	write_file("/proc/sys/vm/dirty_background_bytes", "%u", MIB);
	ready();
	for (int i = 0; i < 8; i++)
		close(disk_file(i % 2 ? "a" : "b", 16 * MIB, O_TRUNC));
}

/* -m: more memory than a group may have, with a swap file. */
static void case_disk_swap(void)
{
	disk_mount();
	int fd = disk_file("swap", 32 * MIB, 0);
	struct {
		uint32_t version, last_page, bad_pages;
	} header = { 1, 32 * MIB / 4096 - 1, 0 };
	pwrite(fd, &header, sizeof(header), 1024);
	pwrite(fd, "SWAPSPACE2", 10, 4086);
	fsync(fd);
	MUST(swapon(in_disk("swap"), 0));
	enter_memory_group(6 * MIB, false);
	char *memory = MUST(mmap(NULL, 16 * MIB, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
	ready();
	for (unsigned i = 0;; i++)
		memory[i * 2654435761u % (16 * MIB)] = (char)i;
}

/* -m: dirty pages in a small memory group. */
static void case_disk_reclaim(void)
{
	disk_mount();
	enter_memory_group(6 * MIB, false);
	ready();
	for (int i = 0; i < 4; i++)
		close(disk_file(i % 2 ? "a" : "b", 32 * MIB, O_TRUNC));
}

/* ----------------------------------------------------------------- cases */

enum { DISK = 1,
       MACHINE = 2 };

struct test_case {
	const char *name, *label;
	void (*run)(void);
	int needs;
};

/* The label "?" is for cases that block in several ways: somebody has to say
 * what each of the stacks is. */
#define CASE(name, label)                    \
	{                                    \
#name, label, case_##name, 0 \
	}
#define DISK_CASE(name, label)                  \
	{                                       \
#name, label, case_##name, DISK \
	}
#define MACHINE_CASE(name, label, more)                     \
	{                                                   \
#name, label, case_##name, MACHINE | (more) \
	}

static const struct test_case cases[] = {
	CASE(pipe_read, "pipe-read"),
	CASE(pipe_write, "pipe-write"),
	CASE(pipe_splice_in, "pipe-read"),
	CASE(pipe_vmsplice, "pipe-write"),
	CASE(pipe_tee, "pipe-read"),
	CASE(pipe_splice_pipe, "pipe-write"),
	CASE(fifo_open, "fifo-open"),
	CASE(pipe_lock, "pipe-lock"),
	CASE(futex_wait, "futex"),
	CASE(futex_bitset_timeout, "futex"),
	CASE(futex_waitv, "futex"),
	CASE(futex_pi, "futex-pi"),
	CASE(futex_requeue_pi, "futex"),
	CASE(flock, "flock"),
	CASE(posix_lock, "posix-lock"),
	CASE(ofd_lock, "posix-lock"),
	CASE(lease_break, "lease-break"),
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
	CASE(eventfd_read, "eventfd"),
	CASE(eventfd_write, "eventfd"),
	CASE(timerfd, "timerfd"),
	CASE(poll, "poll"),
	CASE(ppoll, "poll"),
	CASE(select, "select"),
	CASE(epoll, "epoll"),
	CASE(epoll_pwait2, "epoll"),
	CASE(inotify, "inotify"),
	CASE(fanotify_read, "fanotify"),
	CASE(fanotify_permission, "fanotify-permission"),
	CASE(io_uring, "io-uring"),
	CASE(aio, "aio"),
	CASE(tun_read, "tun-read"),
	CASE(kernel_log, "kernel-log"),
	CASE(msgrcv, "msgqueue"),
	CASE(msgsnd, "msgqueue"),
	CASE(mq_receive, "msgqueue"),
	CASE(mq_send, "msgqueue"),
	CASE(semop, "semop"),
	CASE(tcp_accept, "sock-accept"),
	CASE(tcp_recv, "sock-recv"),
	CASE(tcp_send, "sock-send"),
	CASE(tcp_splice, "sock-recv"),
	CASE(tcp_connect, "sock-connect"),
	CASE(tcp_send_connecting, "sock-connect"),
	CASE(tcp_linger, "sock-close"),
	CASE(sock_lock, "sock-lock"),
	CASE(udp_recv, "sock-recv"),
	CASE(udp6_recv, "sock-recv"),
	CASE(raw_recv, "sock-recv"),
	CASE(packet_recv, "packet-recv"),
	CASE(netlink_recv, "netlink-recv"),
	CASE(vsock_accept, "vsock-accept"),
	CASE(vsock_recv, "vsock-recv"),
	CASE(vsock_send, "vsock-send"),
	CASE(rtnl_lock, "?"),
	CASE(unix_accept, "unix-accept"),
	CASE(unix_connect, "unix-connect"),
	CASE(unix_lock, "unix-lock"),
	CASE(unix_recv_stream, "unix-recv"),
	CASE(unix_recv_dgram, "unix-recv"),
	CASE(unix_recv_seqpacket, "unix-recv"),
	CASE(unix_send_stream, "unix-send"),
	CASE(unix_send_dgram, "unix-send"),
	CASE(unix_send_seqpacket, "unix-send"),
	CASE(tty_read, "tty-read"),
	CASE(tty_write, "tty-write"),
	CASE(tty_lock, "tty-lock"),
	CASE(membarrier, "rcu-wait"),
	CASE(bpf_detach, "bpf-wait"),
	CASE(perf_close, "perf-event"),
	CASE(mount_lock, "?"),
	CASE(user_helper, "user-helper"),
	CASE(mmap_lock, "mmap-lock"),
	CASE(userfault, "userfaultfd"),
	CASE(userfault_read, "userfaultfd"),
	CASE(fuse_request, "fuse"),
	CASE(fuse_daemon, "fuse-daemon"),
	CASE(fuse_page_read, "fuse"),
	CASE(fuse_page_locked, "page-in"),
	CASE(fuse_fault_locked, "page-in"),
	CASE(dentry_lookup, "dentry-lookup"),
	CASE(inode_lock_mkdir, "inode-lock"),
	CASE(inode_lock_unlink, "inode-lock"),
	CASE(inode_lock_open, "inode-lock"),
	CASE(inode_lock_lookup, "inode-lock"),
	CASE(inode_lock_rename, "inode-lock"),
	CASE(inode_lock_readdir, "inode-lock"),
	CASE(inode_lock_chmod, "inode-lock"),
	CASE(inode_lock_truncate, "?"),
	CASE(inode_lock_xattr, "inode-lock"),
	CASE(inode_lock_fuse_write, "inode-lock"),
	CASE(inode_lock_fsync, "inode-lock"),
	MACHINE_CASE(oom, "oom", 0),
	MACHINE_CASE(memory_high, "?", 0),
	DISK_CASE(disk_fsync, "?"),
	DISK_CASE(disk_fdatasync_overwrite, "?"),
	DISK_CASE(disk_osync, "?"),
	DISK_CASE(disk_sync_file_range, "?"),
	DISK_CASE(disk_syncfs, "?"),
	DISK_CASE(disk_page_in, "?"),
	DISK_CASE(disk_page_in_ahead, "?"),
	DISK_CASE(disk_sendfile, "?"),
	DISK_CASE(disk_page_in_fault, "?"),
	DISK_CASE(disk_write_mapped, "?"),
	DISK_CASE(disk_direct, "?"),
	DISK_CASE(disk_direct_wait, "?"),
	DISK_CASE(disk_discard, "device-discard"),
	DISK_CASE(disk_device_direct, "direct-io"),
	DISK_CASE(disk_device_page_in, "page-in"),
	DISK_CASE(disk_metadata_read, "?"),
	DISK_CASE(disk_inode_lock_write, "inode-lock"),
	DISK_CASE(disk_inode_lock_direct, "inode-lock"),
	DISK_CASE(disk_inode_lock_fallocate, "inode-lock"),
	DISK_CASE(disk_file_position, "file-position"),
	DISK_CASE(disk_frozen, "?"),
	DISK_CASE(disk_frozen_create, "?"),
	DISK_CASE(disk_storm, "?"),
	DISK_CASE(disk_page_writeback, "?"),
	MACHINE_CASE(disk_dirty_throttle, "?", DISK),
	MACHINE_CASE(disk_swap, "?", DISK),
	MACHINE_CASE(disk_reclaim, "?", DISK),
};

/* -------------------------------------------------------------- recording */

static char instance[128];
static struct utsname kernel;

static void trace_file(const char *name, const char *format, int value)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", instance, name);
	write_file(path, format, value);
}

static void trace_open(void)
{
	mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	snprintf(instance, sizeof(instance), "/sys/kernel/tracing/instances/debox-record-%d", getpid());
	MUST(mkdir(instance, 0755));
	trace_file("tracing_on", "0", 0);
	trace_file("options/stacktrace", "1", 0);
	trace_file("buffer_size_kb", "%d", 8192);
}

#define STACKS_MAX 4096
static struct {
	char *text;
	int count;
} stacks[STACKS_MAX];

static int by_count(const void *a, const void *b)
{
	return ((const int *)b)[2] - ((const int *)a)[2];
}

static int collect(int pid)
{
	char path[256], line[512], stack[16384], prev[32];
	int found = 0, size = 0;
	bool wanted = false, inside = false;
	snprintf(path, sizeof(path), "%s/trace", instance);
	snprintf(prev, sizeof(prev), "prev_pid=%d ", pid);
	FILE *file = fopen(path, "r");
	if (file == NULL)
		fail("%s", path);
	for (;;) {
		char *got = fgets(line, sizeof(line), file);
		if (got != NULL && inside && strncmp(line, " => ", 4) == 0) {
			char *end = line + 4 + strcspn(line + 4, " \n");
			*end = 0;
			/* What is inside of it is the tracepoint. */
			if (size == 0 && strncmp(line + 4, "__schedule", 10) != 0)
				continue;
			if (size + 300 < (int)sizeof(stack))
				size += snprintf(stack + size, sizeof(stack) - size, "%s\n", line + 4);
			continue;
		}
		if (inside && size > 0) {
			int i = 0;
			while (i < found && strcmp(stacks[i].text, stack) != 0)
				i++;
			if (i == found && found < STACKS_MAX) {
				stacks[found].text = strdup(stack);
				stacks[found++].count = 0;
			}
			if (i < found)
				stacks[i].count++;
		}
		inside = false;
		size = 0;
		if (got == NULL)
			break;
		if (strstr(line, "sched_switch:") != NULL)
			wanted = strstr(line, prev) != NULL;
		else if (strstr(line, "<stack trace>") != NULL)
			inside = wanted;
	}
	fclose(file);
	return found;
}

static void record(const struct test_case *test, int milliseconds)
{
	int status = 0;
	char byte, filter[128];
	MUST(pipe(ready_pipe));
	MUST(pipe(go_pipe));
	fflush(stdout);
	pid_t child = MUST(fork());
	if (child == 0) {
		setpgid(0, 0);
		/* So that a failing case closes the pipe and is noticed. */
		close(ready_pipe[0]);
		close(go_pipe[1]);
		test->run();
		/* Neither a sleep nor an exit (which may unmount) is the case's. */
		MUST(write(ready_pipe[1], "x", 1));
		for (;;)
			;
	}
	close(ready_pipe[1]);
	struct pollfd set_up = { ready_pipe[0], POLLIN, 0 };
	if (poll(&set_up, 1, 60000) != 1 || read(ready_pipe[0], &byte, 1) != 1) {
		printf("# %s: could not be provoked on this kernel\n\n", test->name);
		goto out;
	}
	/* Asleep, stopped or traced: not running (0), dead (16) or preempted
	 * (the highest bit). */
	snprintf(filter, sizeof(filter), "prev_pid == %d && prev_state > 0 && prev_state < 16", child);
	trace_file("events/sched/sched_switch/filter", filter, 0);
	trace_file("trace", "", 0);
	trace_file("events/sched/sched_switch/enable", "1", 0);
	trace_file("tracing_on", "1", 0);
	MUST(write(go_pipe[1], "x", 1));
	poll(&set_up, 1, milliseconds);
	trace_file("tracing_on", "0", 0);
	trace_file("events/sched/sched_switch/enable", "0", 0);
	int found = collect(child);
	qsort(stacks, found, sizeof(stacks[0]), by_count);
	if (found == 0)
		printf("# %s: never slept\n\n", test->name);
	for (int i = 0; i < found; i++) {
		if (i < 24)
			printf("[%s] %s%s%s seen\n%s\n", test->label, test->name,
			       test->needs & DISK ? "/" : "", test->needs & DISK ? disk_type : "",
			       stacks[i].text);
		free(stacks[i].text);
	}
out:
	kill(-child, SIGKILL);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	close(ready_pipe[0]);
	close(go_pipe[0]);
	close(go_pipe[1]);
	/* Partners die with their parent; a file system only after them. */
	usleep(50000);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	fflush(stdout);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *at)
{
	(void)status, (void)kind, (void)at;
	return remove(path), 0;
}

int main(int argc, char **argv)
{
	int option, milliseconds = 150;
	bool machine = false;
	while ((option = getopt(argc, argv, "t:d:f:mx")) != -1) {
		switch (option) {
		case 't': milliseconds = atoi(optarg); break;
		case 'd': disk_device = optarg; break;
		case 'f': disk_type = optarg; break;
		case 'm': machine = true; break;
		case 'x': return 0;
		default:
			fprintf(stderr, "usage: %s [-m] [-t MS] [-d DEVICE -f FILESYSTEM] [CASE…]\n", argv[0]);
			return 2;
		}
	}
	uname(&kernel);
	/* Cases leave children behind, which it has to reap then. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	MUST(mkdtemp(scratch));
	MUST(chdir(scratch));
	loopback_up();
	trace_open();
	printf("# Linux %s %s\n\n", kernel.release, kernel.machine);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		bool named = optind == argc;
		for (int j = optind; j < argc; j++)
			named |= strcmp(argv[j], cases[i].name) == 0;
		if (!named)
			continue;
		if ((cases[i].needs & MACHINE && !machine) ||
		    (cases[i].needs & DISK && disk_device == NULL)) {
			if (optind != argc)
				fprintf(stderr, "record: %s needs -d or -m\n", cases[i].name);
			continue;
		}
		record(&cases[i], milliseconds);
	}
	rmdir(instance);
	chdir("/");
	nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
	return 0;
}
