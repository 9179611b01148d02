/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What does a condition such as `call == fsync && wall > 20ms` say, and is a
 * finished call one of those that it means?
 *
 * libdebox's and, through crates/condition, the command line's: one language.
 * tests/condition/table.txt says what it means, texts of errors included.
 *
 * A parsed expression is one mapping that nothing points into from outside:
 * judging allocates nothing and may happen in a signal handler.
 */
#include "expression.h"
#include "sys.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* ------------------------------------------------------------------ tables */

enum field_kind { FIELD_NUMBER,
		  FIELD_CALL,
		  FIELD_TEXT };

static const struct field {
	const char *name;
	enum field_kind kind;
	int which;
	const char *example;
} fields[] = {
	{ "blocked", FIELD_NUMBER, NUMBER_BLOCKED, "blocked > 1ms" },
	{ "call", FIELD_CALL, 0, "call == fsync" },
	{ "caller", FIELD_TEXT, TEXT_CALLER, "caller == main" },
	{ "comm", FIELD_TEXT, TEXT_COMM, "comm == nginx" },
	{ "chain", FIELD_TEXT, TEXT_CHAIN, "chain =~ jbd2*" },
	{ "cpu", FIELD_NUMBER, NUMBER_CPU, "cpu > 1ms" },
	{ "errno", FIELD_NUMBER, NUMBER_ERRNO, "errno == EAGAIN" },
	{ "error", FIELD_NUMBER, NUMBER_ERRNO, "error == EAGAIN" },
	{ "faults", FIELD_NUMBER, NUMBER_FAULTS, "faults > 0" },
	{ "function", FIELD_TEXT, TEXT_FUNCTION, "function == do_wait" },
	{ "holder", FIELD_TEXT, TEXT_HOLDER, "holder == backup" },
	{ "irq", FIELD_NUMBER, NUMBER_IRQ, "irq > 1ms" },
	{ "label", FIELD_TEXT, TEXT_LABEL, "label == inode-lock" },
	{ "majflt", FIELD_NUMBER, NUMBER_MAJFLT, "majflt > 0" },
	{ "minflt", FIELD_NUMBER, NUMBER_MINFLT, "minflt > 0" },
	{ "pid", FIELD_NUMBER, NUMBER_PID, "pid == 1234" },
	{ "preemptions", FIELD_NUMBER, NUMBER_PREEMPTIONS, "preemptions > 0" },
	{ "retval", FIELD_NUMBER, NUMBER_RETVAL, "retval == 0" },
	{ "root", FIELD_TEXT, TEXT_ROOT, "root == disk-flush" },
	{ "runq", FIELD_NUMBER, NUMBER_RUNQ, "runq > 1ms" },
	{ "sleeps", FIELD_NUMBER, NUMBER_SLEEPS, "sleeps > 1" },
	{ "tid", FIELD_NUMBER, NUMBER_TID, "tid == 1234" },
	{ "waiters", FIELD_NUMBER, NUMBER_WAITERS, "waiters > 0" },
	{ "wall", FIELD_NUMBER, NUMBER_WALL, "wall > 1ms" },
};
#define FIELDS (sizeof fields / sizeof *fields)

static int is_time(int number)
{
	return number <= NUMBER_RUNQ || number == NUMBER_IRQ;
}

/* What the names stand for beside the calls of that name: from
 * crates/condition/data/calls.tsv. */
static const struct {
	const char *name;
	const char *calls; /* blank-separated */
} sets[] = {
#include "call_sets.inc"
};
#define SETS (sizeof sets / sizeof *sets)

static const struct {
	const char *name;
	int number;
} errnos[] = {
#include "errnos.inc"
	{ "EWOULDBLOCK", EAGAIN },
	{ "EDEADLOCK", EDEADLK },
	{ "ENOTSUP", EOPNOTSUPP },
};
#define ERRNOS (sizeof errnos / sizeof *errnos)

const char *debox_errno_name_(int64_t number)
{
	for (size_t i = 0; i < ERRNOS; i++)
		if (errnos[i].number == number)
			return errnos[i].name;
	return NULL;
}

/* ------------------------------------------------------------------- lexer */

enum token_kind {
	T_END,
	T_WORD,
	T_QUOTED,
	T_OPERATOR,
	T_AND,
	T_OR,
	T_NOT,
	T_OPEN,
	T_CLOSE,
	T_BRACE_OPEN,
	T_BRACE_CLOSE,
	T_COMMA,
};
enum operator{ OP_EQ,
	       OP_NE,
	       OP_LT,
	       OP_LE,
	       OP_GT,
	       OP_GE,
	       OP_LIKE,
	       OP_NOT_LIKE,
	       OP_IN };
static const char *const operator_text[] = { "==", "!=", "<", "<=", ">", ">=", "=~", "!~", "in" };

struct token {
	enum token_kind kind;
	enum operator op;
	uint32_t at, length;   /* in the expression */
	uint32_t text, extent; /* of what it says */
};

