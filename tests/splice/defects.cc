// SPDX-License-Identifier: MIT OR Apache-2.0
// What do programs that look for defects say of this one? It makes calls from threads and from handlers
// of signals that interrupt them, throws, forks, and then has the defect that it is asked for.
//
//   defects none|free|race|leak|overflow|unset

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/time.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

static int shared;
static volatile int one = 1;
static std::atomic<int> interrupted;

static void handler(int)
{
	const int was = errno;

	interrupted++;
	getppid();
	errno = was;
}

static void each_millisecond(bool on)
{
	const struct itimerval every = { { 0, on ? 1000 : 0 }, { 0, on ? 1000 : 0 } };
	struct sigaction action = {};

	action.sa_handler = handler;
	action.sa_flags = SA_RESTART;
	sigaction(SIGALRM, &action, nullptr);
	setitimer(ITIMER_REAL, &every, nullptr);
}

static int works()
{
	std::vector<std::thread> threads;
	std::atomic<int> sum{ 0 };
	int ends[2];
	char c;

	if (pipe(ends))
		abort();
	each_millisecond(true);
	for (int i = 0; i < 4; i++)
		threads.emplace_back([&, i] {
			for (int n = 0; n < 100; n++) {
				std::vector<char> some(100 + n, (char)i);

				sum += some[n];
				getppid();
				usleep(100);
				if (write(ends[1], &some[n], 1) != 1)
					abort();
			}
		});
	for (int i = 0; i < 400; i++)
		if (read(ends[0], &c, 1) != 1)
			abort();
	for (auto &thread : threads)
		thread.join();
	while (interrupted < 20)
		usleep(1000);
	each_millisecond(false);
	try {
		throw 7;
	} catch (int n) {
		sum += n;
	}
	if (const pid_t child = fork()) {
		int status;

		if (waitpid(child, &status, 0) != child)
			abort();
		sum += WEXITSTATUS(status);
	} else {
		_exit(4);
	}
	return sum;
}

int main(int argc, char **argv)
{
	const char *defect = argc > 1 ? argv[1] : "none";
	char *volatile some;

	printf("%d\n", works());
	fflush(stdout);
	if (!strcmp(defect, "free")) {
		some = (char *)calloc(10, 1);
		free(some);
		return some[one] == 77;
	} else if (!strcmp(defect, "race")) {
		std::thread a([] { shared++; }), b([] { shared++; });

		a.join();
		b.join();
	} else if (!strcmp(defect, "leak")) {
		some = (char *)malloc(77);
		some = nullptr;
	} else if (!strcmp(defect, "overflow")) {
		int n = INT_MAX;

		n += one;
		return n == 77;
	} else if (!strcmp(defect, "unset")) {
		some = (char *)malloc(10);
		if (some[3] == 77)
			puts("by chance");
		free(some);
	}
	return 0;
}
