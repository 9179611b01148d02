/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What do a trampoline, the runtime behind it and whoever watches share?
 *
 * A thread's *block*: the base of GS points to it, so that a trampoline reaches it with
 * one instruction, before the loader has set up anything and in programs without a C
 * library. Blocks lie in *areas*: one for each program that was started (execve), shared with
 * whoever watches, so that what was counted is there however the program ended. The
 * offsets are part of every patched page: crates/splice/src/state.rs has them again, and
 * its test holds them against these.
 */
#ifndef DEBOX_SPLICE_STATE_H
#define DEBOX_SPLICE_STATE_H

#include <stddef.h>
#include <stdint.h>

/* Goes up with each change of this, of trampolines, of images, or of which calls are found and where: what was made
 * for another one has another name. */
#define SPLICE_VERSION 36u
#define SPLICE_PAGE 4096u
#define SPLICE_NRS 512u     /* the last one: all numbers beyond */
#define SPLICE_BUCKETS 290u /* as DEBOX_HIST_BUCKETS */
#define SPLICE_NEST 8u
#define SPLICE_BLOCKS 32u /* that are mapped together: a chunk of an area */
#define SPLICE_CHUNKS 32u /* of an area; the first one is mapped as a program begins, others as it has threads */

/*
 * Calls that most programs make, in the order of their rows; behind them come those of all others. A row is larger than a
 * quarter of a page, and a program that begins and ends makes some twenty of these: by number each would lie in a page of
 * its own. Numbers of x86-64.
 */
#define SPLICE_OFTEN                                                                                                \
	0, 3, 9, 10, 11, 12, 17, 21, 59, 257, 262, 158, 218, 273, 334, 302, 318, 231, 157, 5, 1, 13, 14,            \
		56, 61, 16, 8, 72, 39, 110, 102, 104, 107, 108, 186, 202, 58, 435, 60, 22, 293, 32, 33, 7, 271, 20, \
		4, 6, 89, 267, 79, 217, 332, 228, 35, 230, 44, 45, 46, 47, 232, 281, 28, 24, 63

struct splice_row {
	uint64_t count;
	uint64_t wall_ns;
	uint64_t max_ns;
	uint64_t errors;
	uint32_t hist[SPLICE_BUCKETS]; /* wraps; whoever watches adds up the differences */
	uint64_t missing;              /* of the errors, ENOENT */
	uint64_t ones;                 /* that returned 1 */
	uint64_t reserved;
};

enum splice_timed {
	SPLICE_UNTIMED, /* not stamped yet */
	SPLICE_TIMED,   /* between its two stamps */
	SPLICE_ENDED,   /* ... and is being counted, and perhaps shown */
	/* It gets none (struct splice_sample): `start` is no time, and yet no other call's. */
	SPLICE_UNSTAMPED,
};

/*
 * Where whoever watches asked for it (splice_run.sample), calls that take little are stamped one in so many: the
 * two stamps would be most of what counting them costs. Of the others it is known that there were so many, and
 * they are taken to have lasted as long as the stamped ones; how long they slept the kernel side tells.
 */
struct splice_sample {
	uint64_t unstamped;    /* of the row's count, */
	uint64_t estimated_ns; /* which lasted so long, by estimate */
	uint32_t skip;         /* so many are yet to come, until the next stamped one */
	uint32_t reserved;
	/* By whoever watches. 0: all are stamped; else between two of them are 0 to span - 1 others, by chance, so that
	 * calls that come in turns are all met. */
	uint32_t span;
	uint32_t estimate_ns;
};

struct splice_open {
	uint64_t rsp; /* bit 0: it interrupted another one */
	uint64_t start;
	uint32_t nr;
	uint32_t timed; /* enum splice_timed */
};

/* A call that has just ended, for the kernel side to look at: see splice_door() of runtime.c. */
struct splice_done {
	uint64_t start; /* as of splice_open; 0: there is none */
	uint64_t wall_ns;
	int64_t result;
	uint64_t args[6];
	uint64_t ip, sp, bp; /* of the program, behind the call */
};

