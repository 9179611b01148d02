/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What becomes of a program that changes its own code (a number in it, then the call itself), and of one that compares it
 * with its file?
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
/* own: mov $NR, %eax; syscall; ret. It changes the number, and then the call itself, in its own code. */
__asm__(".pushsection .text\n.globl own\n.p2align 12\n.type own, @function\nown:\n\t.cfi_startproc\n\tmov $110, %eax\n"
	"\tsyscall\n\tnop\n\tnop\n\tnop\n\tnop\n\tret\n\t.cfi_endproc\n\t.size own, . - own\n.p2align 12\n.popsection");
extern long own(void);
static void put(void *at, const void *bytes, int n)
{
	char *page = (char *)((uintptr_t)at & -4096ul);
	if (mprotect(page, 4096, PROT_READ | PROT_WRITE))
		_exit(20);
	memcpy(at, bytes, n);
	if (mprotect(page, 4096, PROT_READ | PROT_EXEC))
		_exit(21);
}
int main(int argc, char **argv)
{
	unsigned char file[64], *code = (unsigned char *)own;
	uint32_t nr = 39;
	if (argc > 1) {
		/* Whether its code is what its file says. */
		int fd = open("/proc/self/exe", O_RDONLY);
		extern const char __executable_start[];
		pread(fd, file, 16, (const char *)own - __executable_start);
		return memcmp(file, code, 16) ? 5 : 7;
	}
	/* Each in a child alone: what its parent makes goes on as it was. */
	for (int i = 0; i < 3; i++) {
		int status;
		if (!fork()) {
			put(code + 1, &nr, 4);
			_exit(own() != getpid());
		}
		if (wait(&status) < 0 || status)
			return 6;
	}
	for (int i = 0; i < 100; i++)
		if (own() != getppid())
			return 2;
	put(code + 1, &nr, 4); /* getpid */
	for (int i = 0; i < 100; i++)
		if (own() != getpid())
			return 3;
	put(code + 5, "\x90\x90", 2); /* no call at all: the number comes back */
	return own() == 39 ? 7 : 4;
}