struct parser {
	struct expression *x;
	const struct expression_names *names;
	struct debox_watch_error *error;
	uint32_t at;
	uint32_t depth;
	int failed;
	int peeked;
	struct token next;
};

__attribute__((format(printf, 5, 6))) static void fail(struct parser *p, uint32_t at, uint32_t length,
						       const char *help, const char *format, ...)
{
	struct debox_watch_error *e = p->error;
	va_list args;

	if (p->failed)
		return;
	p->failed = 1;
	e->column = at + 1;
	e->length = length;
	va_start(args, format);
	vsnprintf(e->text, sizeof e->text, format, args);
	va_end(args);
	snprintf(e->help, sizeof e->help, "%s", help ? help : "");
}

static const char *call_name(const struct parser *p, int key)
{
	return key < p->names->keys ? p->names->name(key) : NULL;
}

static int in_word(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       c >= 0x80 || (c && strchr("_%.*?+-:/@", c));
}

static struct token token_read(struct parser *p)
{
	static const struct {
		char text[3];
		enum token_kind kind;
		enum operator op;
	} signs[] = {
		{ "==", T_OPERATOR, OP_EQ },
		{ "=~", T_OPERATOR, OP_LIKE },
		{ "!=", T_OPERATOR, OP_NE },
		{ "!~", T_OPERATOR, OP_NOT_LIKE },
		{ "<=", T_OPERATOR, OP_LE },
		{ ">=", T_OPERATOR, OP_GE },
		{ "<", T_OPERATOR, OP_LT },
		{ ">", T_OPERATOR, OP_GT },
		{ "&&", T_AND, OP_EQ },
		{ "||", T_OR, OP_EQ },
		{ "!", T_NOT, OP_EQ },
		{ "(", T_OPEN, OP_EQ },
		{ ")", T_CLOSE, OP_EQ },
		{ "{", T_BRACE_OPEN, OP_EQ },
		{ "}", T_BRACE_CLOSE, OP_EQ },
		{ ",", T_COMMA, OP_EQ },
	};
	const char *text = p->x->text;
	struct token t = { .kind = T_END };
	unsigned char c;

	if (p->peeked) {
		p->peeked = 0;
		return p->next;
	}
	while (text[p->at] && strchr(" \t\n\r\f", text[p->at]))
		p->at++;
	t.at = p->at;
	if (p->at == p->x->length || p->failed)
		return t;
	c = (unsigned char)text[p->at];
	for (unsigned i = 0; i < sizeof signs / sizeof *signs; i++) {
		uint32_t n = (uint32_t)strlen(signs[i].text);

		if (strncmp(text + p->at, signs[i].text, n))
			continue;
		t.kind = signs[i].kind;
		t.op = signs[i].op;
		t.length = n;
		p->at += n;
		return t;
	}
	if (c == '=' || c == '&' || c == '|') {
		fail(p, t.at, 1, c == '=' ? "write ==" : c == '&' ? "write &&" :
								    "write ||",
		     "'%c' alone means nothing", c);
		return t;
	}
	if (c == '"' || c == '\'') {
		const char *end = memchr(text + p->at + 1, c, p->x->length - p->at - 1);

		if (!end) {
			fail(p, t.at, p->x->length - t.at, "close it with the quote that it begins with",
			     "this string has no end");
			return t;
		}
		t.kind = T_QUOTED;
		t.text = t.at + 1;
		t.extent = (uint32_t)(end - text) - t.text;
		t.length = t.extent + 2;
		p->at += t.length;
		return t;
	}
	if (in_word(c)) {
		while (in_word((unsigned char)text[p->at]))
			p->at++;
		t.kind = T_WORD;
		t.text = t.at;
		t.extent = t.length = p->at - t.at;
		if (t.length == 2 && !memcmp(text + t.at, "in", 2)) {
			t.kind = T_OPERATOR;
			t.op = OP_IN;
		}
		return t;
	}
	fail(p, t.at, 1, NULL, "'%c' has no meaning here", c < 0x20 || c == 0x7f ? ' ' : c);
	return t;
}

static struct token token_peek(struct parser *p)
{
	p->next = token_read(p);
	p->peeked = 1;
	return p->next;
}

/* ------------------------------------------------------------- what is near */

#define NEAR_MAX 40

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

/* Insertions, deletions, changes and swaps of neighbours. */
static unsigned distance(const char *a, unsigned n, const char *b, unsigned m)
{
	unsigned rows[3][NEAR_MAX + 1];
	unsigned *before = rows[0], *above = rows[1], *row = rows[2];

	for (unsigned j = 0; j <= m; j++)
		above[j] = j;
	memset(before, 0, sizeof rows[0]);
	for (unsigned i = 1; i <= n; i++) {
		unsigned *spare = before;

		row[0] = i;
		for (unsigned j = 1; j <= m; j++) {
			unsigned best = above[j - 1] + (lower(a[i - 1]) != lower(b[j - 1]));

			if (above[j] + 1 < best)
				best = above[j] + 1;
			if (row[j - 1] + 1 < best)
				best = row[j - 1] + 1;
			if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
			    lower(a[i - 2]) == lower(b[j - 1]) && before[j - 2] + 1 < best)
				best = before[j - 2] + 1;
			row[j] = best;
		}
		before = above;
		above = row;
		row = spare;
	}
	return above[m];
}

