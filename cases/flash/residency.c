/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Is this piece of the file in memory, so that sending it does not wait for the disk? */
#include "flash.h"

#define PAGE 4096
#define SYS_CACHESTAT 451 /* Linux 6.5; glibc's headers may be older */

static uint64_t loaded_bytes; /* of the heuristic: by all files. The amped model only, so no lock. */

/* One call, no side effect, but pages that are still being read count as cached. */
static bool by_cachestat(int fd, off_t at, size_t bytes)
{
	uint64_t range[2] = { at, bytes }, counts[5] = { 0 }; /* struct cachestat_range, struct cachestat: cached pages first */
	return !syscall(SYS_CACHESTAT, fd, range, counts, 0) && counts[0] >= (at + bytes - 1) / PAGE - at / PAGE + 1;
}

void residency_check(void)
{
	if ((options.residency == RESIDENCY_CACHESTAT || options.residency == RESIDENCY_BOTH) && !by_cachestat(-1, 0, 1) && errno == ENOSYS)
		die("this kernel has no cachestat(2) (Linux 6.5 and newer have): choose --residency mincore");
}

/*
 * The heuristic is the paper's: what was sent lately is believed to be resident,
 * until as many bytes were brought in since as memory is trusted to hold.
 */
void residency_sent(struct file *f, off_t at, size_t bytes)
{
	if (at <= f->believed_to && at + (off_t)bytes > f->believed_to) {
		loaded_bytes += at + bytes - f->believed_to;
		f->believed_to = at + bytes;
	}
	f->loaded_at = loaded_bytes;
}

/* False also for a page that is being read. Needs the file mapped, and walks the mapping under mmap_lock. */
static bool by_mincore(const struct file *f, off_t at, size_t bytes)
{
	unsigned char pages[PIECE_BYTES / PAGE + 1];
	bytes += at % PAGE;
	if (mincore(f->map + at / PAGE * PAGE, bytes, pages))
		return false;
	for (size_t i = 0; i <= (bytes - 1) / PAGE; i++)
		if (!(pages[i] & 1))
			return false;
	return true;
}

/*
 * Reads a byte of each page if that does not wait: true only when the data are
 * there. For a page that is missing the kernel starts read-ahead in the caller's
 * time, which can itself wait for metadata. A file system without RWF_NOWAIT
 * (EOPNOTSUPP) leaves each piece to a helper.
 */
static bool by_nowait(const struct file *f, off_t at, size_t bytes)
{
	for (off_t page = at; page < at + (off_t)bytes; page = page / PAGE * PAGE + PAGE)
		if (preadv2(f->fd, &(struct iovec){ &(char){ 0 }, 1 }, 1, page, RWF_NOWAIT) != 1)
			return false;
	return true;
}

bool resident(struct file *f, off_t at, size_t bytes)
{
	bool there = true, believes = options.residency == RESIDENCY_HEURISTIC;
	if (options.residency == RESIDENCY_NONE)
		return true;
	if (believes && loaded_bytes - f->loaded_at > (uint64_t)options.believed_mb << 20)
		f->believed_to = 0;
	if (believes)
		there = at + (off_t)bytes <= f->believed_to;
	else if (options.residency == RESIDENCY_MINCORE)
		there = by_mincore(f, at, bytes);
	/* Both: cachestat keeps nowait from what is missing, so no read starts here; nowait tells what is still being read. */
	if (options.residency == RESIDENCY_CACHESTAT || options.residency == RESIDENCY_BOTH)
		there = by_cachestat(f->fd, at, bytes);
	if (options.residency == RESIDENCY_NOWAIT || options.residency == RESIDENCY_BOTH)
		there = there && by_nowait(f, at, bytes);
	COUNT(not_resident, !there);
	COUNT(believed_resident, there && believes);
	COUNT(resident, there && !believes);
	return there;
}