struct splice_caller {
	uint32_t pc; /* offset in the file; they are in order */
	uint16_t cfa_words;
	int8_t rbp_words;
	uint8_t kind;
};

/* Code that a call came through. */
struct splice_frame {
	uint64_t ip;
	uint64_t place; /* file and offset, as in a key; 0: of no file */
	struct splice_caller rule;
};
#define SPLICE_FRAMES 16u

enum splice_block_state {
	SPLICE_FREE,
	SPLICE_TAKEN,
	/* Of a thread for which there was no memory: others have it, too. */
	SPLICE_SHARED,
};

struct splice_block {
	/* Up to pid as the kernel side reads it: struct splice_told of bpf/state.h. */
	struct splice_open open; /* rsp 0: no call is open */
	uint32_t calls, failed;  /* of this thread; they wrap */
	uint64_t called_ns;      /* how long calls took, those of handlers within others left out */
	uint32_t tid, pid;
	/* Where the runtime lies in this process. */
	uint64_t enter, exit, before, after;
	uint64_t reserved_word;
	uint64_t self;
	uint32_t state; /* atomic: enum splice_block_state */
	uint32_t depth;
	uint64_t untimed;   /* calls whose begin was not known any more */
	uint64_t abandoned; /* calls that a handler jumped out of */
	struct splice_area *area;
	uint64_t asked; /* execve: the request that is under way, +1 */
	uint64_t find;
	uint64_t unfollowed; /* of the execve that is under way: 1, if nobody came along */
	struct splice_open nest[SPLICE_NEST];
	uint64_t door;
	uint64_t last_ns; /* how long the last call took that interrupted none; it is still in `open` */
	struct splice_done done;
	struct splice_block *next; /* of those that lie beside the area */
	uint32_t chunk;            /* SPLICE_CHUNKS: it lies beside it */
	uint32_t inner_nr;
	uint64_t rate; /* ns of a tick, 32 bits after the point */
	int64_t last_result;
	/* The last one that did: a handler's. */
	uint64_t inner_start, inner_ns;
	int64_t inner_result;
	uint8_t special[SPLICE_NRS]; /* 1: before() and after() are asked */
	uint16_t doors[SPLICE_NRS];  /* see splice_run */
	/* Where calls come from, see call_site.h. */
	struct splice_places *places; /* NULL: nobody asks */
	struct splice_own *own;
	/* Of a stack: [stack, stack + stack_most + SPLICE_DEEP - 1) may be written, if stack_most is not 0. */
	uint64_t stack, stack_most;
	uint64_t read, read_end; /* other memory that may be read */
	uint64_t kept[6];
	uint32_t unmaps;    /* as of own, when this was true */
	uint32_t frames_as; /* the same of `frame` */
	uint8_t module[2];  /* what was found last, of the innermost frame and of others */
	uint8_t reserved_bytes[6];
	struct splice_frame frame[SPLICE_FRAMES]; /* by address: of those that calls came through last */
	uint16_t row[SPLICE_NRS];                 /* where in `rows` the one of a number is */
	uint8_t reserved_page[SPLICE_PAGE - 512 - 5 * SPLICE_NRS - 112 - SPLICE_FRAMES * 24];
	struct splice_row rows[SPLICE_NRS];
	struct splice_sample sample[SPLICE_NRS]; /* touched only where it was asked for */
};
/* last_ns of a call that was not stamped. */
#define SPLICE_NO_TIME 0xffffffffffffffffull

/* A file whose code was replaced, in one of the processes that share the area. */
struct splice_replaced {
	uint64_t inode, device; /* inode: atomic; 0: there is none */
};
#define SPLICE_REPLACED 128u

/* Whether a program does what splicing cannot go with: then nothing more is spliced. */
enum splice_off {
	SPLICE_ON,
	SPLICE_OFF,
	SPLICE_OFF_TOLD, /* ... and the kernel side tells of its calls */
	SPLICE_OFF_LEFT, /* whoever attached to it has gone */
};

