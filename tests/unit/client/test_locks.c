/* SPDX-License-Identifier: Apache-2.0 */
/* Who holds and who waits, over an engine that hangs, fails and forgets to answer when told to. */
#include "tests/unit/check.h"

#include <fcntl.h>
#include <unistd.h>

#include "client/locks.h"
#include "client/meta/engine.h"
#include "client/meta/plock.h"

enum { OWNERS = 4 };

/* one file; what each owner has in it */
static struct fake {
	struct meta base;
	struct mtx lock;
	struct cond changed;
	struct plock has[OWNERS];
	int asked, fail; /* so many answers are lost: the first half of them after it was done */
	bool hang, hanging;
} fake;

static int fake_setlk(struct meta *m, uint64_t inode, uint64_t owner, const struct meta_lock *l)
{
	int r = 0;

	(void)m;
	assert_int_equal(inode, 7);
	assert_true(owner < OWNERS);
	mtx_lock(&fake.lock);
	fake.asked++;
	while (fake.hang) {
		fake.hanging = true;
		cond_broadcast(&fake.changed);
		cond_wait(&fake.changed, &fake.lock);
	}
	fake.hanging = false;
	for (uint64_t o = 0; o < OWNERS && l->type != F_UNLCK; o++) {
		if (o != owner && plock_conflict(&fake.has[o], l))
			r = -EAGAIN;
	}
	if (!r && !(fake.fail % 2))
		assert_int_equal(plock_set(&fake.has[owner], l), 0);
	if (fake.fail) {
		fake.fail--;
		r = -EIO;
	}
	mtx_unlock(&fake.lock);
	return r;
}

static const struct meta_ops fake_ops = {.name = "fake", .setlk = fake_setlk};

static int start(void **state)
{
	const struct meta_conf conf = {.timeout_us = 1000000};
	struct locks *l;

	fake = (struct fake){.asked = 0};
	assert_int_equal(meta_init(&fake.base, &fake_ops, &conf, NULL), 0);
	mtx_init(&fake.lock);
	cond_init(&fake.changed);
	assert_int_equal(locks_new(&fake.base, &l), 0);
	*state = l;
	return 0;
}

static int stop(void **state)
{
	locks_free(*state);
	for (int i = 0; i < OWNERS; i++)
		plock_fini(&fake.has[i]);
	cond_fini(&fake.changed);
	mtx_fini(&fake.lock);
	meta_fini(&fake.base);
	return 0;
}

struct asker {
	struct lock_req q;
	struct mtx lock;
	struct cond over;
	bool done;
	int status;
};

static void asker_done(struct lock_req *q, int status)
{
	struct asker *a = container_of(q, struct asker, q);

	mtx_lock(&a->lock);
	a->done = true;
	a->status = status;
	cond_broadcast(&a->over);
	mtx_unlock(&a->lock);
}

static void asker_init(struct asker *a, uint64_t owner, uint32_t type, uint64_t from, uint64_t to)
{
	*a = (struct asker){.q = {.inode = 7,
				  .owner = owner,
				  .handle = 100 + owner,
				  .lock = {type, 1, from, to},
				  .done = asker_done}};
	mtx_init(&a->lock);
	cond_init(&a->over);
}

static int asker_status(struct asker *a)
{
	int status;

	mtx_lock(&a->lock);
	while (!a->done)
		cond_wait(&a->over, &a->lock);
	status = a->status;
	mtx_unlock(&a->lock);
	return status;
}

static void asker_fini(struct asker *a)
{
	cond_fini(&a->over);
	mtx_fini(&a->lock);
}

static int set(struct locks *l, uint64_t owner, uint32_t type, uint64_t from, uint64_t to)
{
	struct lock_req q = {
		.inode = 7, .owner = owner, .handle = 100 + owner, .lock = {type, 1, from, to}};

	return locks_set(l, &q, false);
}

static void begin(struct locks *l, struct asker *a, uint64_t owner, uint32_t type, uint64_t from,
		  uint64_t to)
{
	asker_init(a, owner, type, from, to);
	assert_int_equal(locks_set(l, &a->q, true), -EAGAIN);
	assert_true(locks_wait(l, &a->q));
}

static void failing(int n)
{
	mtx_lock(&fake.lock);
	fake.fail = n;
	mtx_unlock(&fake.lock);
}

