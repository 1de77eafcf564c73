/* SPDX-License-Identifier: Apache-2.0 */
/* Locks of the mount. Threads: askers come from the meta workq (first try, unlock), cancels from
 * receive threads; one thread of our own asks for all who wait and puts right what failed.
 *
 * A holder is an owner in a file; it knows the records that the volume has of it, exactly, because
 * one call at a time is under way for it (busy). So an owner without records costs nothing to
 * close, and a lock that arrives when nobody wants it any more is given back to what was before.
 *
 *	request		by
 *	NEW		locks_set; it asked once
 *	-> WAITING	locks_wait: in the list, due at due_us
 *	-> ASKING	the thread asks for it
 *	-> WAITING	somebody else has it still
 *	-> OVER		got it, an error, stop: done(status)
 *	cancelled	NEW: locks_wait says so; WAITING: out at once; ASKING: the thread undoes
 *			what it may have got, then done(LOCK_GONE)
 *
 * A holder whose change failed with an unknown outcome, or that could not be closed, is broken:
 * busy for all others until the thread has made the volume hold what it should. So is every holder
 * once our session had lapsed: others may have given its locks up. What somebody else has by then
 * is lost, which the log says. */
#include "client/locks.h"

#include <fcntl.h>
#include <inttypes.h>

#include "client/meta/plock.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/hashmap.h"
#include "common/log.h"
#include "common/mtx.h"
#include "common/thread.h"

enum {
	PAUSE_MIN_US = 1000,
	PAUSE_MAX_US = 50000,
	PAUSE_EACH_US = 1000, /* so many per waiter: a thousand questions a second at most */
	REPAIR_US = 500000,
	BUSY_US = 30 * 1000000,
	LOST_LOG_US = 10 * 1000000
};

struct holder_key {
	uint64_t inode, owner, flock;
};

struct lock_holder {
	struct hash_node node;
	struct holder_key key;
	uint64_t handle; /* that the last lock came through */
	struct plock held;
	unsigned uses; /* requests */
	bool busy, broken, close, lapsed;
	uint64_t repair_us;
	struct meta_lock range; /* broken: to be made right */
};

struct locks {
	struct meta *m;
	struct mtx lock;
	struct cond wake, idle;
	struct list_node waiting;
	size_t n_waiting, n_broken;
	struct hashmap holders;
	bool stop;
	pthread_t thread;
};

static void *locks_main(void *arg);
static void take_all_again(void *arg);

int locks_new(struct meta *m, struct locks **ret)
{
	struct locks *l = calloc(1, sizeof(*l));
	int r = l ? hashmap_init(&l->holders, 64) : -ENOMEM;

	if (r) {
		free(l);
		return r;
	}
	l->m = m;
	mtx_init(&l->lock);
	cond_init(&l->wake);
	cond_init(&l->idle);
	list_init(&l->waiting);
	r = thread_start("locks", locks_main, l, &l->thread);
	if (r) {
		l->stop = true;
		cond_fini(&l->idle);
		cond_fini(&l->wake);
		mtx_fini(&l->lock);
		hashmap_fini(&l->holders);
		free(l);
		return r;
	}
	meta_set_lapsed(m, take_all_again, l);
	*ret = l;
	return 0;
}

void locks_stop(struct locks *l)
{
	bool first;

	mtx_lock(&l->lock);
	first = !l->stop;
	l->stop = true;
	cond_broadcast(&l->wake);
	cond_broadcast(&l->idle);
	mtx_unlock(&l->lock);
	if (first) {
		meta_set_lapsed(l->m, NULL, NULL);
		pthread_join(l->thread, NULL);
	}
}

static bool free_holder(struct hash_node *n, void *arg)
{
	struct lock_holder *h = container_of(n, struct lock_holder, node);

	(void)arg;
	plock_fini(&h->held);
	free(h);
	return true;
}

void locks_free(struct locks *l)
{
	if (!l)
		return;
	locks_stop(l);
	assert(list_empty(&l->waiting));
	hashmap_each(&l->holders, free_holder, NULL);
	hashmap_fini(&l->holders);
	cond_fini(&l->idle);
	cond_fini(&l->wake);
	mtx_fini(&l->lock);
	free(l);
}