/* The first page of an area. */
struct splice_area {
	uint32_t version;
	uint32_t forks;          /* processes that it has made, or has tried to: they may have this mapped as well */
	uint32_t blocks_lost;    /* threads that found no block */
	uint32_t late_code;      /* executable memory that came from no file */
	uint32_t left;           /* files whose code could not be replaced */
	uint32_t off;            /* enum splice_off: of one of the processes that have this mapped; OFF_LEFT: of all */
	uint32_t quiet;          /* 1: it restricts its system calls; the runtime makes none */
	uint32_t by_instruction; /* 1: wrgsbase is there */
	uint32_t unfollowed;     /* programs that nobody came along with */
	uint64_t run;            /* struct splice_run, as mapped in this program */
	struct splice_own *own;
	char path[64]; /* the run's file */
	uint32_t number;
	uint32_t reads; /* 1: it asks what its calls took (libdebox): all of them are stamped */
	struct splice_replaced replaced[SPLICE_REPLACED];
	uint64_t left_device, left_inode; /* the file whose code was left last: parts of it may be mapped often */
	/* atomic: blocks that somebody has, so that nobody maps a chunk to find it full */
	uint16_t taken[SPLICE_CHUNKS];
	uint32_t alone; /* `forks` + 1, as of when nobody else had the run's file */
};

struct splice_segment {
	uint64_t address; /* of its first whole page */
	uint64_t bytes;   /* whole pages */
	uint64_t offset;
};

enum splice_mapped_state {
	SPLICE_NOTHING,
	SPLICE_COMES, /* somebody writes it */
	SPLICE_THERE,
};

/* What a process has mapped over its code. */
struct splice_mapped {
	uint64_t bias;
	uint64_t device, inode;
	uint64_t pool, pool_end; /* struct splice_image is its last page */
	uint64_t frames;         /* how to unwind from there: as PT_GNU_EH_FRAME */
	uint64_t code, code_end; /* between them lies what was replaced, before it was moved */
	uint32_t state;          /* atomic: enum splice_mapped_state */
	uint32_t reserved;
};
#define SPLICE_IMAGES 128u

/* A thread that is making a child, and which signals it had blocked. */
struct splice_forking {
	uint32_t tid;    /* atomic; 0: nobody */
	uint32_t shares; /* 1: with its child, which is to leave this as it is */
	uint64_t mask;
	const struct splice_block *block; /* its own, by which the child knows it: what is in that may be another one's by then */
};
#define SPLICE_FORKING 32u

#define SPLICE_MODULES 256u

/* Code of a file that it has mapped. */
struct splice_module {
	uint64_t start, bytes; /* bytes 0: no more */
	uint64_t first;        /* byte of the file */
	const struct splice_callers *callers;
	uint32_t file;  /* its number in the area; 0: there was no room */
	uint32_t taken; /* atomic */
};

/* A process's own, and a copy in those that it forks, which share its area: what it has mapped itself. */
struct splice_own {
	struct splice_block *chunk[SPLICE_CHUNKS - 1]; /* atomic: from the second one on; NULL: not yet */
	/* atomic: blocks for threads that found none in the area. Nobody reads what they count. */
	struct splice_block *beside;
	uint64_t run_fd;              /* while it is attached to: the run's file, + 1 */
	struct splice_places *places; /* NULL: nobody asks where calls come from */
	uint32_t unmaps;              /* atomic: calls that may have taken memory away */
	uint32_t cutting;             /* atomic: the process of whom a thread is just about to cut() */
	uint32_t going;               /* ... to go_on_without() */
	uint32_t off;                 /* enum splice_off, of this very process */
	uint64_t code_from, code_to;  /* where there is code that came from no file */
	struct splice_module module[SPLICE_MODULES];
	struct splice_mapped image[SPLICE_IMAGES];
	struct splice_forking forking[SPLICE_FORKING];
	uint16_t row[SPLICE_NRS]; /* as of its blocks */
};
#define SPLICE_OWN_BYTES 24576u