struct nearest {
	const char *word;
	unsigned length, most;
	const char *best;
	unsigned best_distance;
};

static struct nearest nearest_begin(const char *word, unsigned length)
{
	struct nearest n = { word, length, length / 3 ? length / 3 : 1, NULL, ~0u };

	return n;
}

static void nearest_try(struct nearest *n, const char *name)
{
	unsigned m = (unsigned)strlen(name), d;
	unsigned apart = m > n->length ? m - n->length : n->length - m;

	if (n->length > NEAR_MAX || m > NEAR_MAX || apart > n->most)
		return;
	d = distance(n->word, n->length, name, m);
	if (d > n->most)
		return;
	if (d < n->best_distance || (d == n->best_distance && strcmp(name, n->best) < 0)) {
		n->best = name;
		n->best_distance = d;
	}
}

static const char *did_you_mean(const struct nearest *n, char *buffer, size_t size)
{
	if (!n->best)
		return NULL;
	snprintf(buffer, size, "did you mean %s?", n->best);
	return buffer;
}

/* The nearest of the names; NULL: none is near enough to be meant. */
const char *debox_nearest_(const char *word, size_t length, const char *const *names, size_t count)
{
	struct nearest near = nearest_begin(word, (unsigned)length);

	for (size_t i = 0; i < count; i++)
		nearest_try(&near, names[i]);
	return near.best;
}

/* ------------------------------------------------------------------ values */

/* `*` stands for any characters, `?` for one (of UTF-8). */
int debox_glob_fits_(const char *p, size_t pn, const char *n)
{
	size_t pi = 0, star = ~(size_t)0;
	const char *taken = NULL;

	while (*n) {
		if (pi < pn && p[pi] == '*') {
			star = pi++;
			taken = n;
		} else if (pi < pn && p[pi] == '?') {
			pi++;
			n++;
			while (((unsigned char)*n & 0xc0) == 0x80)
				n++;
		} else if (pi < pn && p[pi] == *n) {
			pi++;
			n++;
		} else if (star != ~(size_t)0) {
			pi = star + 1;
			n = ++taken;
		} else {
			return 0;
		}
	}
	while (pi < pn && p[pi] == '*')
		pi++;
	return pi == pn;
}

static int same(const char *text, unsigned length, const char *name)
{
	return strlen(name) == length && !memcmp(text, name, length);
}

static void call_add(const struct parser *p, uint64_t *calls, const char *name, unsigned length,
		     int *found)
{
	for (int key = 0; key < p->names->keys; key++) {
		const char *known = call_name(p, key);

		if (known && same(name, length, known)) {
			calls[key / 64] |= 1ull << (key % 64);
			*found = 1;
		}
	}
}

static int call_named(const struct parser *p, uint64_t *calls, const char *name, unsigned length)
{
	int found = 0;

	call_add(p, calls, name, length, &found);
	for (unsigned i = 0; i < SETS; i++) {
		const char *c = sets[i].calls;

		if (!same(name, length, sets[i].name))
			continue;
		found = found || *name == '%';
		while (*c) {
			unsigned n = (unsigned)strcspn(c, " ");

			call_add(p, calls, c, n, &found);
			c += n + (c[n] == ' ');
		}
	}
	/* Also a number, as reports print those without a name. */
	if (!found && length > 8 && length < 12 && !memcmp(name, "syscall_", 8)) {
		int nr = 0;

		for (unsigned i = 8; i < length; i++) {
			if (name[i] < '0' || name[i] > '9')
				return 0;
			nr = nr * 10 + (name[i] - '0');
		}
		if (nr < (int)DEBOX_NR_COMPAT) {
			calls[nr / 64] |= 1ull << (nr % 64);
			found = 1;
		}
	}
	return found;
}

static uint32_t node_new(struct parser *p, enum node_kind kind)
{
	struct expression *x = p->x;
	struct node *n;

	/* Each node has a byte of the text to itself. */
	if (x->nodes == x->capacity) {
		fail(p, 0, 0, NULL, "the expression has too many parts");
		return 0;
	}
	n = &x->node[x->nodes];
	memset(n, 0, sizeof *n);
	n->kind = kind;
	return x->nodes++;
}

static uint32_t node_join(struct parser *p, enum node_kind kind, uint32_t left, uint32_t right)
{
	uint32_t i = node_new(p, kind);

	p->x->node[i].left = left;
	p->x->node[i].right = right;
	return i;
}

static int digit(char c)
{
	return c >= '0' && c <= '9';
}

static void fail_at(struct parser *p, const struct token *t, const char *help, const char *text)
{
	fail(p, t->at, t->length, help, "%s", text);
}

