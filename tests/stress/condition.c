/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Does libdebox read and judge conditions as the shared table says, and does it
 * survive what is no expression at all?
 *
 * Built from the sources, as the parser is not exported; with the sanitizers.
 */
#include "../../libdebox/expression.h"

#include <stdlib.h>
#include <string.h>

static const struct expression_names known_names = { debox_call_name, DEBOX_NR_COMPAT, 0 };
static unsigned lines, wrong;

static void complain(const char *line, const char *what)
{
	wrong++;
	printf("%s\n    %s\n", line, what);
}

static void call_read(struct facts *call, char *line, char *const comm)
{
	static const struct {
		const char *name;
		int number;
	} names[] = {
		{ "wall", NUMBER_WALL },
		{ "cpu", NUMBER_CPU },
		{ "blocked", NUMBER_BLOCKED },
		{ "runq", NUMBER_RUNQ },
		{ "retval", NUMBER_RETVAL },
		{ "minflt", NUMBER_MINFLT },
		{ "majflt", NUMBER_MAJFLT },
		{ "sleeps", NUMBER_SLEEPS },
		{ "preemptions", NUMBER_PREEMPTIONS },
		{ "waiters", NUMBER_WAITERS },
		{ "pid", NUMBER_PID },
		{ "tid", NUMBER_TID },
	};
	static char kept[4096];
	char *save = NULL;

	memset(call, 0, sizeof *call);
	call->nr = -1;
	call->sites_whole = 1;
	strcpy(kept, line);
	for (char *part = strtok_r(kept, " ", &save); part; part = strtok_r(NULL, " ", &save)) {
		char *value = strchr(part, '=');
		int known = 0;

		if (!value)
			abort();
		*value++ = 0;
		if (!strcmp(part, "call")) {
			for (int nr = 0; nr < 512; nr++)
				if (debox_call_name(nr) && !strcmp(debox_call_name(nr), value))
					call->nr = nr;
			known = call->nr >= 0;
		} else if (!strcmp(part, "comm")) {
			strcpy(comm, value);
			call->comm = comm;
			known = 1;
		} else if (!strcmp(part, "site")) {
			char *function = strchr(value, ':');

			*function++ = 0;
			call->site[call->sites].label = strcmp(value, "?") ? value : NULL;
			call->site[call->sites].function = strcmp(function, "?") ? function : NULL;
			call->sites++;
			known = 1;
		}
		for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
			if (!strcmp(part, names[i].name)) {
				call->number[names[i].number] = strtoll(value, NULL, 10);
				call->known |= 1u << names[i].number;
				known = 1;
			}
		if (!known) {
			printf("no such fact: %s=%s\n", part, value);
			abort();
		}
	}
}

/* The next cell of COLUMN ¦ EXPRESSION ¦ TEXT ¦ HELP, less one blank at each side. */
static char *cell(char **rest)
{
	char *begin = *rest, *end;

	if (*begin == ' ')
		begin++;
	end = strstr(begin, "\xc2\xa6");
	*rest = end ? end + 2 : begin + strlen(begin);
	if (!end)
		end = *rest;
	if (end > begin && end[-1] == ' ')
		end--;
	*end = 0;
	return begin;
}

