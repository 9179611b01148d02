// SPDX-License-Identifier: MIT OR Apache-2.0
// Do brackets work in C++: values of every kind, void, and exceptions?
#include <debox.h>
#include <debox_compat.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

static int failures;
#define CHECK(cond)                                                           \
	do {                                                                  \
		if (!(cond)) {                                                \
			failures++;                                           \
			fprintf(stderr, "%d: not so: %s\n", __LINE__, #cond); \
		}                                                             \
	} while (0)

static debox_info last()
{
	debox_info i = debox_info();

	i.size = sizeof i;
	CHECK(debox_last(&i) == 0);
	return i;
}

static int thrower()
{
	throw std::runtime_error("out of the bracket");
}

static void nothing()
{
}

int main()
{
	debox_options o = debox_options();

	o.size = sizeof o;
	o.socket_path = "/nonexistent/debox.sock";
	CHECK(debox_open(&o) == 0);
	int pid = DEBOX_CALL(getpid());
	CHECK(pid == getpid() && last().retval == pid);
	char buf[4];
	ssize_t n = DEBOX_CALL_NR(SYS_read, read(-1, buf, sizeof buf));
	CHECK(n == -1 && errno == EBADF && last().retval == -EBADF && last().nr == SYS_read);
	const char *text = DEBOX_CALL(std::string("x").size() ? "yes" : "no");
	CHECK(std::string(text) == "yes");
	DEBOX_CALL(nothing());
	uint64_t seq = last().call_seq;
	try {
		DEBOX_CALL_NR(SYS_write, thrower());
		CHECK(false);
	} catch (const std::runtime_error &) {
		CHECK(last().nr == SYS_write && last().call_seq == seq + 1);
	}
	DEBOX_CALL_NR(SYS_getpid, getpid());
	CHECK(last().call_seq == seq + 2 && last().flags == DEBOX_FLAG_WRAP);
	// One bracket inside another, in one function.
	int both = DEBOX_CALL_NR(1, DEBOX_CALL_NR(2, 20) + 1);
	CHECK(both == 21 && last().nr == 1 && last().retval == 21);
	DeBoxInfo box;
	CHECK(DeBoxControl(&box, 5, 200) == 0);
	DEBOX_CALL_NR(SYS_getpid, getpid());
	CHECK(box.syscallNum == SYS_getpid && box.numPerSleepInfo == 0);
	printf("bracket.cc: %d failures\n", failures);
	return failures != 0;
}
