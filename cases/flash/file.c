/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which files are open (and mapped, where the design maps), and for how long?
 * One cache for all threads.
 */
#include "flash.h"

#define BUCKETS 65536
#define VALID_S 60 /* then a name is looked up anew: its file may be another */

static LIST_HEAD(, file) buckets[BUCKETS];
static TAILQ_HEAD(, file) idle = TAILQ_HEAD_INITIALIZER(idle);
static unsigned open_files;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/*
 * RESOLVE_BENEATH: no link leads out of the root. With RESOLVE_CACHED goes
 * O_NONBLOCK: a FIFO or a file's lease would block all the same.
 */
int open_beneath(const char *name, uint64_t resolve)
{
	struct open_how how = { .flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | (resolve ? O_NONBLOCK : 0), .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS | resolve };
	struct stat status;
	if (!resolve && fstatat(options.root_fd, name, &status, 0))
		return -errno;
	if (!resolve && !S_ISREG(status.st_mode))
		return -ENOENT;
	int fd = syscall(SYS_openat2, options.root_fd, name, &how, sizeof how);
	return fd < 0 ? -errno : fd;
}

/* One writev(): lines of several processes do not mix. */
int append_line(const char *text, size_t bytes)
{
	struct iovec line[2] = { { (void *)text, bytes }, { "\n", 1 } };
	int fd = openat(options.root_fd, "post.log", O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	ssize_t n = fd < 0 ? -1 : writev(fd, line, 2);
	int error = n < 0 ? errno : (n == (ssize_t)bytes + 1 ? 0 : ENOSPC);
	close(fd);
	return -error;
}

static unsigned bucket_of(const char *name)
{
	uint32_t hash = 2166136261u; /* FNV-1a */
	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * 16777619u;
	return (hash ^ hash >> 16) % BUCKETS;
}

static void forget(struct file *f)
{
	LIST_REMOVE(f, bucket);
	TAILQ_REMOVE(&idle, f, idle);
	if (f->map)
		munmap(f->map, f->size);
	close(f->fd);
	COUNT(files_mapped, f->map ? -1 : 0);
	COUNT(files_open, -1);
	open_files--;
	free(f);
}

struct file *file_find(const char *name)
{
	struct file *f;
	pthread_mutex_lock(&lock);
	LIST_FOREACH(f, &buckets[bucket_of(name)], bucket)
	if (!strcmp(f->name, name))
		break;
	if (f && !f->refs && time(NULL) - f->opened_s > VALID_S) {
		forget(f);
		f = NULL;
	}
	if (f && !f->refs++)
		TAILQ_REMOVE(&idle, f, idle);
	pthread_mutex_unlock(&lock);
	COUNT(files_found, f != NULL);
	return f;
}

void file_release(struct file *f)
{
	pthread_mutex_lock(&lock);
	if (!--f->refs)
		TAILQ_INSERT_TAIL(&idle, f, idle);
	pthread_mutex_unlock(&lock);
}

/* Takes the descriptor over. Two threads may add one name: file_find() finds one of the two. */
int file_add(const char *name, int fd)
{
	bool maps = options.send == SEND_WRITEV || options.residency == RESIDENCY_MINCORE;
	unsigned most = maps && options.mapped < options.cache ? options.mapped : options.cache;
	struct file *f = calloc(1, sizeof *f + strlen(name) + 1);
	struct stat status;
	int error = !f || fstat(fd, &status) ? -errno : (S_ISREG(status.st_mode) ? 0 : -ENOENT);
	if (!error && maps && status.st_size) {
		f->map = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
		error = f->map == MAP_FAILED ? -errno : 0;
	}
	if (error) {
		free(f);
		close(fd);
		return error;
	}
	strcpy(f->name, name);
	f->fd = fd;
	f->size = status.st_size;
	f->opened_s = time(NULL);
	strftime(f->modified, sizeof f->modified, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&status.st_mtime, &(struct tm){ 0 }));
	COUNT(files_mapped, f->map ? 1 : 0);
	COUNT(files_open, 1);
	pthread_mutex_lock(&lock);
	while (open_files >= most && !TAILQ_EMPTY(&idle))
		forget(TAILQ_FIRST(&idle));
	open_files++;
	LIST_INSERT_HEAD(&buckets[bucket_of(name)], f, bucket);
	TAILQ_INSERT_TAIL(&idle, f, idle);
	pthread_mutex_unlock(&lock);
	return 0;
}
