/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a machine without a slow disk get one whose requests take the time that a
 * disk's would?
 *
 * Serves one file through /dev/fuse, which is mounted over another file; a loop device
 * and a file system come on top (slow_disk.py). A request waits for a free arm, is
 * positioned for `latency`, then moved at `bandwidth` over the one channel that all arms
 * share; its arm is free again when it has been moved. Requests begin in the order in
 * which they came and positioning takes them all equally long, so they end in that
 * order, too: a plain queue does, and one thread, which sleeps until the oldest is due.
 *
 * A disk that is a process can lock its machine up: when memory is short the kernel
 * writes dirty pages out to this process, which then must not wait for memory. What it
 * needs is locked beforehand, and with PR_SET_IO_FLUSHER its writes to the backing file
 * wait for no others. fsync does not reach that file: nothing here outlives a crash.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000u
#define ARMS_MAX 1024u
#define MOVED_BYTES_MAX (1u << 20) /* in one request: 256 pages, the most that FUSE allows by default */
#define WAITING_MAX 4096u
#define BACKGROUND_MAX 1024u /* requests under way; FUSE's default of 12 is less than a disk's queue holds */

static struct {
	unsigned long latency_ns, bandwidth_bytes_per_s; /* 0: moving takes no time */
	unsigned int arms;
	bool delays;
	uint64_t arm_free_ns[ARMS_MAX], channel_free_ns;
} disk = { .arms = 1, .delays = true };

struct waiting {
	uint64_t unique, offset, due_ns;
	uint32_t opcode, bytes;
};

static struct waiting waiting[WAITING_MAX];
static unsigned long came, answered; /* the oldest is waiting[answered % WAITING_MAX] */

static struct {
	unsigned long reads, read_bytes, writes, written_bytes, queued_max;
	unsigned long delay_ns;             /* what the model said, added up */
	unsigned long late_ns, late_max_ns; /* what this process took beyond it */
} counts;

static int device = -1, backing = -1;
static uint64_t disk_bytes;
static const char *mounted;
static char buffer[MOVED_BYTES_MAX + 4096] __attribute__((aligned(4096)));

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* When a request that comes now has been served: also what makes later ones wait. */
static uint64_t due_ns(uint64_t now, uint32_t bytes)
{
	uint64_t *arm = disk.arm_free_ns;
	uint64_t positioned;

	if (!disk.delays)
		return now;
	for (unsigned int i = 1; i < disk.arms; i++)
		if (disk.arm_free_ns[i] < *arm)
			arm = &disk.arm_free_ns[i];
	positioned = (*arm > now ? *arm : now) + disk.latency_ns;
	*arm = positioned;
	if (disk.bandwidth_bytes_per_s) {
		if (disk.channel_free_ns > positioned)
			*arm = disk.channel_free_ns;
		*arm += (uint64_t)bytes * NS_PER_S / disk.bandwidth_bytes_per_s;
		disk.channel_free_ns = *arm;
	}
	return *arm;
}

static void say_counts(void)
{
	printf("{\"reads\":%lu,\"read_bytes\":%lu,\"writes\":%lu,\"written_bytes\":%lu,\"queued\":%lu,\"queued_max\":%lu,"
	       "\"delay_ns\":%lu,\"late_ns\":%lu,\"late_max_ns\":%lu,"
	       "\"latency_ns\":%lu,\"arms\":%u,\"bandwidth_bytes_per_s\":%lu,\"delays\":%s}\n",
	       counts.reads, counts.read_bytes, counts.writes, counts.written_bytes, came - answered, counts.queued_max,
	       counts.delay_ns, counts.late_ns, counts.late_max_ns,
	       disk.latency_ns, disk.arms, disk.bandwidth_bytes_per_s, disk.delays ? "true" : "false");
	fflush(stdout);
}

/* A request that the kernel gave up in the meantime is ENOENT, a file system that has
 * been unmounted ENODEV: the next read of the device tells. */
