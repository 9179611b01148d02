// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What does the CPU do here, and for how long? (tests/on_cpu.rs)
 *
 *   oncpu shares SECONDS       70 % in burn_long(), 30 % in burn_short()
 *   oncpu kernel SECONDS       in burn_long(), and in read()
 *   oncpu threads SECONDS      a thread "burner", and "sleeper", which sleeps
 *   oncpu jit SECONDS          in code of no file, "made_now" in /tmp/perf-PID.map
 *   oncpu name SECONDS TEXT    in burn_long(), under this name
 *
 * In pieces of random length, by the thread's own CPU time. At the end it prints a line:
 * nanoseconds of user and of system time, as getrusage() has them.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static volatile uint64_t sink;
static char buffer[1 << 20];
static int zero;

static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

__attribute__((noinline)) static void burn_long(uint64_t until)
{
	while (cpu_ns() < until)
		for (int i = 0; i < 50000; i++)
			sink = sink * 31 + i;
}

__attribute__((noinline)) static void burn_short(uint64_t until)
{
	while (cpu_ns() < until)
		for (int i = 0; i < 50000; i++)
			sink = sink * 33 + i;
}

__attribute__((noinline)) static void read_much(uint64_t until)
{
	while (cpu_ns() < until)
		if (read(zero, buffer, sizeof(buffer)) != sizeof(buffer))
			abort();
}

/* push %rbp; mov %rsp, %rbp; 1: dec %rdi; jnz 1b; pop %rbp; ret */
static const unsigned char machine_code[] = { 0x55, 0x48, 0x89, 0xe5, 0x48, 0xff,
					      0xcf, 0x75, 0xfb, 0x5d, 0xc3 };

/* As a just-in-time compiler does it. */
__attribute__((noinline)) static int run_made(double seconds)
{
	uint64_t until = cpu_ns() + seconds * 1e9;
	void (*made)(uint64_t);
	char path[64];
	FILE *map;

	made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		return 1;
	memcpy((void *)made, machine_code, sizeof(machine_code));
	if (mprotect((void *)made, 4096, PROT_READ | PROT_EXEC))
		return 1;
	snprintf(path, sizeof(path), "/tmp/perf-%d.map", getpid());
	map = fopen(path, "w");
	if (!map)
		return 1;
	fprintf(map, "%lx %zx made_now\n", (unsigned long)made, sizeof(machine_code));
	fclose(map);
	while (cpu_ns() < until)
		made(1000000);
	/* The map stays: it is read when the program has ended. */
	return 0;
}

/* From 1 to 8 ms, so that no clock keeps step with it. */
static uint64_t piece(void)
{
	return 1000000 + rand() % 7000000;
}

static void pieces(double seconds, void (*second)(uint64_t), uint64_t tenths)
{
	uint64_t end = cpu_ns() + seconds * 1e9;

	while (cpu_ns() < end) {
		uint64_t unit = piece();

		burn_long(cpu_ns() + unit * (10 - tenths) / 10);
		if (tenths)
			second(cpu_ns() + unit * tenths / 10);
	}
}

static void *burner(void *seconds)
{
	prctl(PR_SET_NAME, "burner");
	pieces(*(double *)seconds, burn_short, 0);
	return NULL;
}

static void *sleeper(void *unused)
{
	struct timespec second = { .tv_sec = 1 };

	(void)unused;
	prctl(PR_SET_NAME, "sleeper");
	nanosleep(&second, NULL);
	return NULL;
}

static uint64_t time_ns(struct timeval time)
{
	return time.tv_sec * 1000000000ull + time.tv_usec * 1000ull;
}

int main(int argc, char **argv)
{
	double seconds = argc > 2 ? atof(argv[2]) : 1;
	const char *what = argc > 1 ? argv[1] : "";
	struct rusage usage;

	zero = open("/dev/zero", O_RDONLY);
	memset(buffer, 1, sizeof(buffer));
	if (!strcmp(what, "shares")) {
		pieces(seconds, burn_short, 3);
	} else if (!strcmp(what, "kernel")) {
		pieces(seconds, read_much, 5);
	} else if (!strcmp(what, "threads")) {
		pthread_t one, two;

		if (pthread_create(&one, NULL, burner, &seconds) ||
		    pthread_create(&two, NULL, sleeper, NULL))
			return 1;
		pthread_join(one, NULL);
		pthread_join(two, NULL);
	} else if (!strcmp(what, "jit")) {
		if (run_made(seconds))
			return 1;
	} else if (!strcmp(what, "name") && argc > 3) {
		prctl(PR_SET_NAME, argv[3]);
		pieces(seconds, burn_short, 0);
	} else {
		fprintf(stderr, "what?\n");
		return 2;
	}
	getrusage(RUSAGE_SELF, &usage);
	printf("%llu %llu\n", (unsigned long long)time_ns(usage.ru_utime),
	       (unsigned long long)time_ns(usage.ru_stime));
	return 0;
}
