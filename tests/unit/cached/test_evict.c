/* SPDX-License-Identifier: Apache-2.0 */
/* The policies against plain models of them, with random steps and a printed seed. */
#include "tests/unit/check.h"

#include <time.h>

#include "cached/evict.h"

enum { NODES = 64, STEPS = 20000 };

/* SIEVE written down naively: an array, oldest first. hand: the place from which on the next victim
 * is looked for, NODES: from the oldest */
struct model {
	unsigned n, hand, order[NODES];
	bool seen[NODES], guest[NODES], in[NODES], sieve;
};

static void model_take_out(struct model *m, unsigned at)
{
	m->in[m->order[at]] = false;
	memmove(&m->order[at], &m->order[at + 1], (m->n - at - 1) * sizeof(m->order[0]));
	m->n--;
	if (m->hand == NODES)
		return;
	if (at < m->hand)
		m->hand--;
	for (unsigned i = m->hand; i < m->n; i++)
		if (!m->guest[m->order[i]])
			return;
	m->hand = NODES; /* nothing newer is left: from the oldest again */
}

static unsigned next_resident(const struct model *m, unsigned from)
{
	for (unsigned i = 0; i < m->n; i++)
		if (!m->guest[m->order[(from + i) % m->n]])
			return (from + i) % m->n;
	return m->n;
}

static unsigned model_victim(struct model *m)
{
	unsigned at, v;

	for (unsigned i = 0; i < m->n; i++)
		if (m->guest[m->order[i]]) {
			v = m->order[i];
			model_take_out(m, i);
			return v;
		}
	at = next_resident(m, m->sieve && m->hand != NODES ? m->hand : 0);
	while (m->sieve && m->seen[m->order[at]]) {
		m->seen[m->order[at]] = false;
		at = next_resident(m, (at + 1) % m->n);
	}
	v = m->order[at];
	m->hand = at;
	model_take_out(m, at);
	return v;
}

static void follows_its_model(evict_new_fn *make, bool sieve)
{
	unsigned seed = (unsigned)time(NULL);
	struct model m = {.sieve = sieve, .hand = NODES};
	struct evict_node nodes[NODES];
	struct evict *e = make();

	print_message("seed %u\n", seed);
	srandom(seed);
	assert_non_null(e);
	for (unsigned step = 0; step < STEPS; step++) {
		unsigned i = (unsigned)random() % NODES;

		switch (random() % 4) {
		case 0:
			if (m.in[i])
				break;
			m.in[i] = true;
			m.seen[i] = false;
			m.guest[i] = random() % 8 == 0;
			m.order[m.n++] = i;
			evict_add(e, &nodes[i], m.guest[i]);
			break;
		case 1:
			if (!m.in[i])
				break;
			m.seen[i] = true;
			evict_hit(e, &nodes[i]);
			break;
		case 2:
			if (random() % 4 || !m.in[i])
				break;
			for (unsigned at = 0; at < m.n; at++)
				if (m.order[at] == i) {
					model_take_out(&m, at);
					break;
				}
			evict_remove(e, &nodes[i]);
			break;
		default:
			if (random() % 2)
				break;
			if (!m.n)
				assert_null(evict_victim(e));
			else
				assert_ptr_equal(evict_victim(e), &nodes[model_victim(&m)]);
		}
		assert_int_equal(e->count, m.n);
	}
	evict_free(e);
}

static void sieve_follows_its_model(void **state)
{
	(void)state;
	follows_its_model(evict_sieve_new, true);
}

static void fifo_follows_its_model(void **state)
{
	(void)state;
	follows_its_model(evict_fifo_new, false);
}

static void guests_leave_first(void **state)
{
	struct evict *e = evict_sieve_new();
	struct evict_node old, guest, young;

	(void)state;
	evict_add(e, &old, false);
	evict_add(e, &guest, true);
	evict_add(e, &young, false);
	evict_hit(e, &guest);
	assert_ptr_equal(evict_victim(e), &guest);
	assert_ptr_equal(evict_victim(e), &old);
	assert_ptr_equal(evict_victim(e), &young);
	assert_null(evict_victim(e));
	evict_free(e);
}

static void what_was_used_stays_over_a_scan(void **state)
{
	struct evict_node hot[8], scan[64];
	struct evict *e = evict_sieve_new();

	(void)state;
	for (unsigned i = 0; i < 8; i++)
		evict_add(e, &hot[i], false);
	for (unsigned i = 0; i < 64; i++) {
		evict_hit(e, &hot[i % 8]);
		evict_add(e, &scan[i], false);
		if (i >= 8) {
			struct evict_node *v = evict_victim(e);

			assert_true(v >= scan && v < scan + 64);
		}
	}
	evict_free(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sieve_follows_its_model),
		cmocka_unit_test(fifo_follows_its_model),
		cmocka_unit_test(guests_leave_first),
		cmocka_unit_test(what_was_used_stays_over_a_scan),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