static int64_t value_time(struct parser *p, const struct token *t)
{
	static const struct {
		const char *name;
		int64_t scale;
	} units[] = { { "ns", 1 }, { "us", 1000 }, { "\xc2\xb5s", 1000 }, { "\xce\xbcs", 1000 }, { "ms", 1000000 }, { "s", 1000000000 } };
	const char *s = p->x->text + t->text;
	unsigned n = t->extent, before = 0, dot, end, zero = 1;
	int64_t value = 0, scale = 0, place;
	char help[300];

	while (before < n && digit(s[before]))
		before++;
	end = dot = before;
	while (end < n && (digit(s[end]) || s[end] == '.'))
		end++;
	for (unsigned i = dot + 1; i < end; i++)
		if (!digit(s[i]))
			before = 0;
	if (!before || (dot < end && dot + 1 == end)) {
		fail(p, t->at, t->length, "for example 5ms, 200us or 1.5s", "'%.*s' is no time", (int)n, s);
		return 0;
	}
	for (unsigned i = 0; i < end; i++)
		if (digit(s[i]) && s[i] != '0')
			zero = 0;
	for (unsigned i = 0; i < sizeof units / sizeof *units; i++)
		if (same(s + end, n - end, units[i].name))
			scale = units[i].scale;
	if (end == n) {
		if (zero)
			return 0;
		snprintf(help, sizeof help, "did you mean %.*sms?", (int)n, s);
		fail_at(p, t, help, "a time needs a unit");
		return 0;
	}
	if (!scale) {
		fail(p, t->at, t->length, "there are ns, us, ms and s", "there is no unit '%.*s'",
		     (int)(n - end), s + end);
		return 0;
	}
	for (unsigned i = 0; i < dot; i++)
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, s[i] - '0', &value))
			goto large;
	if (__builtin_mul_overflow(value, scale, &value))
		goto large;
	place = scale;
	for (unsigned i = dot + 1; i < end; i++) {
		if (place == 1) {
			if (s[i] != '0') {
				fail_at(p, t, NULL, "a time is a whole number of nanoseconds");
				return 0;
			}
			continue;
		}
		place /= 10;
		if (__builtin_add_overflow(value, (s[i] - '0') * place, &value))
			goto large;
	}
	return value;
large:
	fail_at(p, t, NULL, "this number is too large");
	return 0;
}

static int64_t value_whole(struct parser *p, const struct token *t, const char *example)
{
	const char *s = p->x->text + t->text;
	unsigned n = t->extent, i = 0, base = 10, from;
	uint64_t value = 0;
	int negative = 0, large = 0;
	char help[64];

	if (n && (s[0] == '-' || s[0] == '+'))
		negative = s[i++] == '-';
	if (n - i >= 2 && s[i] == '0' && s[i + 1] == 'x') {
		base = 16;
		i += 2;
	}
	for (from = i; i < n; i++) {
		unsigned d;

		if (digit(s[i]))
			d = (unsigned)(s[i] - '0');
		else if (base == 16 && lower(s[i]) >= 'a' && lower(s[i]) <= 'f')
			d = (unsigned)(lower(s[i]) - 'a') + 10;
		else
			break;
		large |= __builtin_mul_overflow(value, (uint64_t)base, &value);
		large |= __builtin_add_overflow(value, (uint64_t)d, &value);
	}
	if (from == n || i < n) {
		snprintf(help, sizeof help, "for example %s", example);
		fail(p, t->at, t->length, help, "'%.*s' is no number", (int)n, s);
		return 0;
	}
	if (large || value > (uint64_t)INT64_MAX + (uint64_t)negative) {
		fail_at(p, t, NULL, "this number is too large");
		return 0;
	}
	return negative ? (int64_t)(0 - value) : (int64_t)value;
}

static int64_t value_errno(struct parser *p, const struct token *t)
{
	const char *s = p->x->text + t->text;
	struct nearest near;
	char help[64];

	for (unsigned i = 0; i < ERRNOS; i++)
		if (same(s, t->extent, errnos[i].name))
			return errnos[i].number;
	if (t->extent && digit(*s))
		return value_whole(p, t, "errno == EAGAIN");
	near = nearest_begin(s, t->extent);
	for (unsigned i = 0; i < ERRNOS; i++)
		nearest_try(&near, errnos[i].name);
	fail(p, t->at, t->length, did_you_mean(&near, help, sizeof help), "there is no error '%.*s'",
	     (int)t->extent, s);
	return 0;
}

static int has_pattern(const char *s, unsigned n)
{
	return memchr(s, '*', n) || memchr(s, '?', n);
}

#define NEEDS_MATCH "write =~ instead of == and in, !~ instead of !="
#define NO_PATTERN "'*' and '?' stand for other characters only after =~"