static void answer(uint64_t unique, int error, const void *body, size_t bytes)
{
	struct fuse_out_header head = { (uint32_t)(sizeof(head) + (error ? 0 : bytes)), error, unique };
	struct iovec parts[2] = { { &head, sizeof(head) }, { (void *)body, error ? 0 : bytes } };

	if (writev(device, parts, 2) < 0 && errno != ENOENT && errno != ENODEV)
		fprintf(stderr, "slowdisk: an answer of %zu bytes was refused: %s\n", bytes, strerror(errno));
}

static void answer_init(const struct fuse_in_header *in, const struct fuse_init_in *init)
{
	struct fuse_init_out out = {
		.major = FUSE_KERNEL_VERSION,
		.minor = init->minor < FUSE_KERNEL_MINOR_VERSION ? init->minor : FUSE_KERNEL_MINOR_VERSION,
		/* Without ASYNC_DIO a loop device has one request under way. */
		.flags = init->flags & (FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_BIG_WRITES | FUSE_MAX_PAGES),
		.max_background = BACKGROUND_MAX,
		.congestion_threshold = BACKGROUND_MAX,
		.max_write = MOVED_BYTES_MAX,
		.max_pages = MOVED_BYTES_MAX / 4096,
	};

	answer(in->unique, 0, &out, sizeof(out));
}

/* The disk has a fixed size: only a fault of the backing file moves less. */
static int moved(ssize_t bytes, uint32_t wanted)
{
	if (bytes < 0)
		return -errno;
	return bytes == (ssize_t)wanted ? 0 : -EIO;
}

static void enqueue(const struct fuse_in_header *in, uint64_t offset, uint32_t bytes)
{
	uint64_t now = now_ns();
	struct waiting *last = &waiting[came++ % WAITING_MAX];

	*last = (struct waiting){ in->unique, offset, due_ns(now, bytes), in->opcode, bytes };
	counts.delay_ns += last->due_ns - now;
	counts.queued_max = came - answered > counts.queued_max ? came - answered : counts.queued_max;
}

static void request(void)
{
	const struct fuse_in_header *in = (const void *)buffer;
	const void *body = in + 1;
	const struct fuse_write_in *move = body; /* fuse_read_in begins alike */
	const struct fuse_open_out opened = { .open_flags = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES };
	struct fuse_attr_out attributes = { .attr_valid = UINT32_MAX };
	int error = 0;

	switch (in->opcode) {
	case FUSE_READ:
	case FUSE_WRITE:
		if (move->size > MOVED_BYTES_MAX || move->offset > disk_bytes - move->size)
			error = -EINVAL;
		else if (in->opcode == FUSE_READ)
			/* Where the backing file is not in memory, the real disk's
			 * time runs during the model's, not after it. */
			posix_fadvise(backing, (off_t)move->offset, move->size, POSIX_FADV_WILLNEED);
		else
			/* At once, while the bytes are in the buffer. No reader can
			 * tell: requests under way that overlap have no order on a
			 * disk either. */
			error = moved(pwrite(backing, move + 1, move->size, (off_t)move->offset), move->size);
		if (error)
			answer(in->unique, error, NULL, 0);
		else
			enqueue(in, move->offset, move->size);
		break;
	case FUSE_INIT:
		answer_init(in, body);
		break;
	case FUSE_GETATTR:
		attributes.attr = (struct fuse_attr){ .ino = FUSE_ROOT_ID, .size = disk_bytes, .mode = S_IFREG | 0600, .nlink = 1, .blksize = 4096 };
		answer(in->unique, 0, &attributes, sizeof(attributes));
		break;
	case FUSE_OPEN:
		answer(in->unique, 0, &opened, sizeof(opened));
		break;
	case FUSE_FSYNC:
	case FUSE_RELEASE:
		answer(in->unique, 0, NULL, 0);
		break;
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
		break; /* these two want no answer */
	default:
		/* The kernel does without most others, and asks each but once. */
		answer(in->unique, -ENOSYS, NULL, 0);
	}
}