/* --------------------------------------------------------- where calls come from */

#define SPLICE_FILES 254u
#define SPLICE_FILE_NONE 255u /* code that is of no file: at its address */
#define SPLICE_PLACES 1024u
#define SPLICE_PLACE_OFFSET_BITS 47u
#define SPLICE_PLACE_FILE_SHIFT 56u

/* Calls of one number from one place. */
struct splice_place {
	uint64_t key; /* atomic: file (from 1 on) << 56 | number << 47 | offset in the file; 0: nobody's */
	uint64_t count, errors, wall_ns, max_ns;
};

/* Of an area, behind its blocks. */
struct splice_places {
	uint64_t lost; /* calls that found no room */
	struct splice_file {
		uint64_t inode, device; /* inode 0: there is none */
	} file[SPLICE_FILES];
	uint64_t reserved[3];
	struct splice_place place[SPLICE_PLACES];
};

#define SPLICE_CALLERS_MAGIC 0x4c4c414358424544ull /* "DEBXCALL" */
#define SPLICE_CALLERS_SEGMENTS 4u

/*
 * How to come from a call of a file to who wants it: debox-unwind's rows of the C library and of a language's
 * runtime, and of calls elsewhere; what lies between these is of the program itself. Beside the file's image.
 */
struct splice_callers {
	uint64_t magic;
	uint32_t version;
	uint32_t segments;
	uint64_t rows;
	struct splice_segment segment[SPLICE_CALLERS_SEGMENTS]; /* its code */
	struct splice_caller row[];
};

/* ------------------------------------------------------------ asking the watcher */

enum splice_request_state {
	SPLICE_NONE,
	SPLICE_CLAIMED,
	SPLICE_ASKED,
	SPLICE_ANSWERED,
	SPLICE_LEFT, /* who asked waits no more: nobody's until the watcher has done with it */
};

enum splice_request_kind {
	SPLICE_EXEC = 1, /* an execve is next: come along; `fd`: bits of when it began, from SPLICE_BEGAN_SHIFT on */
	SPLICE_IMAGE,    /* there is no image of this file yet */
	SPLICE_UNDO,     /* put its own code back; for the rest as CUT; `fd`: what an image tells that wants it, or 0 */
	SPLICE_LET_GO,   /* the execve failed; `fd`: its request */
	SPLICE_CUT,      /* it gives up rights; `fd`: 1, if it can go on in a file of its own, as a question about that alone */
	SPLICE_ABOVE,    /* as IMAGE, whose pool lies above it */
	SPLICE_SENT,     /* what enum splice_behind says is sent through `socket`: who asks may not open it */
};

struct splice_request {
	uint32_t state; /* atomic, waited for: enum splice_request_state */
	uint32_t kind;
	uint32_t tid;
	uint32_t fd;
	int32_t answer;  /* 0, or what is said below, or -errno */
	uint32_t socket; /* SENT, CUT with 1: one of a pair; from SPLICE_BEHIND_SHIFT on enum splice_behind */
	uint64_t at;     /* where whoever asks has this file mapped */
	/* What lies at `word_at` in memory that only its process has: of who has this number in another PID namespace it
	 * does not. */
	uint64_t word_at, word;
};

/* What of a file there is, by what its name ends in. */
enum splice_behind {
	SPLICE_BEHIND_NONE,
	SPLICE_BEHIND_ABOVE,
	SPLICE_BEHIND_CALLERS,
	SPLICE_BEHIND_RUN, /* of no file: the run's own */
};
#define SPLICE_BEHIND_SHIFT 30u

