/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Where are libc's own functions, behind the ones that this library defines? */
#include "internal.h"

#include <dlfcn.h>

struct real debox_real;

/* What stands in for a function that this libc does not have. */
static long absent(void)
{
	errno = ENOSYS;
	return -1;
}

static void find(void *into, const char *name, int needed)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (!found && needed)
		found = (void *)(uintptr_t)absent;
	__atomic_store_n((void **)into, found, __ATOMIC_RELEASE);
}

#define FIND(name) find(&debox_real.name, #name, 1)

/* Several threads may do this at once: they store the same. */
void debox_real_find(void)
{
	int saved = errno;

	/* Without it, ppoll on the private descriptor is used. */
	find(&debox_real.epoll_pwait2, "epoll_pwait2", 0);
	FIND(ppoll);
	FIND(select);
	FIND(pselect);
	FIND(epoll_pwait);
	FIND(close);
	FIND(close_range);
	FIND(closefrom);
	FIND(dup);
	FIND(dup2);
	FIND(dup3);
	FIND(fcntl);
	FIND(fcntl64);
	FIND(fclose);
	FIND(pclose);
	FIND(freopen);
	FIND(freopen64);
	FIND(closedir);
	FIND(accept);
	FIND(accept4);
	FIND(socket);
	FIND(socketpair);
	FIND(pipe);
	FIND(pipe2);
	FIND(eventfd);
	FIND(timerfd_create);
	FIND(signalfd);
	FIND(inotify_init);
	FIND(inotify_init1);
	FIND(epoll_create);
	FIND(epoll_create1);
	FIND(memfd_create);
	FIND(open);
	FIND(open64);
	FIND(openat);
	FIND(openat64);
	FIND(creat);
	FIND(creat64);
	FIND(recvmsg);
	FIND(recvmmsg);
	FIND(pidfd_open);
	FIND(prctl);
	FIND(unshare);
	FIND(setrlimit);
	FIND(prlimit);
	FIND(epoll_ctl);
	FIND(sigaction);
	FIND(signal);
	FIND(sysv_signal);
	FIND(sigset);
	FIND(clone);
	FIND(syscall);
	/* real() asks for this one: last. */
	FIND(poll);
	errno = saved;
}
