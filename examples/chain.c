/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * How does a program learn what it waited for, and what that waited for?
 *
 *     cc chain.c -ldebox -lpthread && ./a.out
 *
 * The main thread wants a mutex; its owner waits for a pipe, whose writer sleeps.
 * A lock that took too long says so in the program's own log.
 */
#include <debox.h>

#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int ends[2];

static void *writer(void *unused)
{
	struct timespec wait = { 0, 30000000 };

	nanosleep(&wait, NULL);
	if (write(ends[1], "x", 1) != 1)
		perror("write");
	return unused;
}

static void *owner(void *unused)
{
	char byte;

	pthread_mutex_lock(&lock);
	if (read(ends[0], &byte, 1) != 1)
		perror("read");
	pthread_mutex_unlock(&lock);
	return unused;
}

int main(void)
{
	struct debox_options options = { .size = sizeof options, .flags = DEBOX_OPEN_CHAINS };
	struct debox_info info = { .size = sizeof info };
	struct timespec moment = { 0, 5000000 };
	pthread_t threads[2];
	char text[512];

	debox_open(&options);
	if (debox_why(text, sizeof text))
		fprintf(stderr, "note: %s\n", text);
	if (pipe(ends) || pthread_create(&threads[0], NULL, owner, NULL) ||
	    pthread_create(&threads[1], NULL, writer, NULL))
		return 1;
	nanosleep(&moment, NULL);

	DEBOX_CALL_NR(SYS_futex, pthread_mutex_lock(&lock));
	if (debox_last(&info) == 0 && info.blocked_ns > 10000000) {
		for (uint32_t i = 0; i < info.sleep_count; i++) {
			const struct debox_sleep *s = &info.sleeps[i];

			if (s->flags & DEBOX_SLEEP_CHAIN && debox_chain_text(s->chain, text, sizeof text) > 0)
				printf("the lock took %llu ms, %u.%u %% of it for: %s\n",
				       (unsigned long long)s->total_ns / 1000000, s->chain_permille / 10,
				       s->chain_permille % 10, text);
		}
	}
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	return 0;
}
