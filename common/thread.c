/* SPDX-License-Identifier: Apache-2.0 */
/* Starting threads with a name and with signals blocked. Any thread. */
#include "common/thread.h"

#include <signal.h>

#include "common/base.h"

enum { THREAD_NAME_BYTES = 16 }; /* the kernel's limit, NUL included */

int thread_start(const char *name, void *(*fn)(void *arg), void *arg, pthread_t *ret)
{
	/* a fault of the thread itself must still kill the process with its own signal */
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
	char title[THREAD_NAME_BYTES];
	sigset_t block, before;
	pthread_t t;
	int r;

	sigfillset(&block);
	for (size_t i = 0; i < ARRAY_LEN(faults); i++)
		sigdelset(&block, faults[i]);
	pthread_sigmask(SIG_SETMASK, &block, &before);
	r = pthread_create(&t, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r)
		return -r;
	snprintf(title, sizeof(title), "%.15s", name);
	pthread_setname_np(t, title);
	*ret = t;
	return 0;
}