static void answer_oldest(uint64_t now)
{
	const struct waiting *oldest = &waiting[answered++ % WAITING_MAX];
	const struct fuse_write_out written = { .size = oldest->bytes };
	unsigned long late = now - oldest->due_ns;

	if (oldest->opcode == FUSE_READ) {
		ssize_t bytes = pread(backing, buffer, oldest->bytes, (off_t)oldest->offset);

		answer(oldest->unique, moved(bytes, oldest->bytes), buffer, oldest->bytes);
		counts.reads++, counts.read_bytes += oldest->bytes;
	} else {
		answer(oldest->unique, 0, &written, sizeof(written));
		counts.writes++, counts.written_bytes += oldest->bytes;
	}
	counts.late_ns += late;
	counts.late_max_ns = late > counts.late_max_ns ? late : counts.late_max_ns;
}

static void fail(const char *what, const char *value, const char *remedy)
{
	fprintf(stderr, "slowdisk: %s %s: %s; %s\n", what, value, strerror(errno), remedy);
	exit(1);
}

/* Its own thread unmounts nothing: writing out what is mounted on top needs answers. */
static void run(char **command)
{
	sigset_t none;

	if (fork())
		return;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	prctl(PR_SET_IO_FLUSHER, 0, 0, 0, 0);
	execvp(command[0], command);
	fprintf(stderr, "slowdisk: cannot run %s: %s\n", command[0], strerror(errno));
	_exit(127);
}

static void signalled(int signals)
{
	struct signalfd_siginfo info;

	if (read(signals, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo == SIGUSR1)
		say_counts();
	else
		disk.delays = (int)info.ssi_signo == SIGRTMIN + 1;
}

/* Until the file system is unmounted. */
static void serve(int signals, int runner, char **at_death)
{
	struct pollfd wait_for[3] = { { device, POLLIN, 0 }, { signals, POLLIN, 0 }, { runner, POLLIN, 0 } };

	for (;;) {
		struct timespec until_due = { 0 };
		uint64_t now = now_ns(), left_ns;
		ssize_t bytes;

		for (; came > answered && waiting[answered % WAITING_MAX].due_ns <= now; now = now_ns())
			answer_oldest(now);
		if (came > answered) {
			left_ns = waiting[answered % WAITING_MAX].due_ns - now;
			until_due = (struct timespec){ (time_t)(left_ns / NS_PER_S), (long)(left_ns % NS_PER_S) };
		}
		/* What does not fit the queue waits in the kernel's. */
		wait_for[0].fd = came - answered < WAITING_MAX ? device : -1;
		if (ppoll(wait_for, 3, came > answered ? &until_due : NULL, NULL) <= 0)
			continue;
		if (wait_for[1].revents)
			signalled(signals);
		if (wait_for[2].revents)
			wait_for[2].fd = -1, run(at_death);
		if (!wait_for[0].revents)
			continue;
		bytes = read(device, buffer, sizeof(buffer));
		if (bytes >= (ssize_t)sizeof(struct fuse_in_header))
			request();
		else if (bytes < 0 && errno == ENODEV)
			return;
		else if (bytes < 0 && errno != EAGAIN && errno != EINTR && errno != ENOENT)
			fail("reading", "/dev/fuse", "the disk is gone");
	}
}

/* Bytes in powers of 1,000, as the makers of disks count. */
static double number(const char *text)
{
	static const char *units[] = { "", "s", "ms", "us", "k", "M", "G" };
	static const double factors[] = { 1, 1, 1e-3, 1e-6, 1e3, 1e6, 1e9 };
	char *end;
	double value = strtod(text, &end);

	for (size_t i = 0; end != text && value >= 0 && i < sizeof(units) / sizeof(*units); i++)
		if (!strcmp(end, units[i]))
			return value * factors[i];
	fprintf(stderr, "slowdisk: %s is no number with one of the units s, ms, us, k, M, G\n", text);
	exit(2);
}

static const char usage[] =
	"usage: slowdisk --backing FILE --mount FILE [--latency 3ms] [--arms 4] [--bandwidth 60M] [--while PID -- COMMAND...]\n"
	"FILE of --mount becomes a disk that keeps its bytes in FILE of --backing. Times in s, ms, us; bytes a second in k, M, G (1,000s), 0 for no limit.\n"
	"--while PID: when that parent of it has ended, COMMAND is run, which should unmount. It ends when FILE is unmounted.\n"
	"SIGUSR1: a line of counts to stdout. SIGRTMIN: no delays, SIGRTMIN+1: delays again.\n";

static const char *backing_name;
static pid_t parent;

static void read_options(int argc, char **argv)
{
	/* clang-format off */
	static const struct option options[] = {
		{ "backing", 1, NULL, 'f' }, { "mount", 1, NULL, 'm' }, { "latency", 1, NULL, 'l' }, { "arms", 1, NULL, 'a' },
		{ "bandwidth", 1, NULL, 'b' }, { "while", 1, NULL, 'w' }, { "help", 0, NULL, 'h' }, { 0 },
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'f': backing_name = optarg; break;
		case 'm': mounted = optarg; break;
		case 'l': disk.latency_ns = (uint64_t)(number(optarg) * NS_PER_S); break;
		case 'a': disk.arms = (unsigned int)number(optarg); break;
		case 'b': disk.bandwidth_bytes_per_s = (uint64_t)number(optarg); break;
		case 'w': parent = (pid_t)number(optarg); break;
		default: fputs(usage, option == 'h' ? stdout : stderr); exit(option == 'h' ? 0 : 2);
		}
	}
	/* clang-format on */
	if (!backing_name || !mounted || !disk.arms || disk.arms > ARMS_MAX || !parent != (optind == argc))
		fputs(usage, stderr), exit(2);
}

