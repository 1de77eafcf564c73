/* SPDX-License-Identifier: Apache-2.0 */
/* Threads: the receive threads of one loop; no lock, one atomic word:
 *
 *	TAKEN	bit 63	a thread has the turn: it is on its way to poll(2), or in it, or handles
 *			something short
 *	n	bit n	thread n is parked: it has nothing to do, and waits for its semaphore
 *
 *	idle -> has the turn	when nobody has it, or the one who leaves it gives it on
 *	idle -> parked		when somebody has it, and no fiber of this thread waits
 *	idle -> waits for its fibers		when somebody has it; and for the turn to be free
 *	has it -> busy		leaves it: to the parked thread of the lowest number, which was the
 *				last to run more often than the others, else to who is idle next */
#include "client/fuse_turn.h"

#include <sys/eventfd.h>

#include "common/clock.h"

#define TAKEN (UINT64_C(1) << 63)

static _Thread_local bool has;

static bool change(struct fuse_turn *t, uint64_t *s, uint64_t to)
{
	return __atomic_compare_exchange_n(&t->state, s, to, false, __ATOMIC_ACQ_REL,
					   __ATOMIC_ACQUIRE);
}

void fuse_turn_leave(struct fuse_turn *t)
{
	uint64_t s = __atomic_load_n(&t->state, __ATOMIC_ACQUIRE), to;

	if (!has)
		return;
	has = false;
	do {
		uint64_t parked = s & ~TAKEN;

		assert(s & TAKEN);
		/* without its lowest bit, or free */
		to = parked ? TAKEN | (parked & (parked - 1)) : 0;
	} while (!change(t, &s, to));
	if (to)
		sem_post(&t->parked[__builtin_ctzll(s)]);
	else
		(void)eventfd_write(t->freed, 1);
}

int fuse_turn_init(struct fuse_turn *t)
{
	*t = (struct fuse_turn){.fd = -1, .freed = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	for (unsigned i = 0; i < FUSE_TURN_THREADS_MAX; i++)
		sem_init(&t->parked[i], 0, 0);
	return t->freed < 0 ? -errno : 0;
}

void fuse_turn_fini(struct fuse_turn *t)
{
	for (unsigned i = 0; i < FUSE_TURN_THREADS_MAX; i++)
		sem_destroy(&t->parked[i]);
	closep(&t->freed);
}

static bool take_if_free(struct fuse_turn *t)
{
	uint64_t s = __atomic_load_n(&t->state, __ATOMIC_ACQUIRE);

	while (!(s & TAKEN)) {
		if (change(t, &s, s | TAKEN))
			return true;
	}
	return false;
}

/* has the turn afterwards; false: a signal came before it */
static bool park(struct fuse_turn *t, unsigned number)
{
	const uint64_t mine = UINT64_C(1) << number;
	uint64_t s = __atomic_load_n(&t->state, __ATOMIC_ACQUIRE);

	while (!change(t, &s, s & TAKEN ? s | mine : s | TAKEN))
		;
	if (!(s & TAKEN) || sem_wait(&t->parked[number]) == 0)
		return true;
	s = __atomic_load_n(&t->state, __ATOMIC_ACQUIRE);
	while (s & mine) {
		if (change(t, &s, s & ~mine))
			return false;
	}
	/* it was given the turn meanwhile */
	while (sem_wait(&t->parked[number]) < 0)
		;
	return true;
}

struct looking {
	struct pollfd fds[1 + FIBERS_MAX]; /* the kernel's, or freed, first */
	unsigned n;			   /* of fibers */
	uint64_t until_us;
};

static bool something(void *arg)
{
	struct looking *l = arg;

	return poll(l->fds, l->n + 1, 0) > 0;
}

static void sleep_until(struct looking *l)
{
	uint64_t left;
	int ms = -1;

	if (l->until_us != UINT64_MAX) {
		left = clock_left(l->until_us);
		ms = (int)DIV_UP(MIN(left, (uint64_t)60000000), 1000);
	}
	if (poll(l->fds, l->n + 1, ms) <= 0) {
		for (unsigned i = 0; i <= l->n; i++)
			l->fds[i].revents = 0;
	}
}

static void look(struct fuse_turn *t, struct looking *l)
{
	for (unsigned i = 0; l->until_us == 0 && i <= l->n; i++)
		l->fds[i].revents = 0;
	/* an answer comes sooner than this thread could sleep and wake */
	if (l->until_us == 0)
		return;
	if (l->n == 0 || !spin_until(&t->spin, something, l))
		sleep_until(l);
}

void fuse_turn_wait(struct fuse_turn *t, unsigned number, struct fibers *f)
{
	struct looking l;

	l.n = fibers_fds(f, l.fds + 1, &l.until_us);
	has = has || take_if_free(t) || (l.n == 0 && park(t, number));
	if (!has && l.n == 0)
		return;
	l.fds[0] = (struct pollfd){.fd = has ? t->fd : t->freed, .events = POLLIN};
	look(t, &l);
	if (!has && l.fds[0].revents) {
		/* in this order: who leaves it later tells again */
		(void)eventfd_read(t->freed, &(eventfd_t){0});
		has = take_if_free(t);
	}
	fibers_resume(f, l.fds + 1, l.n);
}

void fuse_turn_fibers(struct fibers *f)
{
	struct pollfd fds[FIBERS_MAX];
	uint64_t until_us;
	unsigned n = fibers_fds(f, fds, &until_us);

	if (n > 0 && poll(fds, n, 0) >= 0)
		fibers_resume(f, fds, n);
}

void fuse_turn_drain(struct fibers *f)
{
	struct looking l;

	while ((l.n = fibers_fds(f, l.fds + 1, &l.until_us)) > 0) {
		l.fds[0] = (struct pollfd){.fd = -1};
		sleep_until(&l);
		fibers_resume(f, l.fds + 1, l.n);
	}
}
