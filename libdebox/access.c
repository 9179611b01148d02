/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which group does a broker's socket belong to, that a user who may not
 * connect can be told what to ask for?
 *
 * Not asked of the C library: its lookups allocate and load modules, which is
 * nothing to do inside of a program's first system call.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "internal.h"
#include "own_call.h"

struct group_line {
	unsigned field; /* name, password, id, members */
	unsigned id;
	int digits;
	size_t length;
	char name[DEBOX_GROUP_NAME_LEN];
};

/* Takes one character of /etc/group; true at the end of the line of `id`. */
static int group_line_take(struct group_line *line, char c, unsigned id)
{
	int found = 0;

	if (c == '\n') {
		found = line->field >= 2 && line->digits && line->id == id &&
			line->length && line->length < sizeof line->name;
		if (!found)
			memset(line, 0, sizeof *line);
	} else if (c == ':') {
		line->field++;
	} else if (line->field == 0) {
		/* A name that does not fit is counted and not used. */
		if (line->length < sizeof line->name - 1)
			line->name[line->length] = c;
		line->length++;
	} else if (line->field == 2 && c >= '0' && c <= '9') {
		line->id = line->id * 10 + (unsigned)(c - '0');
		line->digits = 1;
	}
	return found;
}

static int group_name(unsigned id, char name[DEBOX_GROUP_NAME_LEN])
{
	struct group_line line = { 0 };
	char block[512];
	long fd = sys_call(SYS_openat, AT_FDCWD, "/etc/group", O_RDONLY | O_CLOEXEC);
	long n;
	int found = 0;

	if (sys_failed(fd))
		return 0;
	while (!found && (n = sys_call(SYS_read, fd, block, sizeof block)) > 0)
		for (long i = 0; i < n && !found; i++)
			found = group_line_take(&line, block[i], id);
	sys_call(SYS_close, fd);
	if (found)
		memcpy(name, line.name, sizeof line.name);
	return found;
}

int debox_socket_group_(const char *path, char name[DEBOX_GROUP_NAME_LEN])
{
	struct stat st;

	if (sys_failed(sys_call(SYS_newfstatat, AT_FDCWD, path, &st, 0)))
		return 0;
	/* Root's own group is nothing to be put into. */
	if ((st.st_mode & (S_IWGRP | S_IWOTH)) != S_IWGRP || !st.st_gid)
		return 0;
	return group_name(st.st_gid, name);
}
