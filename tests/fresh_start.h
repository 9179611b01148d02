/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What did whoever started the tests leave to them that must not matter?
 *
 * nohup, a script's background job and some CI runners start what they start
 * with SIGINT ignored, and children inherit that. A test that includes this
 * gets every signal's default, none blocked, and umask 022, before main().
 * fresh_start.rs and fresh_start.py are the same for Rust and Python.
 */
#ifndef FRESH_START_H
#define FRESH_START_H

#include <signal.h>
#include <sys/stat.h>

__attribute__((constructor)) static void fresh_start(void)
{
	sigset_t none;

	for (int s = 1; s <= 64; s++)
		signal(s, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, 0);
	umask(022);
}

#endif
