/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What is a case, and what do the cases share? */
#pragma once
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define MIB (1u << 20)

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

/* Each ends with a case without a name. */
extern const struct test_case pipes_cases[], futexes_cases[], file_locks_cases[], processes_cases[],
	events_cases[], message_queues_cases[], sockets_cases[], tty_cases[], memory_cases[],
	fuse_cases[], disk_cases[];

/* case.c; names are relative to a scratch directory that goes away at the end */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Everything before this is set-up and not recorded. */
void ready(void);
/* A second process of the case; it dies with it. */
pid_t partner(void);
void pause_forever(void);
void settle(void);
void write_file(const char *path, const char *format, ...);
char *in_disk(const char *name);
extern int ready_pipe[], go_pipe[];
extern const char *disk_device, *disk_type;
extern char scratch[];
extern char disk[64];

/* pipes.c */
void fill(int fd);
extern int pipe_ends[];

/* file_locks.c */
extern char lock_path[];

/* sockets.c */
void loopback_up(void);

/* memory.c */
/* Memory whose first touch blocks for ever (userfaultfd). */
char *stuck_memory(size_t size);
bool enter_memory_group(unsigned limit, bool high);

#define MUST(call) ({ __auto_type must_ = (call); if (must_ == (__typeof__(must_))-1) fail("%s", #call); must_; })