static void fail_call(struct parser *p, const struct token *t)
{
	const char *s = p->x->text + t->text;
	struct nearest near = nearest_begin(s, t->extent);
	int group = *s == '%';
	char help[sizeof p->error->help];
	const char *meant;

	if (has_pattern(s, t->extent)) {
		fail_at(p, t, NEEDS_MATCH, NO_PATTERN);
		return;
	}
	if (!group)
		for (int key = 0; key < p->names->keys; key++)
			if (call_name(p, key))
				nearest_try(&near, call_name(p, key));
	for (unsigned i = 0; i < SETS; i++)
		if ((sets[i].name[0] == '%') == group)
			nearest_try(&near, sets[i].name);
	meant = did_you_mean(&near, help, sizeof help);
	if (!meant && group) {
		size_t n = (size_t)snprintf(help, sizeof help, "there are ");
		const char *comma = "";

		for (unsigned i = 0; i < SETS; i++)
			if (sets[i].name[0] == '%' && n < sizeof help) {
				n += (size_t)snprintf(help + n, sizeof help - n, "%s%s", comma,
						      sets[i].name);
				comma = ", ";
			}
		meant = help;
	}
	fail(p, t->at, t->length, meant,
	     group ? "there is no group of calls '%.*s'" : "there is no system call '%.*s'",
	     (int)t->extent, s);
}

static void number_range(const struct field *f, enum operator op, int64_t value, struct node *n)
{
	int64_t low = f->which == NUMBER_RETVAL ? INT64_MIN : 0;
	int64_t high = f->which == NUMBER_ERRNO ? ERRNO_MAX : INT64_MAX;

	n->low = low;
	n->high = high;
	switch (op) {
	case OP_LT:
		/* Nothing is less than the least: an empty range. */
		if (value <= low)
			n->low = 1, n->high = 0;
		else
			n->high = value - 1;
		break;
	case OP_LE:
		n->high = value;
		break;
	case OP_GT:
		if (value == INT64_MAX)
			n->low = 1, n->high = 0;
		else
			n->low = value + 1 > low ? value + 1 : low;
		break;
	case OP_GE:
		n->low = value > low ? value : low;
		break;
	default: /* == and != */
		n->low = n->high = value;
	}
}

/* One comparison; of `in` that with one value of the list. */
static uint32_t predicate(struct parser *p, const struct field *f, enum operator op,
			  const struct token *t, uint32_t from)
{
	const char *s = p->x->text + t->text;
	int like = op == OP_LIKE || op == OP_NOT_LIKE;
	int negated = op == OP_NE || op == OP_NOT_LIKE;
	char help[64];
	uint32_t i;
	struct node *n;

	if (f->kind == FIELD_NUMBER) {
		int64_t value;

		if (is_time(f->which))
			value = value_time(p, t);
		else if (f->which == NUMBER_ERRNO)
			value = value_errno(p, t);
		else
			value = value_whole(p, t, f->example);
		i = node_new(p, NODE_NUMBER);
		n = &p->x->node[i];
		n->which = f->which;
		number_range(f, op, value, n);
	} else if (!t->extent) {
		fail_at(p, t, NULL, "an empty name fits nothing");
		return 0;
	} else if (f->kind == FIELD_CALL) {
		int found = 0;

		i = node_new(p, NODE_CALL);
		n = &p->x->node[i];
		if (like) {
			for (int key = 0; key < p->names->keys; key++)
				if (call_name(p, key) && debox_glob_fits_(s, t->extent, call_name(p, key))) {
					n->calls[key / 64] |= 1ull << (key % 64);
					found = 1;
				}
			if (!found)
				fail(p, t->at, t->length, NULL, "no system call's name is like '%.*s'",
				     (int)t->extent, s);
		} else if (!call_named(p, n->calls, s, t->extent)) {
			fail_call(p, t);
		}
	} else {
		if (!like && f->which <= TEXT_CHAIN && has_pattern(s, t->extent)) {
			fail_at(p, t, NEEDS_MATCH, NO_PATTERN);
		} else if (!like && f->which == TEXT_LABEL && t->extent >= DEBOX_LABEL_LEN) {
			fail_at(p, t, NULL, "a label has at most 23 bytes");
		} else if (!like && f->which == TEXT_COMM && t->extent >= DEBOX_COMM_LEN) {
			unsigned cut = DEBOX_COMM_LEN - 1;

			while (cut && ((unsigned char)s[cut] & 0xc0) == 0x80)
				cut--;
			snprintf(help, sizeof help, "the kernel cuts it to %.*s", (int)cut, s);
			fail_at(p, t, help, "a command name has at most 15 bytes");
		}
		i = node_new(p, NODE_TEXT);
		n = &p->x->node[i];
		n->which = f->which;
		n->glob = (uint32_t)like;
		n->text = t->text;
		n->length = t->extent;
	}
	p->x->node[i].at = from;
	p->x->node[i].extent = t->at + t->length - from;
	return negated ? node_join(p, NODE_NOT, i, 0) : i;
}

/* ------------------------------------------------------------------ parser */

static uint32_t either(struct parser *p);