/* --- holders --- */

static bool holder_eq(const struct hash_node *n, const void *key)
{
	return !memcmp(&container_of(n, struct lock_holder, node)->key, key,
		       sizeof(struct holder_key));
}

static struct lock_holder *holder_find_locked(struct locks *l, const struct holder_key *k)
	REQUIRES(l->lock)
{
	struct hash_node *n = hashmap_find(&l->holders, hash64(k, sizeof(*k)), holder_eq, k);

	return n ? container_of(n, struct lock_holder, node) : NULL;
}

/* takes spare (and empties it) when there is none yet */
static struct lock_holder *holder_get_locked(struct locks *l, const struct holder_key *k,
					     struct lock_holder **spare) REQUIRES(l->lock)
{
	struct lock_holder *h = holder_find_locked(l, k);

	if (!h) {
		h = TAKE_PTR(*spare);
		h->key = *k;
		hashmap_add(&l->holders, &h->node, hash64(k, sizeof(*k)));
	}
	h->uses++;
	return h;
}

/* not the caller's any more; freed by whoever is last, when it holds nothing */
static void holder_put_locked(struct locks *l, struct lock_holder *h) REQUIRES(l->lock)
{
	if (--h->uses || h->busy || h->held.n)
		return;
	hashmap_del(&l->holders, &h->node);
	free_holder(&h->node, NULL);
}

static struct meta_lock whole_file(uint32_t type)
{
	return (struct meta_lock){.type = type, .end = LOCK_EOF};
}

/* until nobody else works on it; false: not in time, or the end */
static bool busy_locked(struct locks *l, struct lock_holder *h) REQUIRES(l->lock)
{
	uint64_t until = clock_us() + BUSY_US;

	while (h->busy && !l->stop && clock_left(until))
		cond_wait_us(&l->idle, &l->lock, clock_left(until));
	if (h->busy || l->stop)
		return false;
	h->busy = true;
	return true;
}

static void break_locked(struct locks *l, struct lock_holder *h, const struct meta_lock *range,
			 uint64_t repair_us) REQUIRES(l->lock)
{
	h->range = *range;
	h->repair_us = repair_us;
	if (!h->broken)
		l->n_broken++;
	h->broken = true; /* and stays busy */
	cond_signal(&l->wake);
}

/* no call is under way for it any more; range: that failed, NULL: none */
static void idle_locked(struct locks *l, struct lock_holder *h, const struct meta_lock *range)
	REQUIRES(l->lock)
{
	struct meta_lock all = whole_file(F_UNLCK);

	if (h->close) {
		plock_fini(&h->held);
		h->close = false;
		range = &all;
	}
	if (h->lapsed && !range && h->held.n) {
		h->lapsed = false;
		break_locked(l, h, &all, clock_us());
		return;
	}
	if (range) {
		break_locked(l, h, h->lapsed ? &all : range, clock_us() + REPAIR_US);
		h->lapsed = false;
		return;
	}
	h->lapsed = false;
	h->busy = false;
	cond_broadcast(&l->idle);
}

/* --- asking --- */

static int ask(struct locks *l, const struct holder_key *k, const struct meta_lock *x)
{
	if (k->flock)
		return meta_flock(l->m, k->inode, k->owner, x->type);
	return meta_setlk(l->m, k->inode, k->owner, x);
}

/* whether the volume may have done it all the same */
static bool unknown(int r)
{
	return r && r != -EAGAIN && r != -ENOLCK && r != -EROFS && r != -EOPNOTSUPP && r != -EINVAL;
}

static void kick_locked(struct locks *l, uint64_t inode) REQUIRES(l->lock)
{
	struct list_node *n;
	uint64_t now = clock_us();

	list_for_each(n, &l->waiting)
	{
		struct lock_req *q = container_of(n, struct lock_req, link);

		if (q->inode == inode) {
			q->due_us = now;
			q->pause_us = PAUSE_MIN_US;
		}
	}
	cond_signal(&l->wake);
}