#define SPLICE_REQUESTS 48u
/* 32 bits from there on are more than half a minute, and nobody waits that long for an answer. */
#define SPLICE_BEGAN_SHIFT 5u
/* To UNDO and CUT: the kernel side tells of its calls, of the asking thread's own from when it renames itself. */
#define SPLICE_TOLD 1
/* To CUT with 1: nobody else has the file of the run, */
#define SPLICE_ALONE 2
/* or another one is sent through `socket`, in which the first area is for who asks. */
#define SPLICE_MOVES 3

/* One for all programs of a run, at the begin of its file. */
struct splice_run {
	uint32_t version;
	uint32_t watcher;    /* its pid; 0: it is gone */
	uint32_t bell;       /* atomic: goes up with each request; the watcher waits for it */
	uint32_t privileged; /* 1: the watcher may follow set-user-id programs */
	uint32_t looked_at;  /* 1: the kernel side reads blocks */
	uint32_t only;       /* not 0: of this process alone it is told; a block is its or of others */
	uint64_t rate;
	char images[256]; /* folder of the images */
	struct splice_request request[SPLICE_REQUESTS];
	/* From which bucket of the histogram on (+ SPLICE_DOOR_FIRST) the kernel side looks at the
	 * end of a call, before the program goes on; of each number. Whoever watches changes those
	 * of blocks as well. */
	uint16_t doors[SPLICE_NRS];
	uint32_t places; /* 1: it is to be told where calls come from */
	uint32_t user;   /* whose the folder of the images is */
	uint32_t sample; /* 1: images are those that ask struct splice_sample */
	uint32_t reserved;
};
#define SPLICE_DOOR_FIRST 15u
#define SPLICE_DOOR_NONE 0xffffu
/* As always; and the call may have taken memory away. */
#define SPLICE_DOOR_UNMAPS 0u

#define SPLICE_RUN_BYTES 4096u
#define SPLICE_CHUNK_BYTES ((uint64_t)SPLICE_BLOCKS * sizeof(struct splice_block))
#define SPLICE_FIRST_BYTES (SPLICE_PAGE + SPLICE_CHUNK_BYTES)                   /* of an area, as a program begins */
#define SPLICE_PLACES_OFFSET (SPLICE_PAGE + SPLICE_CHUNKS * SPLICE_CHUNK_BYTES) /* in an area */
#define SPLICE_PLACES_BYTES ((uint64_t)sizeof(struct splice_places))
#define SPLICE_AREA_BYTES (SPLICE_PLACES_OFFSET + SPLICE_PLACES_BYTES)

/* ------------------------------------------------------------------------- image */

#define SPLICE_SEGMENTS 4u
#define SPLICE_IMAGE_MAGIC 0x47414d4958424544ull /* "DEBXIMAG" */

/* The last page of a patched copy of a file. The file's own bytes come first, at the places
 * where they are in the file; then the pool. Addresses are those of the file; the pool's
 * may lie before its first. crates/unwind/src/spliced.rs reads it, too. */
struct splice_image {
	uint64_t magic;
	uint32_t version;
	uint32_t segments;
	uint64_t pool;        /* address, wrapping */
	uint64_t pool_bytes;  /* with this page */
	uint64_t pool_offset; /* in the image */
	uint32_t sites, left; /* left: SPLICE_KNOWS_ITS_CALLS, SPLICE_SETS_GS, or how many */
	uint64_t frames;      /* address, as of the pool */
	struct splice_segment segment[SPLICE_SEGMENTS];
};
/* A C library that cancels threads by where they were interrupted. */
#define SPLICE_KNOWS_ITS_CALLS 0xffffffffu
/* Code that sets the GS register by an instruction. */
#define SPLICE_SETS_GS 0xfffffffeu
/* Of no image: there is none for a file that has code, and it may be the C library. */
#define SPLICE_NO_IMAGE 0xfffffffdu
#define SPLICE_IMAGE_PATH 512u /* in that page: the file's, ends with 0 */