static int value_read(struct parser *p, const struct field *f, struct token *t)
{
	char help[64];

	*t = token_read(p);
	if (t->kind == T_WORD || t->kind == T_QUOTED)
		return 1;
	if (t->kind == T_OPERATOR && t->op == OP_IN)
		return 1; /* a command may be called so: its text was noted */
	snprintf(help, sizeof help, "for example %s", f->example);
	fail_at(p, t, help, "a value is expected here");
	return 0;
}

static int field_known(const struct parser *p, const struct field *f)
{
	return p->names->observer || f->kind != FIELD_TEXT ||
	       (f->which != TEXT_CALLER && f->which != TEXT_ROOT && f->which != TEXT_CHAIN);
}

static uint32_t test(struct parser *p, const struct token *word)
{
	const char *s = p->x->text + word->text;
	const struct field *f = NULL;
	struct token sign, t;
	char help[300];
	uint32_t i;

	for (unsigned k = 0; k < FIELDS; k++)
		if (field_known(p, &fields[k]) && same(s, word->extent, fields[k].name))
			f = &fields[k];
	if (!f) {
		struct nearest near = nearest_begin(s, word->extent);
		const char *meant;

		if (digit(*s) || *s == '-' || *s == '+') {
			fail_at(p, word, "write wall > 1ms, not 1ms < wall",
				"a test begins with a field");
			return 0;
		}
		if (same(s, word->extent, "root") || same(s, word->extent, "chain")) {
			fail_at(p, word, "ask for label, holder or function",
				"chains are for the command debox: records do not have them");
			return 0;
		}
		if (same(s, word->extent, "caller")) {
			fail_at(p, word, "compare the record's call_site yourself",
				"'caller' is for the command debox: a program knows its own call sites");
			return 0;
		}
		for (unsigned k = 0; k < FIELDS; k++)
			if (field_known(p, &fields[k]))
				nearest_try(&near, fields[k].name);
		meant = did_you_mean(&near, help, sizeof help);
		fail(p, word->at, word->length,
		     meant ? meant :
			     "there are wall, cpu, blocked, runq, irq, call, label, function, errno, retval, "
			     "faults, minflt, majflt, sleeps, preemptions, waiters, pid, tid, comm, "
			     "holder, root, chain, caller",
		     "there is no field '%.*s'", (int)word->extent, s);
		return 0;
	}
	sign = token_peek(p);
	if (p->failed)
		return 0;
	if (sign.kind != T_OPERATOR) {
		if (f->kind == FIELD_NUMBER && f->which == NUMBER_ERRNO) {
			i = node_new(p, NODE_NUMBER);
			p->x->node[i].which = NUMBER_ERRNO;
			p->x->node[i].low = 1;
			p->x->node[i].high = ERRNO_MAX;
			p->x->node[i].at = word->at;
			p->x->node[i].extent = word->length;
			return i;
		}
		snprintf(help, sizeof help, "for example %s", f->example);
		fail(p, sign.at, sign.length, help, "say what to compare '%s' with", f->name);
		return 0;
	}
	token_read(p);
	if (sign.op != OP_EQ && sign.op != OP_NE && sign.op != OP_IN &&
	    (sign.op == OP_LIKE || sign.op == OP_NOT_LIKE) == (f->kind == FIELD_NUMBER)) {
		fail(p, sign.at, sign.length,
		     f->kind == FIELD_NUMBER ? "it takes ==, !=, <, <=, >, >= and in" :
					       "it takes ==, !=, =~, !~ and in",
		     "'%s' does not apply to '%s'", operator_text[sign.op], f->name);
		return 0;
	}
	if (sign.op != OP_IN)
		return value_read(p, f, &t) ? predicate(p, f, sign.op, &t, word->at) : 0;
	t = token_read(p);
	if (t.kind != T_BRACE_OPEN) {
		fail_at(p, &t, "for example call in {read, write}", "'in' takes a list in braces");
		return 0;
	}
	for (i = ~0u; !p->failed;) {
		uint32_t one;

		if (!value_read(p, f, &t))
			break;
		one = predicate(p, f, OP_IN, &t, t.at);
		i = i == ~0u ? one : node_join(p, NODE_OR, i, one);
		t = token_read(p);
		if (t.kind == T_BRACE_CLOSE)
			return i;
		if (t.kind != T_COMMA)
			fail_at(p, &t, NULL, "',' or '}' is expected here");
	}
	return 0;
}

static int deeper(struct parser *p, const struct token *t)
{
	if (++p->depth <= EXPRESSION_DEPTH_MAX)
		return 1;
	fail_at(p, t, NULL, "more than 64 parentheses and '!' inside each other");
	return 0;
}