static int still_failing(void)
{
	int n;

	mtx_lock(&fake.lock);
	n = fake.fail;
	mtx_unlock(&fake.lock);
	return n;
}

static int asked(void)
{
	int n;

	mtx_lock(&fake.lock);
	n = fake.asked;
	mtx_unlock(&fake.lock);
	return n;
}

static void hang(bool on)
{
	mtx_lock(&fake.lock);
	fake.hang = on;
	cond_broadcast(&fake.changed);
	while (on && !fake.hanging)
		cond_wait(&fake.changed, &fake.lock);
	mtx_unlock(&fake.lock);
}

/* what an owner has, as text: "W 0 9,R 10 19" */
static void has(uint64_t owner, const char *want)
{
	char text[256] = "";
	size_t n = 0;

	mtx_lock(&fake.lock);
	for (size_t i = 0; i < fake.has[owner].n; i++) {
		const struct meta_lock *k = &fake.has[owner].l[i];

		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%c %llu %llu", n ? "," : "",
				      k->type == F_WRLCK ? 'W' : 'R', (unsigned long long)k->start,
				      (unsigned long long)k->end);
	}
	mtx_unlock(&fake.lock);
	assert_string_equal(text, want);
}

static void becomes(uint64_t owner, const char *want)
{
	for (int i = 0; i < 500; i++) {
		bool none;

		mtx_lock(&fake.lock);
		none = fake.has[owner].n == 0;
		mtx_unlock(&fake.lock);
		if (none == !*want)
			break;
		usleep(10000);
	}
	has(owner, want);
}

static void a_waiter_gets_it_when_it_is_free(void **state)
{
	struct locks *l = *state;
	size_t waiters, holders;
	struct asker a;

	assert_int_equal(set(l, 0, F_WRLCK, 0, 99), 0);
	assert_int_equal(set(l, 1, F_RDLCK, 50, 60), -EAGAIN);
	begin(l, &a, 1, F_RDLCK, 50, 60);
	locks_count(l, &waiters, &holders);
	assert_int_equal(holders, 2);
	assert_int_equal(set(l, 0, F_UNLCK, 0, 70), 0);
	assert_int_equal(asker_status(&a), 0);
	has(0, "W 71 99");
	has(1, "R 50 60");
	assert_int_equal(locks_cancel(l, &a.q), CANCEL_LATE);
	asker_fini(&a);
	locks_close(l, 7, 0);
	assert_false(locks_held(l, 7, 0));
	assert_true(locks_held(l, 7, 1));
	locks_release(l, 100); /* nothing came through it but what is gone */
	has(1, "R 50 60");
	locks_release(l, 101);
	has(1, "");
	locks_count(l, &waiters, &holders);
	assert_int_equal(waiters, 0);
	assert_int_equal(holders, 0);
}

static void who_has_nothing_costs_nothing_to_close(void **state)
{
	struct locks *l = *state;
	int before;

	assert_int_equal(set(l, 0, F_WRLCK, 0, 99), 0);
	assert_int_equal(set(l, 0, F_UNLCK, 0, LOCK_EOF), 0);
	before = asked();
	assert_false(locks_held(l, 7, 0));
	locks_close(l, 7, 0);
	locks_close(l, 7, 3);
	locks_release(l, 100);
	assert_int_equal(asked(), before);
}

static void a_cancelled_waiter_is_gone_at_once(void **state)
{
	struct locks *l = *state;
	size_t waiters, holders;
	struct asker a;

	assert_int_equal(set(l, 0, F_WRLCK, 0, 99), 0);
	/* before it waits */
	asker_init(&a, 1, F_WRLCK, 0, 9);
	assert_int_equal(locks_set(l, &a.q, true), -EAGAIN);
	assert_int_equal(locks_cancel(l, &a.q), CANCEL_LEFT);
	assert_false(locks_wait(l, &a.q));
	asker_fini(&a);
	/* while it waits, or (then its end comes) is being asked for */
	begin(l, &a, 1, F_WRLCK, 0, 9);
	if (locks_cancel(l, &a.q) == CANCEL_LEFT)
		assert_int_equal(asker_status(&a), LOCK_GONE);
	asker_fini(&a);
	locks_count(l, &waiters, &holders);
	assert_int_equal(waiters, 0);
	assert_int_equal(holders, 1);
	locks_close(l, 7, 0);
	has(1, "");
}

