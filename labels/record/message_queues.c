/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Which waits of System V IPC and POSIX message queues can be provoked? */
#include <mqueue.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include "record.h"

static void case_msgrcv(void)
{
	struct {
		long type;
		char text[8];
	} message;
	int queue = MUST(msgget(IPC_PRIVATE, 0600));
	ready();
	msgrcv(queue, &message, sizeof(message.text), 0, 0);
}

static void case_msgsnd(void)
{
	static struct {
		long type;
		char text[4096];
	} message = { .type = 1 };
	int queue = MUST(msgget(IPC_PRIVATE, 0600));
	while (msgsnd(queue, &message, sizeof(message.text), IPC_NOWAIT) == 0)
		;
	ready();
	msgsnd(queue, &message, sizeof(message.text), 0);
}

static void case_semop(void)
{
	struct sembuf down = { 0, -1, 0 };
	int set = MUST(semget(IPC_PRIVATE, 1, 0600));
	ready();
	semop(set, &down, 1);
}

static mqd_t open_mq(void)
{
	struct mq_attr attributes = { .mq_maxmsg = 1, .mq_msgsize = 8 };
	mqd_t queue = mq_open("/debox-record", O_RDWR | O_CREAT, 0600, &attributes);
	if (queue < 0)
		fail("mq_open");
	mq_unlink("/debox-record");
	return queue;
}

static void case_mq_receive(void)
{
	char buffer[8];
	mqd_t queue = open_mq();
	ready();
	mq_receive(queue, buffer, sizeof(buffer), NULL);
}

static void case_mq_send(void)
{
	mqd_t queue = open_mq();
	mq_send(queue, "x", 1, 0);
	ready();
	mq_send(queue, "x", 1, 0);
}

const struct test_case message_queues_cases[] = {
	CASE(msgrcv, "msgqueue"),
	CASE(msgsnd, "msgqueue"),
	CASE(mq_receive, "msgqueue"),
	CASE(mq_send, "msgqueue"),
	CASE(semop, "semop"),
	{ 0 },
};