/* what the volume has done is known of h; 0 or -ENOMEM */
static int note_locked(struct locks *l, struct lock_holder *h, const struct lock_req *q)
	REQUIRES(l->lock)
{
	int r = plock_set(&h->held, &q->lock);

	if (q->lock.type != F_WRLCK && l->n_waiting)
		kick_locked(l, q->inode);
	if (!r && q->lock.type != F_UNLCK)
		h->handle = q->handle;
	return r;
}

static int set_once(struct locks *l, struct lock_req *q)
{
	struct lock_holder *h = q->holder;
	int r = ask(l, &h->key, &q->lock);
	int noted = 0;

	mtx_lock(&l->lock);
	if (!r)
		noted = note_locked(l, h, q);
	idle_locked(l, h, noted || unknown(r) ? &q->lock : NULL);
	mtx_unlock(&l->lock);
	return r ? r : noted;
}

int locks_set(struct locks *l, struct lock_req *q, bool wait)
{
	struct lock_holder *spare = calloc(1, sizeof(*spare)), *h;
	struct holder_key k = {q->inode, q->owner, q->flock};
	int r = -EIO;
	bool mine;

	if (!spare)
		return -ENOMEM;
	if (q->flock) {
		q->lock = whole_file(q->lock.type);
	} else if (q->lock.start > q->lock.end) {
		free(spare);
		return -EINVAL;
	}
	list_init(&q->link);
	q->state = LOCK_NEW;
	q->cancelled = false;
	q->pause_us = PAUSE_MIN_US;
	mtx_lock(&l->lock);
	h = q->holder = holder_get_locked(l, &k, &spare);
	mine = busy_locked(l, h);
	mtx_unlock(&l->lock);
	free(spare);
	if (mine)
		r = set_once(l, q);
	mtx_lock(&l->lock);
	if (r != -EAGAIN || !wait)
		holder_put_locked(l, h);
	mtx_unlock(&l->lock);
	return r;
}

/* --- waiting --- */

bool locks_wait(struct locks *l, struct lock_req *q)
{
	bool waits, stop;

	mtx_lock(&l->lock);
	waits = !q->cancelled;
	stop = l->stop;
	if (waits && !stop) {
		q->state = LOCK_WAITING;
		q->due_us = clock_us() + q->pause_us;
		list_add_tail(&l->waiting, &q->link);
		l->n_waiting++;
		cond_signal(&l->wake);
	} else {
		q->state = LOCK_OVER;
		holder_put_locked(l, q->holder);
	}
	mtx_unlock(&l->lock);
	if (waits && stop)
		q->done(q, -ENOTCONN);
	return waits;
}

enum lock_cancel locks_cancel(struct locks *l, struct lock_req *q)
{
	enum lock_cancel how = CANCEL_LEFT;

	mtx_lock(&l->lock);
	if (q->state == LOCK_OVER || q->cancelled) {
		how = CANCEL_LATE;
	} else if (q->state == LOCK_WAITING) {
		list_del(&q->link);
		l->n_waiting--;
		q->state = LOCK_OVER;
		holder_put_locked(l, q->holder);
		how = CANCEL_ENDED;
	} else {
		q->cancelled = true;
	}
	mtx_unlock(&l->lock);
	return how;
}

/* of what should be ours; somebody else has it when the session had lapsed: that is lost */
static int take_again(struct locks *l, const struct lock_holder *h, const struct meta_lock *x)
{
	static struct log_rate rate;
	unsigned quiet = 0;
	int r = ask(l, &h->key, x);

	if (r != -EAGAIN)
		return r;
	if (log_rate_ok(&rate, LOST_LOG_US, &quiet))
		log_warn("a lock of inode %" PRIu64 " is lost: somebody else got it (%u more)",
			 h->key.inode, quiet);
	return 0;
}

/* makes the volume hold what h has in a range, without giving up in between what stays; h is busy
 * */
static int restore(struct locks *l, struct lock_holder *h, const struct meta_lock *range)
{
	uint64_t at = range->start;
	int r = 0;

	for (size_t i = 0; !r && i < h->held.n; i++) {
		struct meta_lock o = h->held.l[i], gap = {.type = F_UNLCK, .start = at};

		if (o.end < at || o.start > range->end)
			continue;
		o.start = MAX(o.start, at);
		o.end = MIN(o.end, range->end);
		if (o.start > at) {
			gap.end = o.start - 1;
			r = ask(l, &h->key, &gap);
		}
		if (!r)
			r = take_again(l, h, &o);
		if (o.end >= range->end)
			return r;
		at = o.end + 1;
	}
	if (!r) {
		struct meta_lock gap = {.type = F_UNLCK, .start = at, .end = range->end};

		r = ask(l, &h->key, &gap);
	}
	return r == -EAGAIN ? 0 : r;
}