/* cancelled while the engine hangs, and it gets the lock all the same */
static void cancelled_and_got(struct locks *l, const char *before)
{
	struct asker a;

	begin(l, &a, 1, F_WRLCK, 5, 14);
	hang(true);
	assert_int_equal(locks_cancel(l, &a.q), CANCEL_LEFT);
	/* the other one gives it up behind the engine's back */
	mtx_lock(&fake.lock);
	plock_fini(&fake.has[0]);
	mtx_unlock(&fake.lock);
	hang(false);
	assert_int_equal(asker_status(&a), LOCK_GONE);
	has(1, before);
	asker_fini(&a);
	assert_int_equal(set(l, 2, F_RDLCK, 5, 14), 0);
	locks_close(l, 7, 2);
}

static void what_comes_too_late_is_given_back(void **state)
{
	struct locks *l = *state;

	assert_int_equal(set(l, 0, F_RDLCK, 0, 99), 0);
	cancelled_and_got(l, "");
	/* what it had stays: a read lock in a part of it */
	assert_int_equal(set(l, 1, F_RDLCK, 10, 20), 0);
	assert_int_equal(set(l, 0, F_RDLCK, 0, 99), 0);
	cancelled_and_got(l, "R 10 20");
	locks_close(l, 7, 1);
	has(1, "");
}

static void an_unknown_outcome_is_put_right(void **state)
{
	struct locks *l = *state;

	/* it failed, and may have been done: then it is undone */
	failing(2);
	assert_int_equal(set(l, 0, F_WRLCK, 0, 9), -EIO);
	becomes(0, "");
	/* what had been there stays */
	failing(0);
	assert_int_equal(set(l, 1, F_RDLCK, 0, 9), 0);
	failing(2);
	assert_int_equal(set(l, 1, F_WRLCK, 5, 19), -EIO);
	for (int i = 0; i < 300 && still_failing(); i++)
		usleep(10000);
	assert_int_equal(set(l, 1, F_RDLCK, 0, 9), 0);
	has(1, "R 0 9");
	/* a close that cannot be told now is told later */
	failing(3);
	locks_close(l, 7, 1);
	assert_false(locks_held(l, 7, 1));
	becomes(1, "");
}

static void the_end_ends_every_wait(void **state)
{
	struct locks *l = *state;
	struct asker a[3];

	assert_int_equal(set(l, 0, F_WRLCK, 0, 99), 0);
	for (int i = 0; i < 3; i++)
		begin(l, &a[i], 1 + (uint64_t)i, F_WRLCK, 0, 9);
	locks_stop(l);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(asker_status(&a[i]), -ENOTCONN);
		asker_fini(&a[i]);
	}
	assert_int_equal(set(l, 1, F_WRLCK, 200, 300), -EIO);
}

struct swarm {
	struct locks *l;
	uint64_t owner;
	int inside, most, rounds;
};
static int inside;

static void *swarm_main(void *arg)
{
	struct swarm *s = arg;

	for (int i = 0; i < 200; i++) {
		struct asker a;
		int r;

		asker_init(&a, s->owner, F_WRLCK, 0, LOCK_EOF);
		r = locks_set(s->l, &a.q, true);
		if (r == -EAGAIN) {
			assert(locks_wait(s->l, &a.q));
			r = asker_status(&a);
		}
		assert(r == 0);
		s->most = MAX(s->most, __atomic_add_fetch(&inside, 1, __ATOMIC_RELAXED));
		__atomic_sub_fetch(&inside, 1, __ATOMIC_RELAXED);
		locks_close(s->l, 7, s->owner);
		asker_fini(&a);
	}
	return NULL;
}

static void a_crowd_goes_one_by_one(void **state)
{
	struct swarm s[OWNERS];
	pthread_t t[OWNERS];

	for (uint64_t i = 0; i < OWNERS; i++) {
		s[i] = (struct swarm){.l = *state, .owner = i};
		assert_int_equal(pthread_create(&t[i], NULL, swarm_main, &s[i]), 0);
	}
	for (int i = 0; i < OWNERS; i++) {
		pthread_join(t[i], NULL);
		assert_int_equal(s[i].most, 1);
		has((uint64_t)i, "");
	}
}