static void table_check(const char *path)
{
	char line[4096], copy[4096], what[1024], comm[64];
	struct debox_watch_error error;
	struct expression *x;
	struct facts call;
	FILE *file = fopen(path, "r");

	if (!file) {
		perror(path);
		exit(1);
	}
	memset(&call, 0, sizeof call);
	while (fgets(line, sizeof line, file)) {
		char *rest = strchr(line, ' ');

		line[strcspn(line, "\n")] = 0;
		if (!*line || *line == '#')
			continue;
		lines++;
		strcpy(copy, line);
		rest = strchr(line, ' ') + 1;
		if (!strncmp(line, "call ", 5)) {
			call_read(&call, rest, comm);
		} else if (!strncmp(line, "bad ", 4)) {
			char *column = cell(&rest), *text = cell(&rest), *said = cell(&rest),
			     *help = cell(&rest);

			x = debox_expression_parse_(text, strlen(text), &known_names, &error);
			if (x) {
				complain(copy, "accepted");
				debox_expression_free_(x);
			} else if (error.column != (unsigned)atoi(column) || strcmp(error.text, said) ||
				   strcmp(error.help, help)) {
				snprintf(what, sizeof what, "%u: %s; %s", error.column, error.text,
					 error.help);
				complain(copy, what);
			}
		} else {
			enum answer expected = *line == 'y' ? ANSWER_YES :
					       *line == 'n' ? ANSWER_NO :
							      ANSWER_UNKNOWN;

			x = debox_expression_parse_(rest, strlen(rest), &known_names, &error);
			if (!x) {
				snprintf(what, sizeof what, "%u: %s; %s", error.column, error.text,
					 error.help);
				complain(copy, what);
				continue;
			}
			if (*line != 'o' && debox_expression_judge_(x, &call) != expected)
				complain(copy, "judged otherwise");
			/* What is left out beforehand must not be what is meant. */
			if (*line == 'y' && (call.known & 1u << NUMBER_WALL) &&
			    (uint64_t)call.number[NUMBER_WALL] < debox_expression_wall_ns_(x))
				complain(copy, "left out for its wall time");
			debox_expression_free_(x);
		}
	}
	fclose(file);
}

/* Pieces of the language in any order, and single bytes changed. */
static void noise_check(unsigned rounds)
{
	static const char *const pieces[] = { "wall", "call", "label", "errno", "in", "{", "}",
					      ",", "(", ")", "!", "&&", "||", "==",
					      "!=", "<", ">=", "=~", "!~", "=", "1ms",
					      "1", "-5", "fsync", "%net", "'a b'", "'", "\"",
					      "*", "\xe6\x97\xa5", " ", "comm", "0x7f", "\xff" };
	struct debox_watch_error error;
	struct facts call = { .nr = 0, .known = 1, .sites_whole = 1 };
	unsigned accepted = 0;
	char text[600];

	srand(1);
	for (unsigned i = 0; i < rounds; i++) {
		struct expression *x;
		unsigned parts = (unsigned)rand() % 12;

		text[0] = 0;
		for (unsigned k = 0; k < parts; k++) {
			strcat(text, pieces[(unsigned)rand() % (sizeof pieces / sizeof *pieces)]);
			if (rand() & 1)
				strcat(text, " ");
		}
		if (*text && !(rand() & 3))
			text[(unsigned)rand() % strlen(text)] = (char)(1 + rand() % 255);
		x = debox_expression_parse_(text, strlen(text), &known_names, &error);
		if (x) {
			accepted++;
			call.number[NUMBER_WALL] = rand() % 2000000;
			/* What is left out beforehand must not be what is meant. */
			if (debox_expression_judge_(x, &call) == ANSWER_YES &&
			    (uint64_t)call.number[NUMBER_WALL] < debox_expression_wall_ns_(x))
				complain(text, "a call that fits is shorter than any that fits");
			debox_expression_eventful_(x);
			debox_expression_free_(x);
		} else if (!error.column || error.column > strlen(text) + 1 || !*error.text) {
			complain(text, "an error without a place or a text");
		}
	}
	if (!accepted)
		complain("noise", "nothing was ever accepted");
}

static void long_check(void)
{
	struct debox_watch_error error;
	struct facts call = { .nr = 0, .known = 1, .sites_whole = 1 };
	struct expression *x;
	char *text = malloc(8192);

	call.number[NUMBER_WALL] = 7;
	text[0] = 0;
	while (strlen(text) < 4080)
		strcat(text, "wall>9ns||");
	strcat(text, "wall==7ns");
	x = debox_expression_parse_(text, strlen(text), &known_names, &error);
	if (!x || debox_expression_judge_(x, &call) != ANSWER_YES)
		complain("a long expression", error.text);
	if (x)
		debox_expression_free_(x);
	while (strlen(text) < 5000)
		strcat(text, " ");
	if (debox_expression_parse_(text, strlen(text), &known_names, &error) || error.column != 4097)
		complain("an expression of 5000 bytes", "accepted");
	free(text);
}

int main(int argc, char **argv)
{
	table_check(argc > 1 ? argv[1] : "tests/condition/table.txt");
	noise_check(200000);
	long_check();
	printf("condition: %u lines of the table, %u wrong\n", lines, wrong);
	return wrong || lines < 120;
}
