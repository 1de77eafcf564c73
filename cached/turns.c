/* SPDX-License-Identifier: Apache-2.0 */
/* Turns of connections, by bytes (turns.h): deficit round robin. A connection at the head of the
 * list that cannot pay for its next call gets QUANTUM more and goes to the end; so each goes on by
 * as many bytes as the others, whatever the sizes.
 *
 *	a call is	that is (and listed by its block)
 *	in line		in its connection's line, which is in the list of its class
 *			turns_wait
 *	posted		counted in bytes, on its way to its connection's loop
 *			take_locked -> go_job
 *	under way	with the chain
 *			go -> turns_end
 *
 * Any thread, one leaf lock; a line belongs to its connection's loop but for what the lock
 * covers. */
#include "cached/turns.h"

#include "cached/conn.h"

enum { QUANTUM = 1 << 20 };

int turns_init(struct turns *t, size_t max)
{
	int r = hashmap_init(&t->calls, 256);

	if (r < 0)
		return r;
	mtx_init(&t->lock);
	t->bytes = 0;
	t->max = max;
	for (int c = 0; c < TURN_CLASSES; c++)
		list_init(&t->conns[c]);
	return 0;
}

void turns_fini(struct turns *t)
{
	assert(!t->bytes && !t->calls.count);
	hashmap_fini(&t->calls);
	mtx_fini(&t->lock);
}

void turns_line_init(struct turns_line line[TURN_CLASSES])
{
	for (int c = 0; c < TURN_CLASSES; c++) {
		list_init(&line[c].calls);
		list_init(&line[c].link);
		line[c].credit = 0;
	}
}

static void line_close_locked(struct turns_line *line)
{
	list_del(&line->link);
	list_init(&line->link);
	line->credit = 0;
}

/* those whose turn has come, into ready */
static void take_locked(struct turns *t, struct list_node *ready) REQUIRES(t->lock)
{
	for (int c = 0; c < TURN_CLASSES; c++) {
		size_t most = c == TURN_MEMBER	 ? t->max / 8 * 9
			      : c == TURN_DEMAND ? t->max
						 : t->max / 4 * 3;

		while (!list_empty(&t->conns[c]) && t->bytes < most) {
			struct turns_line *line =
				container_of(t->conns[c].next, struct turns_line, link);
			struct call *k = container_of(line->calls.next, struct call, link);

			if (line->credit < k->turn_bytes) {
				line->credit += QUANTUM;
				list_del(&line->link);
				list_add_tail(&t->conns[c], &line->link);
				continue;
			}
			line->credit -= k->turn_bytes;
			t->bytes += k->turn_bytes;
			k->under_way = true;
			list_del(&k->link);
			list_add_tail(ready, &k->link);
			if (list_empty(&line->calls))
				line_close_locked(line);
		}
		/* what is ahead waits until no demand does */
		if (!list_empty(&t->conns[c]))
			return;
	}
}

static void go_job(struct loop_job *job)
{
	struct call *k = container_of(job, struct call, job);
	struct conn *c = k->conn;

	c->busy++;
	if (c->state == CONN_CLOSED) {
		turns_end(c->worker->conf->turns, k);
		call_free(k);
	} else {
		list_add_tail(&c->calls, &k->link);
		k->go(k);
		conn_run(c);
	}
	c->busy--;
	conn_settle(c);
}

/* now: the call that may go on at once, on its own loop */
static bool start(struct list_node *ready, struct call *now)
{
	struct list_node *n;
	bool found = false;

	while ((n = list_pop(ready))) {
		struct call *k = container_of(n, struct call, link);

		list_init(&k->link);
		if (k == now) {
			found = true;
			continue;
		}
		k->job.fn = go_job;
		loop_post(k->conn->worker->loop, &k->job);
	}
	return found;
}

void turns_wait(struct turns *t, struct call *k, enum turn_class class, size_t bytes,
		void (*go)(struct call *k))
{
	struct conn *c = k->conn;
	struct turns_line *line = &c->line[class];
	struct list_node ready;

	list_init(&ready);
	k->go = go;
	k->turn_bytes = bytes;
	mtx_lock(&t->lock);
	if (list_empty(&line->calls))
		list_add_tail(&t->conns[class], &line->link);
	list_add_tail(&line->calls, &k->link);
	hashmap_add(&t->calls, &k->turn_node, k->key.digest);
	take_locked(t, &ready);
	mtx_unlock(&t->lock);
	if (!start(&ready, k))
		return;
	list_add_tail(&c->calls, &k->link);
	go(k);
}

void turns_end(struct turns *t, struct call *k)
{
	struct list_node ready;

	if (!k->under_way)
		return;
	k->under_way = false;
	list_init(&ready);
	mtx_lock(&t->lock);
	assert(t->bytes >= k->turn_bytes);
	t->bytes -= k->turn_bytes;
	hashmap_del(&t->calls, &k->turn_node);
	take_locked(t, &ready);
	mtx_unlock(&t->lock);
	(void)start(&ready, NULL);
}

static bool call_eq(const struct hash_node *n, const void *key)
{
	return block_key_eq(&container_of(n, const struct call, turn_node)->key, key);
}

bool turns_has(struct turns *t, const struct block_key *k)
{
	bool has;

	mtx_lock(&t->lock);
	has = hashmap_find(&t->calls, k->digest, call_eq, k);
	mtx_unlock(&t->lock);
	return has;
}

void turns_drop(struct turns *t, struct conn *c)
{
	struct list_node gone, *n;

	list_init(&gone);
	mtx_lock(&t->lock);
	for (int i = 0; i < TURN_CLASSES; i++) {
		list_for_each(n, &c->line[i].calls)
			hashmap_del(&t->calls, &container_of(n, struct call, link)->turn_node);
		list_splice_tail(&gone, &c->line[i].calls);
		line_close_locked(&c->line[i]);
	}
	mtx_unlock(&t->lock);
	while ((n = list_pop(&gone)))
		call_free(container_of(n, struct call, link));
}
