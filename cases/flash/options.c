/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What do the switches mean, and which of them mean nothing together? */
#include "flash.h"

#define UNSET UINT32_MAX
#define ROWS (sizeof rows / sizeof *rows)

struct options options = {
	.root = ".", .residency = UNSET, .names = UNSET, .send = SEND_SENDFILE, .cgi = CGI_PERSISTENT, .cgi_answer = CGI_SOCKET, .backlog = 1024, .workers = 16, .helpers = 8, .cache = 4096, .mapped = 4096, .timeout_s = 30
};

/* A row has the words of its enumeration in the enumeration's order, or the limits of a number. */
static const struct {
	const char *name, *words;
	unsigned *value, least, most;
	const char *meaning;
} rows[] = {
	{ "--port", NULL, &options.port, 0, 65535, "on 127.0.0.1; 0: any free one" },
	{ "--model", "amped threads processes", &options.model, 0, 0, "an event loop with helpers, or workers that block" },
	{ "--workers", NULL, &options.workers, 1, 4096, "threads or processes" },
	{ "--send", "writev sendfile uring", &options.send, 0, 0, "mapped pages, sendfile(2), io_uring" },
	{ "--head", "together apart", &options.head, 0, 0, "of an answer that sendfile(2) sends: in one packet with its data, or as it may be" },
	{ "--residency", "none heuristic mincore cachestat nowait both", &options.residency, 0, 0, "is a piece in memory? If not, a helper reads it" },
	{ "--names", "loop path descriptor cached", &options.names, 0, 0, "who opens: loop; helper, then loop; helper; openat2(RESOLVE_CACHED), else helper" },
	{ "--cgi", "fork vfork persistent", &options.cgi, 0, 0, "who starts a CGI program; vfork: copies no mappings; persistent: a small process made for it" },
	{ "--cgi-answer", "pipe socket", &options.cgi_answer, 0, 0, "through the server, or from the program to the client" },
	{ "--helpers", NULL, &options.helpers, 0, HELPERS_MOST, "processes that open and read" },
	{ "--cache", NULL, &options.cache, 1, 1000000, "open files kept" },
	{ "--mapped", NULL, &options.mapped, 1, 60000, "of them mapped, where the design maps files (vm.max_map_count is 65530)" },
	{ "--believed", NULL, &options.believed_mb, 0, 1 << 20, "MB that the heuristic believes resident; 0: half of the memory" },
	{ "--backlog", NULL, &options.backlog, 1, 65535, "connections that wait for accept" },
	{ "--timeout", NULL, &options.timeout_s, 1, 3600, "seconds that a client may take for a request, or take nothing of an answer" },
};

static unsigned value_of(size_t row, const char *text)
{
	char words[64] = "", *at = words, *word, *end;
	unsigned long number = strtoul(text, &end, 10);
	strcpy(words, rows[row].words ? rows[row].words : "");
	for (unsigned i = 0; *words && (word = strsep(&at, " ")); i++)
		if (!strcmp(word, text))
			return i;
	if (rows[row].words)
		die("%s is %s; it must be one of: %s", rows[row].name, text, rows[row].words);
	if (!isdigit((unsigned char)*text) || *end || number < rows[row].least || number > rows[row].most)
		die("%s is %s; it must be a number from %u to %u", rows[row].name, text, rows[row].least, rows[row].most);
	return number;
}

void options_read(int argc, char **argv)
{
	for (int i = 1; i < argc; i += 2) {
		size_t row = 0;
		if (!strcmp(argv[i], "--help")) {
			puts("flash --root DIR [--SWITCH VALUE ...]\n  --root DIR: whose files are served, and where post.log grows");
			for (row = 0; row < ROWS; row++)
				printf("  %s %s: %s\n", rows[row].name, rows[row].words ? rows[row].words : "N", rows[row].meaning);
			puts("SIGUSR1: counters as one JSON line on stderr. SIGTERM: end.");
			exit(0);
		}
		if (i + 1 == argc)
			die("%s has no value; flash --help names the switches", argv[i]);
		while (row < ROWS && strcmp(argv[i], rows[row].name))
			row++;
		if (!strcmp(argv[i], "--root"))
			options.root = argv[i + 1];
		else if (row == ROWS)
			die("%s is no switch; flash --help names them", argv[i]);
		else
			*rows[row].value = value_of(row, argv[i + 1]);
	}
	bool amped = options.model == MODEL_AMPED;
	if (options.names == UNSET)
		options.names = amped ? NAMES_CACHED : NAMES_LOOP;
	if (options.residency == UNSET)
		options.residency = amped && options.send != SEND_URING ? RESIDENCY_BOTH : RESIDENCY_NONE;
	if (!amped)
		options.helpers = 0;
	bool asks = options.names != NAMES_LOOP || options.residency != RESIDENCY_NONE;
	if (!amped && (asks || options.send == SEND_URING))
		die("a worker that blocks asks no helper and no ring: with --model threads or processes leave --names loop, --residency none, and --send writev or sendfile");
	if (options.send == SEND_URING && options.residency != RESIDENCY_NONE)
		die("io_uring reads what is not in memory by itself: --send uring goes with --residency none");
	if (amped && !options.helpers && asks)
		die("--helpers is 0, but --names and --residency ask helpers: give 1 or more, or --names loop --residency none");
	if (!options.believed_mb)
		options.believed_mb = (uint64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / 2 >> 20;
	options.root_fd = open(options.root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (options.root_fd < 0)
		die("--root %s: %s; name a directory that can be read", options.root, strerror(errno));
}