/* What may go wrong when memory or CPU time are short is made as small as is allowed. */
static void become_a_disk(void)
{
	const struct sched_param priority = { .sched_priority = 1 };

	if (mlockall(MCL_CURRENT | MCL_FUTURE))
		fail("cannot lock", "its memory", "it needs root, or RLIMIT_MEMLOCK of 16 MiB");
	if (prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0))
		fprintf(stderr, "slowdisk: cannot become an I/O flusher (%s; it needs CAP_SYS_RESOURCE and Linux 5.6): do not write to the disk when memory of the whole machine is short\n", strerror(errno));
	if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &priority))
		fprintf(stderr, "slowdisk: no real-time priority (%s; it needs CAP_SYS_NICE): beside busy processes it will be slower than told\n", strerror(errno));
	prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0); /* by default 50 us more than asked */
}

int main(int argc, char **argv)
{
	int runner = -1, signals;
	char mount_options[64];
	struct stat status;
	sigset_t handled;

	read_options(argc, argv);
	backing = open(backing_name, O_RDWR | O_CLOEXEC);
	if (backing < 0 || fstat(backing, &status))
		fail("cannot open", backing_name, "make it with truncate -s SIZE");
	disk_bytes = (uint64_t)status.st_size / 4096 * 4096;
	device = open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (device < 0)
		fail("cannot open", "/dev/fuse", "it needs root and a kernel with CONFIG_FUSE_FS");
	sigemptyset(&handled);
	sigaddset(&handled, SIGUSR1);
	sigaddset(&handled, SIGRTMIN);
	sigaddset(&handled, SIGRTMIN + 1);
	sigprocmask(SIG_BLOCK, &handled, NULL);
	signals = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
	if (parent) {
		runner = (int)syscall(SYS_pidfd_open, parent, 0);
		/* Ended before it was watched; its number may be another's by now. */
		if (runner < 0 || getppid() != parent) {
			fprintf(stderr, "slowdisk: process %d of --while is not the parent (%d) or has ended\n", parent, getppid());
			return 1;
		}
	}
	become_a_disk();

	/* The root of a FUSE file system may be a file. */
	snprintf(mount_options, sizeof(mount_options), "fd=%d,rootmode=100600,user_id=0,group_id=0", device);
	if (mount("slowdisk", mounted, "fuse.slowdisk", MS_NOSUID | MS_NODEV, mount_options))
		fail("cannot mount on", mounted, "it needs root and an existing file");
	serve(signals, runner, argv + optind);
	say_counts();
	return 0;
}
