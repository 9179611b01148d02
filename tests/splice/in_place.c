/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does a call that has to be made where it stands go through trampolines without being moved?
 *
 * A C library in small: all calls that may end a cancelled thread are made by one function, and a signal handler
 * compares where it interrupted with that function's begin and end (glibc from 2.41 on). Without an argument it
 * tries all that; with one it takes orders, a byte each by a read that is made so, and answers by the same
 * byte. Status 7 when all was right.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <unwind.h>

#define CHECK(what)                                                                    \
	do {                                                                           \
		if (!(what)) {                                                         \
			dprintf(2, "line %d: %s, errno %d\n", __LINE__, #what, errno); \
			_exit(9);                                                      \
		}                                                                      \
	} while (0)

long made(volatile int *cancelled, long nr, long a, long b, long c, long d, long e, long f);
extern const char made_begin[], made_end[];

#ifdef MARKED /* as where control-flow enforcement is on, and the handler has the addresses from data */
#define MARK "	endbr64\n.pushsection .data\n.quad made_begin, made_end\n.popsection\n"
#else
#define MARK ""
#endif

__asm__(".text\n.p2align 4\n.type made,@function\nmade:\n.cfi_startproc\n" MARK "made_begin:\n"
	"	movl (%rdi), %eax\n	testb $8, (%rdi)\n	.byte 0x0f, 0x85\n	.long made_cancelled - . - 4\n"
	"	movq %rdi, %r11\n	movq %rsi, %rax\n	movq %rdx, %rdi\n	movq %rcx, %rsi\n"
	"	movq %r8, %rdx\n	movq %r9, %r10\n	movq 8(%rsp), %r8\n	movq 16(%rsp), %r9\n"
	"	movq %r11, 8(%rsp)\n	syscall\n"
	"made_end:\n	ret\n.cfi_endproc\n.size made, . - made\n"
	/* As in glibc 2.43, the next function follows at once. */
	".type made_cancelled,@function\nmade_cancelled:\n	jmp cancelled_here\n.size made_cancelled, . - made_cancelled\n");

static volatile int flag;
static volatile sig_atomic_t handled, within, outermost, jumps;
static sigjmp_buf out;

__attribute__((noinline, used)) void cancelled_here(void)
{
	siglongjmp(out, 1);
}

__attribute__((noinline)) static long call(long nr, long a, long b, long c)
{
	long result = made(&flag, nr, a, b, c, 0, 0, 0);

	/* What a function may change has changed. */
	__asm__ volatile("" ::
				 : "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11");
	return result;
}

__attribute__((noinline)) static void *waits(void *fd);

static _Unwind_Reason_Code frame(struct _Unwind_Context *context, void *found)
{
	(void)found;
	if (_Unwind_FindEnclosingFunction((void *)(_Unwind_GetIP(context) - 1)) == (void *)waits)
		outermost = 1;
	return _URC_NO_REASON;
}

static void handler(int number, siginfo_t *info, void *context)
{
	ucontext_t *of = context;
	const char *ip = (const char *)of->uc_mcontext.gregs[REG_RIP];

	(void)number;
	(void)info;
	handled++;
	within += ip >= made_begin && ip < made_end;
	_Unwind_Backtrace(frame, NULL);
	CHECK(call(SYS_getppid, 0, 0, 0) == getppid());
	if (jumps)
		siglongjmp(out, 2);
}

__attribute__((noinline)) static void *waits(void *fd)
{
	char byte = 0;

	if (sigsetjmp(out, 1) == 0)
		CHECK(call(SYS_read, *(int *)fd, (long)&byte, 1) == 1 && byte == 'x');
	else
		CHECK(jumps);
	for (int i = 0; i < 100; i++)
		CHECK(call(SYS_read, -1, 0, 0) == -EBADF);
	return NULL;
}

static void interrupted(int leaves)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_RESTART | SA_SIGINFO };
	int fd[2];
	pthread_t thread;

	handled = within = outermost = 0;
	jumps = leaves;
	CHECK(pipe(fd) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, waits, fd) == 0);
	for (int i = 1; i <= (leaves ? 1 : 20); i++) {
		/* So that it sleeps there. */
		nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
		CHECK(pthread_kill(thread, SIGUSR1) == 0);
		while (handled < i)
			sched_yield();
	}
	CHECK(write(fd[1], "x", 1) == 1);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(outermost);
	/* Where other programs compute, one of them may have come before it slept. */
	CHECK(within * 2 > handled || leaves);
	close(fd[0]);
	close(fd[1]);
}

int main(int argc, char **argv)
{
	char order;

	(void)argv;
	while (argc > 1) {
		static int begun;

		if (!begun++)
			CHECK(write(1, "r", 1) == 1);
		if (call(SYS_read, 0, (long)&order, 1) != 1 || order == 'q')
			return 7;
		CHECK(write(1, &order, 1) == 1);
	}
	for (int i = 0; i < 1000; i++)
		CHECK(call(SYS_getppid, 0, 0, 0) == getppid());
	/* Cancelled before: the call is not made. */
	if (sigsetjmp(out, 1) == 0) {
		flag = 8;
		call(SYS_exit_group, 1, 0, 0);
		CHECK(!"it came back");
	}
	flag = 0;
	interrupted(0);
	interrupted(1);
	return 7;
}