/* Where in the runtime the code lies that maps it, */
#define SPLICE_MAP 64u
#define SPLICE_MAP_BYTES 112u
/* that which splices a process that runs, */
#define SPLICE_ATTACH 192u
/* and that which makes one call. Behind it lies where its thread would be without: user_regs_struct, to ss. */
#define SPLICE_CALL 256u
#define SPLICE_CALL_BYTES 40u

/* What the runtime is told as a program begins; lies on its stack. */
struct splice_begin {
	uint64_t rip, rsp; /* where the program would have begun */
	uint32_t area;     /* which one */
	uint32_t images;
	uint32_t by_instruction; /* 1: wrgsbase is there */
	int32_t runtime_fd;
	/* Descriptors, + 1, where it may not open these files by their names; 0: it may. What of `close` is not 0 nobody
	 * needs any more. */
	int32_t run_fd, image_fd[2], close[2], reserved;
	char run[64]; /* file of the run */
	struct splice_begin_image {
		uint64_t bias;
		uint64_t device, inode;
		char path[232];
	} image[2];
};

/* What it is told in a process that runs, all of whose threads stand still; lies in memory of its own,
 * with what it points to. */
struct splice_attach {
	int32_t run_fd, result; /* result: 0, or -errno; set by the runtime */
	uint32_t area;          /* which one */
	uint32_t by_instruction;
	uint32_t threads, codes;
	char run[64]; /* file of the run, for what comes later; it may not be allowed to open it */
	uint64_t thread, code;
	int32_t close[4]; /* what the watcher has opened in it; -1: nothing */
	uint32_t step;    /* enum splice_step, atomic */
	uint32_t reserved;
};

/* How far it is. Whoever watches does its part at BLOCKS and at REPLACED, while this thread stands still. */
enum splice_step {
	SPLICE_STEP_BEGUN,
	SPLICE_STEP_BLOCKS,   /* each thread has one, and trampolines are there */
	SPLICE_STEP_BASES,    /* blocks are bases of GS, threads will go on in trampolines: by the watcher */
	SPLICE_STEP_REPLACED, /* all code is */
	SPLICE_STEP_ALONE,    /* the watcher did not come: it goes on as it would */
};

struct splice_attach_thread {
	uint32_t tid, pid; /* as it knows itself */
	uint32_t nr;
	uint32_t reserved;
	uint64_t rsp;   /* of the call that it is in, whose trampoline it goes on in; 0: there is none */
	uint64_t block; /* set by the runtime */
};

/* Code of a file that is mapped. */
struct splice_attach_code {
	uint64_t address, bytes, offset;
	uint64_t device, inode;
	int32_t image_fd;
	uint16_t pool_is_there; /* 1: since it was attached to before */
	uint16_t replaced;      /* 1: there is a pool now; set by the runtime */
};

_Static_assert(offsetof(struct splice_block, called_ns) == 32, "as bpf/state.h says");
_Static_assert(offsetof(struct splice_block, tid) == 40, "as bpf/state.h says");
_Static_assert(offsetof(struct splice_block, enter) == 48, "as bpf/state.h says");
_Static_assert(sizeof(struct splice_row) == 1216, "row");
_Static_assert(sizeof(struct splice_sample) == 32, "sample");
_Static_assert(offsetof(struct splice_block, done) == 360, "as bpf/state.h says");
_Static_assert(offsetof(struct splice_block, special) == 512, "special");
_Static_assert(offsetof(struct splice_block, places) == 2048, "as call_site.h says");
_Static_assert(sizeof(struct splice_own) <= SPLICE_OWN_BYTES, "own");
_Static_assert(sizeof(struct splice_places) % SPLICE_PAGE == 0, "places");
_Static_assert(offsetof(struct splice_block, rows) == SPLICE_PAGE, "rows");
_Static_assert(sizeof(struct splice_block) % SPLICE_PAGE == 0, "block");
_Static_assert(sizeof(struct splice_area) <= SPLICE_PAGE, "area");
_Static_assert(sizeof(struct splice_run) <= SPLICE_RUN_BYTES, "run");

#endif