static uint32_t unary(struct parser *p)
{
	struct token t = token_read(p), end;
	char help[64];
	uint32_t i;

	if (p->failed)
		return 0;
	switch (t.kind) {
	case T_NOT:
		if (!deeper(p, &t))
			return 0;
		i = unary(p);
		p->depth--;
		return node_join(p, NODE_NOT, i, 0);
	case T_OPEN:
		if (!deeper(p, &t))
			return 0;
		i = either(p);
		p->depth--;
		end = token_read(p);
		if (end.kind == T_CLOSE)
			return i;
		if (end.kind == T_END) {
			snprintf(help, sizeof help, "for the '(' in column %u", t.at + 1);
			fail_at(p, &end, help, "a ')' is missing");
		} else {
			fail_at(p, &end, NULL, "'&&' or '||' is expected here");
		}
		return 0;
	case T_WORD:
		return test(p, &t);
	case T_QUOTED:
		fail_at(p, &t, "write wall > 1ms, not 1ms < wall", "a test begins with a field");
		return 0;
	default:
		fail_at(p, &t, "a test is, for example, wall > 1ms", "a test is expected here");
		return 0;
	}
}

static uint32_t both(struct parser *p)
{
	uint32_t i = unary(p);

	while (!p->failed && token_peek(p).kind == T_AND) {
		token_read(p);
		i = node_join(p, NODE_AND, i, unary(p));
	}
	return i;
}

static uint32_t either(struct parser *p)
{
	uint32_t i = both(p);

	while (!p->failed && token_peek(p).kind == T_OR) {
		token_read(p);
		i = node_join(p, NODE_OR, i, both(p));
	}
	return i;
}

struct expression *debox_expression_parse_(const char *text, size_t length,
					   const struct expression_names *names,
					   struct debox_watch_error *error)
{
	struct parser p = { .error = error, .names = names };
	uint64_t bytes;
	struct token t;
	long memory;

	error->column = 0;
	error->length = 0;
	error->text[0] = error->help[0] = 0;
	if (length > EXPRESSION_MAX) {
		fail(&p, EXPRESSION_MAX, 0, NULL, "the expression is longer than %u bytes",
		     EXPRESSION_MAX);
		return NULL;
	}
	bytes = sizeof(struct expression) + (length + 2) * sizeof(struct node) + length + 1;
	memory = sys_call(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (sys_failed(memory)) {
		snprintf(error->text, sizeof error->text, "no memory");
		return NULL;
	}
	p.x = (struct expression *)(uintptr_t)memory;
	p.x->bytes = bytes;
	p.x->capacity = (uint32_t)length + 2;
	p.x->length = (uint32_t)length;
	p.x->text = (const char *)&p.x->node[p.x->capacity];
	memcpy(&p.x->node[p.x->capacity], text, length); /* the mapping's zero ends it */
	if (token_peek(&p).kind == T_END && !p.failed)
		fail(&p, 0, 0, "a test is, for example, wall > 1ms", "the expression is empty");
	p.x->root = p.failed ? 0 : either(&p);
	if (!p.failed) {
		t = token_read(&p);
		if (t.kind == T_CLOSE)
			fail_at(&p, &t, NULL, "this ')' closes nothing");
		else if (t.kind != T_END)
			fail_at(&p, &t, NULL, "'&&' or '||' is expected here");
	}
	if (!p.failed)
		return p.x;
	debox_expression_free_(p.x);
	return NULL;
}

void debox_expression_free_(struct expression *x)
{
	sys_call(SYS_munmap, x, x->bytes);
}

/* ----------------------------------------------------------------- judging */

static enum answer answer_not(enum answer a)
{
	return a == ANSWER_UNKNOWN ? a : a == ANSWER_YES ? ANSWER_NO :
							   ANSWER_YES;
}

static enum answer number_judge(const struct node *n, const struct facts *call)
{
	uint32_t needs = 1u << n->which;
	int64_t value;

