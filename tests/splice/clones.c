/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What becomes of threads and processes that are made by the kernel's own call: with no stack, as fork does; with one,
 * as a thread of no library, which ends by itself; in a user namespace of its own?
 */
#define _GNU_SOURCE
#include <linux/sched.h>
#include <sched.h>
#include <stdint.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile uint32_t gone;
static int raw(uint64_t flags, void *stack, uint64_t bytes)
{
	struct clone_args args = { .flags = flags, .exit_signal = flags & CLONE_THREAD ? 0 : SIGCHLD, .stack = (uint64_t)stack, .stack_size = bytes, .child_tid = (uint64_t)&gone };
	return syscall(SYS_clone3, &args, sizeof args);
}
static void calls(int n)
{
	while (n--)
		syscall(SYS_getppid);
}
__attribute__((noinline)) static int thread(void *stack, uint64_t bytes)
{
	struct clone_args args = { .flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD |
					    CLONE_CHILD_CLEARTID | CLONE_CHILD_SETTID,
				   .stack = (uint64_t)stack,
				   .stack_size = bytes,
				   .child_tid = (uint64_t)&gone };
	long r;
	/* The child has an empty stack: it makes its calls and ends without coming back. */
	__asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\t"
			 "mov $100, %%ebx\n2:\tmov $110, %%eax\n\tsyscall\n\tdec %%ebx\n\tjnz 2b\n\t"
			 "mov $60, %%eax\n\txor %%edi, %%edi\n\tsyscall\n1:"
			 : "=a"(r)
			 : "0"(SYS_clone3), "D"(&args), "S"(sizeof args)
			 : "rcx", "r11", "rbx", "memory");
	return r;
}
int main(void)
{
	int status, bad = 0, pid;
	void *stack = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 10; i++) {
		if (!(pid = raw(0, 0, 0))) {
			calls(100);
			_exit(5);
		}
		bad |= waitpid(pid, &status, 0) != pid || WEXITSTATUS(status) != 5;
	}
	for (int i = 0; i < 10; i++) {
		gone = 1;
		if (thread(stack, 65536) <= 0)
			return 2;
		while (gone)
			sched_yield();
	}
	if (!(pid = raw(CLONE_NEWUSER, 0, 0))) {
		calls(100);
		_exit(geteuid() == 65534 ? 6 : 1);
	}
	if (pid > 0)
		bad |= waitpid(pid, &status, 0) != pid || WEXITSTATUS(status) != 6;
	calls(100);
	return bad ? 3 : pid > 0 ? 7 :
				   8;
}