static uint64_t pause_next(const struct locks *l, uint64_t pause_us)
{
	uint64_t most = MAX((uint64_t)PAUSE_MAX_US, (uint64_t)l->n_waiting * PAUSE_EACH_US);

	return MIN(pause_us * 2, most);
}

/* one question for q, which is out of the list, with its holder busy */
static void ask_for(struct locks *l, struct lock_req *q)
{
	struct lock_holder *h = q->holder;
	struct meta_lock range = q->lock;
	int r = ask(l, &h->key, &q->lock), noted = 0;
	bool gone, again;

	mtx_lock(&l->lock);
	gone = q->cancelled;
	again = r == -EAGAIN && !gone && !l->stop;
	if (!r && !gone)
		noted = note_locked(l, h, q);
	if (again) {
		q->state = LOCK_WAITING;
		q->pause_us = pause_next(l, q->pause_us);
		q->due_us = clock_us() + q->pause_us;
		list_add_tail(&l->waiting, &q->link);
		l->n_waiting++;
	} else {
		q->state = LOCK_OVER;
	}
	mtx_unlock(&l->lock);
	if (again)
		q = NULL;
	if (gone && (!r || unknown(r)))
		r = restore(l, h, &range) ? -EIO : -EAGAIN;
	mtx_lock(&l->lock);
	idle_locked(l, h, noted || unknown(r) ? &range : NULL);
	if (q)
		h->uses--; /* q's */
	holder_put_locked(l, h);
	mtx_unlock(&l->lock);
	if (q)
		q->done(q, gone ? LOCK_GONE : r == -EAGAIN ? -ENOTCONN : r ? r : noted);
}

struct due {
	struct lock_holder *broken;
	uint64_t now, next;
};

static bool find_broken(struct hash_node *n, void *arg)
{
	struct lock_holder *h = container_of(n, struct lock_holder, node);
	struct due *d = arg;

	if (!h->broken)
		return true;
	d->next = MIN(d->next, h->repair_us);
	if (h->repair_us <= d->now)
		d->broken = h;
	return !d->broken;
}

/* the first that is due and whose holder is free, made busy; NULL: none, until *ret_next */
static struct lock_req *due_locked(struct locks *l, uint64_t now, uint64_t *ret_next)
	REQUIRES(l->lock)
{
	struct lock_req *first = NULL;
	struct list_node *n;

	list_for_each(n, &l->waiting)
	{
		struct lock_req *q = container_of(n, struct lock_req, link);

		if (q->due_us <= now && q->holder->busy)
			q->due_us = now + PAUSE_MIN_US;
		if (!first || q->due_us < first->due_us)
			first = q;
	}
	if (!first || first->due_us > now) {
		*ret_next = first ? first->due_us : UINT64_MAX;
		return NULL;
	}
	list_del(&first->link);
	l->n_waiting--;
	first->state = LOCK_ASKING;
	first->holder->busy = true;
	first->holder->uses++; /* the thread's */
	return first;
}

static void repair(struct locks *l, struct lock_holder *h)
{
	struct meta_lock range = h->range;
	int r = restore(l, h, &range);

	mtx_lock(&l->lock);
	h->broken = false;
	l->n_broken--;
	h->uses++;
	idle_locked(l, h, r ? &range : NULL);
	if (!r && l->n_waiting)
		kick_locked(l, h->key.inode);
	holder_put_locked(l, h);
	mtx_unlock(&l->lock);
}

static bool break_held(struct hash_node *n, void *arg)
{
	struct lock_holder *h = container_of(n, struct lock_holder, node);
	struct locks *l = arg;

	if (h->busy) {
		h->lapsed = true; /* whoever is busy with it says so in the end */
	} else if (h->held.n) {
		h->busy = h->broken = true;
		h->range = whole_file(F_UNLCK);
		h->repair_us = clock_us();
		l->n_broken++;
	}
	return true;
}

