/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What happens when the server starts and when it ends? */
#include "flash.h"

#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

struct counters *counters;
bool ended;

/* Does what the next signal asks for. */
void signal_ready(struct watch *w)
{
	struct signalfd_siginfo info;
#define FORMAT(name) ", \"" #name "\": %llu"
#define VALUE(name) , (unsigned long long)COUNT(name, 0)
	if (read(w->fd, &info, sizeof info) == sizeof info && info.ssi_signo == SIGUSR1)
		fprintf(stderr, "{\"pid\": %d" COUNTERS(FORMAT) "}\n", getpid() COUNTERS(VALUE));
	else
		ended = true;
}

/* Takes over the signals, after the forks, for children keep what signals do by themselves; says that the server is up. */
int signals_open(void)
{
	sigset_t handled = { 0 };
	sigaddset(&handled, SIGTERM);
	sigaddset(&handled, SIGINT);
	sigaddset(&handled, SIGUSR1);
	sigprocmask(SIG_BLOCK, &handled, NULL);
	int signals = signalfd(-1, &handled, SFD_CLOEXEC);
	printf("listening on 127.0.0.1:%u\n", options.port);
	fflush(stdout);
	return signals;
}

/* TCP_NODELAY goes over to the accepted sockets: what is to be kept back is said with MSG_MORE. */
static int listen_on_loopback(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t bytes = sizeof address;
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (options.model == MODEL_AMPED ? SOCK_NONBLOCK : 0), 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, options.backlog))
		die("127.0.0.1:%u: %s; choose another --port, or 0", options.port, strerror(errno));
	getsockname(fd, (struct sockaddr *)&address, &bytes);
	options.port = ntohs(address.sin_port);
	return fd;
}

int main(int argc, char **argv)
{
	counters = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counters == MAP_FAILED)
		die("counters: %s", strerror(errno));
	if (argc > 1 && !strcmp(argv[1], "--as-cgi"))
		return cgi_main();
	options_read(argc, argv);
	residency_check();
	struct rlimit limit;
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	if (setrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < options.cache + 64)
		die("--cache %u and connections need more than %llu descriptors: raise ulimit -Hn or give a smaller --cache", options.cache, (unsigned long long)limit.rlim_cur);
	setpgid(0, 0);            /* what it starts ends with it; killed, it takes along whoever asked for PR_SET_PDEATHSIG */
	tzset();                  /* else the first date opens /etc/localtime */
	signal(SIGPIPE, SIG_IGN); /* writev and sendfile have no MSG_NOSIGNAL */
	signal(SIGCHLD, SIG_IGN); /* CGI programs leave no zombies */
	helpers_start();
	if (options.send == SEND_URING)
		uring_start();
	(options.model == MODEL_AMPED ? loop_run : workers_run)(listen_on_loopback());
	kill(0, SIGTERM); /* blocked here; whom this process started is in its group */
	while (wait(NULL) > 0 || errno == EINTR)
		;
	return 0;
}
