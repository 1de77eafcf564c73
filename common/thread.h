/* SPDX-License-Identifier: Apache-2.0 */
/* Starting threads. Every thread but main blocks signals, so that they reach main alone, and so
 * that writing to a closed socket is EPIPE and never SIGPIPE. */
#ifndef STOKE_COMMON_THREAD_H
#define STOKE_COMMON_THREAD_H

#include <pthread.h>

/* a joinable thread; its name is cut to 15 bytes. 0 or -errno */
int thread_start(const char *name, void *(*fn)(void *arg), void *arg, pthread_t *ret);

#endif