/* the volume has it of that owner */
static bool holds(uint64_t owner, uint64_t at)
{
	bool any = false;

	mtx_lock(&fake.lock);
	for (size_t i = 0; i < fake.has[owner].n; i++) {
		const struct meta_lock *x = &fake.has[owner].l[i];

		any |= x->start <= at && at <= x->end;
	}
	mtx_unlock(&fake.lock);
	return any;
}

struct hanging {
	struct locks *l;
	int status;
};

static void *set_hanging(void *arg)
{
	struct hanging *h = arg;

	h->status = set(h->l, 1, F_WRLCK, 30, 39);
	return NULL;
}

/* the session had lapsed: what the volume has of 1 and 2 is gone, and 3 got some of it */
static void what_was_given_up_is_taken_again_where_it_is_free(void **state)
{
	const struct meta_lock others = {F_WRLCK, 1, 20, 29};
	struct locks *l = *state;

	assert_int_equal(set(l, 1, F_WRLCK, 0, 9), 0);
	assert_int_equal(set(l, 1, F_RDLCK, 20, 29), 0);
	assert_int_equal(set(l, 1, F_WRLCK, 40, 49), 0);
	assert_int_equal(set(l, 2, F_RDLCK, 60, 69), 0);
	mtx_lock(&fake.lock);
	for (int i = 0; i < OWNERS; i++)
		plock_fini(&fake.has[i]);
	assert_int_equal(plock_set(&fake.has[3], &others), 0);
	fake.fail = 3; /* and some answers are lost meanwhile */
	mtx_unlock(&fake.lock);
	fake.base.lapsed(fake.base.lapsed_arg);
	for (int i = 0; i < 500 && !(holds(1, 0) && holds(1, 40) && holds(2, 60)); i++)
		usleep(10000);
	assert_true(holds(1, 0) && holds(1, 40) && holds(2, 60));
	assert_false(holds(1, 20));
	assert_true(holds(3, 20));
	/* it goes on: nobody is left busy */
	assert_int_equal(set(l, 1, F_UNLCK, 0, LOCK_EOF), 0);
	assert_int_equal(set(l, 2, F_WRLCK, 0, 9), 0);
	locks_close(l, 7, 2);
}

/* while a call is under way: once it has ended */
static void who_is_busy_takes_its_locks_again_too(void **state)
{
	struct locks *l = *state;
	struct hanging h = {.l = l};
	pthread_t t;

	assert_int_equal(set(l, 1, F_WRLCK, 0, 9), 0);
	mtx_lock(&fake.lock);
	fake.hang = true;
	mtx_unlock(&fake.lock);
	assert_int_equal(pthread_create(&t, NULL, set_hanging, &h), 0);
	mtx_lock(&fake.lock);
	while (!fake.hanging)
		cond_wait(&fake.changed, &fake.lock);
	plock_fini(&fake.has[1]);
	mtx_unlock(&fake.lock);
	fake.base.lapsed(fake.base.lapsed_arg);
	mtx_lock(&fake.lock);
	fake.hang = false;
	cond_broadcast(&fake.changed);
	mtx_unlock(&fake.lock);
	pthread_join(t, NULL);
	assert_int_equal(h.status, 0);
	for (int i = 0; i < 500 && !(holds(1, 0) && holds(1, 30)); i++)
		usleep(10000);
	assert_true(holds(1, 0) && holds(1, 30));
	locks_close(l, 7, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_waiter_gets_it_when_it_is_free, start, stop),
		cmocka_unit_test_setup_teardown(who_has_nothing_costs_nothing_to_close, start,
						stop),
		cmocka_unit_test_setup_teardown(a_cancelled_waiter_is_gone_at_once, start, stop),
		cmocka_unit_test_setup_teardown(what_comes_too_late_is_given_back, start, stop),
		cmocka_unit_test_setup_teardown(an_unknown_outcome_is_put_right, start, stop),
		cmocka_unit_test_setup_teardown(the_end_ends_every_wait, start, stop),
		cmocka_unit_test_setup_teardown(a_crowd_goes_one_by_one, start, stop),
		cmocka_unit_test_setup_teardown(what_was_given_up_is_taken_again_where_it_is_free,
						start, stop),
		cmocka_unit_test_setup_teardown(who_is_busy_takes_its_locks_again_too, start, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