	if (n->which == NUMBER_FAULTS)
		needs = 1u << NUMBER_MINFLT | 1u << NUMBER_MAJFLT;
	else if (n->which == NUMBER_ERRNO)
		needs = 1u << NUMBER_RETVAL;
	if ((call->known & needs) != needs)
		return ANSWER_UNKNOWN;
	if (n->which == NUMBER_FAULTS) {
		if (__builtin_add_overflow(call->number[NUMBER_MINFLT], call->number[NUMBER_MAJFLT],
					   &value))
			value = INT64_MAX;
	} else if (n->which == NUMBER_ERRNO) {
		value = call->number[NUMBER_RETVAL];
		value = value < 0 && value >= -ERRNO_MAX ? -value : 0;
	} else {
		value = call->number[n->which];
	}
	return value >= n->low && value <= n->high ? ANSWER_YES : ANSWER_NO;
}

static int text_fits(const struct expression *x, const struct node *n, const char *name)
{
	const char *pattern = x->text + n->text;
	const char *dot;

	if (n->glob ? debox_glob_fits_(pattern, n->length, name) : same(pattern, n->length, name))
		return 1;
	/* Compilers add suffixes such as .isra.0 to the names of functions. */
	if (n->which != TEXT_FUNCTION || !(dot = strchr(name, '.')))
		return 0;
	if (n->glob) {
		char plain[DEBOX_FUNCTION_LEN];
		size_t length = (size_t)(dot - name);

		if (length >= sizeof plain)
			return 0;
		memcpy(plain, name, length);
		plain[length] = 0;
		return debox_glob_fits_(pattern, n->length, plain);
	}
	return (size_t)(dot - name) == n->length && !memcmp(pattern, name, n->length);
}

/* One of the lines. */
static int line_fits(const struct expression *x, const struct node *n, const char *lines)
{
	char line[DEBOX_FUNCTION_LEN];

	for (;;) {
		size_t length = strcspn(lines, "\n");

		if (length < sizeof line) {
			memcpy(line, lines, length);
			line[length] = 0;
			if (text_fits(x, n, line))
				return 1;
		}
		if (!lines[length])
			return 0;
		lines += length + 1;
	}
}

static enum answer text_judge(const struct expression *x, const struct node *n,
			      const struct facts *call)
{
	enum answer answer = ANSWER_NO;

	if (n->which >= TEXT_COMM) {
		const char *name = n->which == TEXT_COMM ? call->comm : call->caller;

		if (!name)
			return ANSWER_UNKNOWN;
		return text_fits(x, n, name) ? ANSWER_YES : ANSWER_NO;
	}
	for (uint32_t i = 0; i < call->sites; i++) {
		const char *name = n->which == TEXT_LABEL    ? call->site[i].label :
				   n->which == TEXT_FUNCTION ? call->site[i].function :
				   n->which == TEXT_HOLDER   ? call->site[i].holder :
				   n->which == TEXT_ROOT     ? call->site[i].root :
							       call->site[i].chain;

		if (!name)
			answer = ANSWER_UNKNOWN;
		else if (line_fits(x, n, name))
			return ANSWER_YES;
	}
	return call->sites_whole ? answer : ANSWER_UNKNOWN;
}

static enum answer judge(const struct expression *x, uint32_t i, const struct facts *call)
{
	const struct node *n = &x->node[i];
	enum answer decisive, left, right;

	switch (n->kind) {
	case NODE_AND:
	case NODE_OR:
		decisive = n->kind == NODE_AND ? ANSWER_NO : ANSWER_YES;
		left = judge(x, n->left, call);
		if (left == decisive)
			return left;
		right = judge(x, n->right, call);
		if (right == decisive)
			return right;
		return left == ANSWER_UNKNOWN ? left : right;
	case NODE_NOT:
		return answer_not(judge(x, n->left, call));
	case NODE_NUMBER:
		return number_judge(n, call);
	case NODE_CALL:
		if (call->nr < 0)
			return ANSWER_UNKNOWN;
		return call->nr < (int)DEBOX_NR_SLOTS && (n->calls[call->nr / 64] >> (call->nr % 64) & 1) ?
			       ANSWER_YES :
			       ANSWER_NO;
	default:
		return text_judge(x, n, call);
	}
}

enum answer debox_expression_judge_(const struct expression *x, const struct facts *call)
{
	return judge(x, x->root, call);
}

/* ------------------------------------------------------- what follows from it */

static uint64_t wall_ns(const struct expression *x, uint32_t i)
{
	const struct node *n = &x->node[i];
	uint64_t left, right;

	switch (n->kind) {
	case NODE_AND:
	case NODE_OR:
		left = wall_ns(x, n->left);
		right = wall_ns(x, n->right);
		return (left > right) == (n->kind == NODE_AND) ? left : right;
	case NODE_NUMBER:
		/* Each part of a call's time is no longer than the whole. */
		return is_time(n->which) && n->low > 0 ? (uint64_t)n->low : 0;
	default:
		return 0;
	}
}

uint64_t debox_expression_wall_ns_(const struct expression *x)
{
	return wall_ns(x, x->root);
}

static int eventful(const struct expression *x, uint32_t i)
{
	const struct node *n = &x->node[i];

	switch (n->kind) {
	case NODE_AND:
		return eventful(x, n->left) || eventful(x, n->right);
	case NODE_OR:
		return eventful(x, n->left) && eventful(x, n->right);
	case NODE_NUMBER:
		switch (n->which) {
		case NUMBER_BLOCKED:
		case NUMBER_RUNQ:
		case NUMBER_IRQ:
		case NUMBER_SLEEPS:
		case NUMBER_PREEMPTIONS:
		case NUMBER_WAITERS:
		case NUMBER_MINFLT:
		case NUMBER_MAJFLT:
		case NUMBER_FAULTS:
			return n->low > 0;
		default:
			return 0;
		}
	case NODE_TEXT:
		return n->which <= TEXT_CHAIN;
	default:
		return 0;
	}
}

int debox_expression_eventful_(const struct expression *x)
{
	return eventful(x, x->root);
}

int debox_expression_asks_comm_(const struct expression *x)
{
	for (uint32_t i = 0; i < x->nodes; i++)
		if (x->node[i].kind == NODE_TEXT && x->node[i].which == TEXT_COMM)
			return 1;
	return 0;
}

int debox_expression_asks_sites_(const struct expression *x)
{
	for (uint32_t i = 0; i < x->nodes; i++)
		if (x->node[i].kind == NODE_TEXT && x->node[i].which <= TEXT_CHAIN)
			return 1;
	return 0;
}