/* the session had lapsed */
static void take_all_again(void *arg)
{
	struct locks *l = arg;

	mtx_lock(&l->lock);
	if (!l->stop)
		hashmap_each(&l->holders, break_held, l);
	cond_signal(&l->wake);
	mtx_unlock(&l->lock);
}

static void end_waiting(struct locks *l)
{
	struct list_node *n;

	for (;;) {
		struct lock_req *q = NULL;

		mtx_lock(&l->lock);
		n = list_pop(&l->waiting);
		if (n) {
			q = container_of(n, struct lock_req, link);
			l->n_waiting--;
			q->state = LOCK_OVER;
			holder_put_locked(l, q->holder);
		}
		mtx_unlock(&l->lock);
		if (!q)
			return;
		q->done(q, -ENOTCONN);
	}
}

static void *locks_main(void *arg)
{
	struct locks *l = arg;
	bool stop = false;

	while (!stop) {
		struct due d = {.now = clock_us(), .next = UINT64_MAX};
		uint64_t next = UINT64_MAX;
		struct lock_req *q;

		mtx_lock(&l->lock);
		q = due_locked(l, d.now, &next);
		if (!q && l->n_broken)
			hashmap_each(&l->holders, find_broken, &d);
		next = MIN(next, d.next);
		if (!q && !d.broken && !l->stop) {
			if (next == UINT64_MAX)
				cond_wait(&l->wake, &l->lock);
			else
				cond_wait_us(&l->wake, &l->lock, clock_left(next));
		}
		stop = l->stop;
		mtx_unlock(&l->lock);
		if (q)
			ask_for(l, q);
		else if (d.broken)
			repair(l, d.broken);
	}
	end_waiting(l);
	return NULL;
}

/* --- the end of open files --- */

bool locks_held(struct locks *l, uint64_t inode, uint64_t owner)
{
	struct holder_key k = {inode, owner, false};
	const struct lock_holder *h;
	bool held;

	mtx_lock(&l->lock);
	h = holder_find_locked(l, &k);
	held = h && h->held.n;
	mtx_unlock(&l->lock);
	return held;
}

static void close_holder(struct locks *l, const struct holder_key *k)
{
	struct meta_lock all = whole_file(F_UNLCK);
	struct lock_holder *h;
	bool mine = false;
	int r;

	mtx_lock(&l->lock);
	h = holder_find_locked(l, k);
	if (h) {
		h->uses++;
		mine = busy_locked(l, h);
		if (!mine)
			h->close = true; /* whoever is busy with it does it then */
	}
	mtx_unlock(&l->lock);
	if (!h)
		return;
	r = mine ? ask(l, k, &all) : 0;
	mtx_lock(&l->lock);
	if (mine) {
		plock_fini(&h->held);
		kick_locked(l, k->inode);
		idle_locked(l, h, unknown(r) ? &all : NULL);
	}
	holder_put_locked(l, h);
	mtx_unlock(&l->lock);
}

void locks_close(struct locks *l, uint64_t inode, uint64_t owner)
{
	struct holder_key k = {inode, owner, false};

	close_holder(l, &k);
}

struct of_handle {
	uint64_t handle;
	struct holder_key found;
	bool any;
};

static bool find_handle(struct hash_node *n, void *arg)
{
	const struct lock_holder *h = container_of(n, struct lock_holder, node);
	struct of_handle *f = arg;

	if (h->handle != f->handle || !h->held.n || h->close)
		return true;
	f->found = h->key;
	f->any = true;
	return false;
}

void locks_release(struct locks *l, uint64_t handle)
{
	struct of_handle f;

	do {
		f = (struct of_handle){.handle = handle};
		mtx_lock(&l->lock);
		hashmap_each(&l->holders, find_handle, &f);
		mtx_unlock(&l->lock);
		if (f.any)
			close_holder(l, &f.found);
	} while (f.any);
}

void locks_count(struct locks *l, size_t *ret_waiters, size_t *ret_holders)
{
	mtx_lock(&l->lock);
	*ret_waiters = l->n_waiting;
	*ret_holders = l->holders.count;
	mtx_unlock(&l->lock);
}
