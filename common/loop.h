/* SPDX-License-Identifier: Apache-2.0 */
/* A thread that owns an event base. Everything but loop_post, loop_is_mine and loop_new/free is
 * called on the loop's own thread only. Nothing that runs on a loop blocks. */
#ifndef STOKE_COMMON_LOOP_H
#define STOKE_COMMON_LOOP_H

#include <stdalign.h>

#include "common/list.h"

struct loop;
struct loop_job {
	struct list_node link;
	void (*fn)(struct loop_job *job);
};

/* starts the thread; 0 or -errno */
int loop_new(const char *name, struct loop **ret);
/* runs what was posted, ends the thread, frees. Watches and timers must be gone. NULL is fine. */
void loop_free(struct loop *l);
/* job->fn(job) runs on the loop's thread, in the order posted; the job belongs to the loop until
 * then. Any thread. */
void loop_post(struct loop *l, struct loop_job *job);
/* posts and waits until fn has returned; runs at once when called on the loop's own thread. For
 * start and stop, never on a data path. */
void loop_run_sync(struct loop *l, void (*fn)(void *arg), void *arg);
bool loop_is_mine(const struct loop *l);

/* storage for libevent's struct event, so that its headers stay in loop.c (size checked there) */
struct loop_event {
	alignas(16) unsigned char space[160];
};

struct loop_timer {
	struct loop_event ev;
	struct loop *loop;
	void (*fn)(struct loop_timer *t);
	uint64_t due_us;
	bool pending;
};
void loop_timer_init(struct loop_timer *t, struct loop *l, void (*fn)(struct loop_timer *t));
/* once, after us (never earlier by clock_us); a pending timer is moved */
void loop_timer_start(struct loop_timer *t, uint64_t us);
/* after it returns fn does not run */
void loop_timer_stop(struct loop_timer *t);

enum { LOOP_READ = 1, LOOP_WRITE = 2 };
struct loop_watch {
	struct loop_event ev;
	struct loop *loop;
	int fd;
	unsigned events;
	void (*fn)(struct loop_watch *w, unsigned events);
};
/* fd stays the caller's; level-triggered and persistent */
void loop_watch_init(struct loop_watch *w, struct loop *l, int fd,
		     void (*fn)(struct loop_watch *w, unsigned events));
/* which of LOOP_READ | LOOP_WRITE to wait for; 0: none. Call with 0 before the fd is closed. */
void loop_watch_set(struct loop_watch *w, unsigned events);

/* fn runs soon with LOOP_READ, as if the socket were readable: what is to be read was taken from it
 * already. Only while LOOP_READ is waited for. */
void loop_watch_kick(struct loop_watch *w);

/* loop.c only gives it to http.c */
struct event_base;
struct event_base *loop_base(struct loop *l);

#endif
