/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does a signal handler that changes where it returns to, and with which registers, change what the program sees, also
 * where it came within a call: its result, a register that calls keep, and where the program goes on? Those of virtual
 * machines do so, and those that make up for an instruction. Status 7 when all was right.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>
enum { RESULT,
       REGISTER,
       PLACE,
       KINDS };
/* The last one is of the first kind: it comes after a call that was left for good. */
enum { ROUNDS = 100 * KINDS + 1 };
static volatile sig_atomic_t kind;
extern const char elsewhere[];
static void handler(int signal, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	(void)info;
	if (syscall(SYS_getppid) < 0)
		_exit(2);
	/* Behind the instruction that there is not. */
	if (signal == SIGILL)
		registers[REG_RIP] += 2;
	else if (kind == RESULT)
		registers[REG_RAX] = 77;
	else if (kind == REGISTER)
		registers[REG_RBX] = 77;
	else
		registers[REG_RIP] = (greg_t)elsewhere;
}
/* rt_sigsuspend: a signal that waits comes within it, and not before. What came back, and what of 5 became in between. */
__attribute__((noinline, noclone)) static long waits(const sigset_t *mask, long *kept)
{
	long result, five = 5;
	__asm__ volatile("	movl $130, %%eax\n	syscall\n	jmp 1f\n"
			 "elsewhere:	movl $99, %%eax\n1:"
			 : "=&a"(result), "+b"(five)
			 : "D"(mask), "S"(8l)
			 : "rcx", "r11", "memory");
	*kept = five;
	return result;
}
__attribute__((noinline)) static void traps(void)
{
	__asm__ volatile("ud2");
}
int main(void)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
	sigset_t mask, none;
	sigemptyset(&none);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	if (sigaction(SIGUSR1, &action, 0) || sigaction(SIGILL, &action, 0) || sigprocmask(SIG_BLOCK, &mask, 0))
		return 1;
	for (int i = 0; i < ROUNDS; i++) {
		static const long results[KINDS] = { 77, -EINTR, 99 };
		long kept, result;
		kind = i % KINDS;
		if (kill(getpid(), SIGUSR1))
			return 3;
		result = waits(&none, &kept);
		if (result != results[kind] || kept != (kind == REGISTER ? 77 : 5))
			return 4 + kind * 10;
		traps();
	}
	return 7;
}
