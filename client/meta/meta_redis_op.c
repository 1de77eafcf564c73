/* SPDX-License-Identifier: Apache-2.0 */
/* How the Redis engine runs its scripts: arguments, tokens, errors, parts of replies, numbers from
 * counters. Any thread that may block.
 *
 * A slot is one changing operation at a time. _ops holds, by session and slot, the number and the
 * answer of the last one that wrote, so a script that is asked again, because its answer was lost,
 * answers the same and does nothing. */
#include "client/meta/meta_redis.h"

#include <inttypes.h>
#include <stdarg.h>

#include "common/clock.h"
#include "common/fiber.h"

enum { RETRY_US = 20000 };

void args_init(struct args *a, const struct meta_redis *mr)
{
	a->n = 0;
	a->used = 0;
	a->slot = -1;
	a->deadline_us = 0;
	args_text(a, mr->setting_key);
}

void args_bytes(struct args *a, const void *p, size_t n)
{
	assert(a->n < ARGS_MAX);
	a->v[a->n] = p;
	a->len[a->n++] = n;
}

void args_text(struct args *a, const char *s)
{
	args_bytes(a, s, strlen(s));
}

static char *args_room(struct args *a, unsigned n)
{
	char *p = a->scratch + a->used;

	assert(a->used + n <= sizeof(a->scratch));
	a->used += n;
	return p;
}

void args_u64(struct args *a, uint64_t v)
{
	char *p = args_room(a, 21);

	args_bytes(a, p, (size_t)snprintf(p, 21, "%" PRIu64, v));
}

void args_i64(struct args *a, int64_t v)
{
	char *p = args_room(a, 21);

	args_bytes(a, p, (size_t)snprintf(p, 21, "%" PRId64, v));
}

void args_be64(struct args *a, uint64_t v)
{
	char *p = args_room(a, 8);

	be64((uint8_t *)p, v);
	args_bytes(a, p, 8);
}

void args_time(struct args *a, struct time_ns t)
{
	uint8_t *p = (uint8_t *)args_room(a, 12);

	be64(p, (uint64_t)t.sec);
	for (int i = 0; i < 4; i++)
		p[8 + i] = (uint8_t)(t.nsec >> (24 - 8 * i));
	args_bytes(a, p, 12);
}

void args_now(struct args *a)
{
	clock_real(&a->now.sec, &a->now.nsec);
	args_time(a, a->now);
}

void args_gids(struct args *a, const struct meta_ctx *c, struct str *buf)
{
	for (size_t i = 0; i <= c->n_gids; i++) {
		uint32_t gid = i ? c->gids[i - 1] : c->gid;
		const uint8_t b[4] = {(uint8_t)(gid >> 24), (uint8_t)(gid >> 16),
				      (uint8_t)(gid >> 8), (uint8_t)gid};

		str_addn(buf, b, sizeof(b));
	}
	args_bytes(a, str_c(buf), buf->len);
}

/* -1: none until then */
static int slot_take(struct meta_redis *mr, uint64_t deadline_us, uint64_t *ret_seq)
{
	int slot = -1;

	mtx_lock(&mr->base.lock);
	while (mr->slots == UINT64_MAX && clock_left(deadline_us))
		cond_wait_us(&mr->slot_free, &mr->base.lock, clock_left(deadline_us));
	if (mr->slots != UINT64_MAX) {
		slot = __builtin_ctzll(~mr->slots);
		mr->slots |= UINT64_C(1) << slot;
	}
	*ret_seq = ++mr->seq;
	mtx_unlock(&mr->base.lock);
	return slot;
}

void op_begin_until(struct meta_redis *mr, struct args *a, uint64_t deadline_us)
{
	char *token = args_room(a, 28), *number = args_room(a, SEQ_LEN + 1);
	uint64_t seq;
	int slot = slot_take(mr, deadline_us, &seq);

	a->slot = slot < 0 ? SLOT_NONE : slot;
	a->deadline_us = deadline_us;
	args_bytes(a, token,
		   (size_t)snprintf(token, 28, "%" PRIu64 "_%d", session_now(&mr->base), slot));
	snprintf(number, SEQ_LEN + 1, "%08" PRIx32 "%016" PRIx64, mr->nonce, seq);
	args_bytes(a, number, SEQ_LEN);
	args_now(a);
}

void op_begin(struct meta_redis *mr, struct args *a)
{
	op_begin_until(mr, a, op_deadline(mr));
}

void op_end(struct meta_redis *mr, struct args *a)
{
	if (a->slot >= 0) {
		mtx_lock(&mr->base.lock);
		mr->slots &= ~(UINT64_C(1) << a->slot);
		cond_signal(&mr->slot_free);
		mtx_unlock(&mr->base.lock);
	}
	a->slot = -1;
}

uint64_t op_deadline(const struct meta_redis *mr)
{
	return clock_us() + mr->base.conf.timeout_us;
}

uint64_t data_deadline(const struct meta_redis *mr)
{
	return clock_us() + mr->base.conf.data_timeout_us;
}

int op_error(int r)
{
	switch (r) {
	case -ETIMEDOUT:
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -EPIPE:
	case -EAGAIN:
	case -ENOEXEC:
	case -EPROTO:
	case -EBADMSG:
		return -EIO;
	default:
		return r;
	}
}

int mark_take(struct meta_redis *mr, struct mark *ret)
{
	struct meta *m = &mr->base;
	struct mark k = {.id_len = UUID_TEXT};
	bool gone;

	mtx_lock(&m->lock);
	gone = m->gone;
	memcpy(k.id, m->setting->uuid, UUID_TEXT); /* a setting's successor has the same */
	if (m->has_gen) {
		k.id_len = sizeof(m->gen.b);
		memcpy(k.id, m->gen.b, sizeof(m->gen.b));
	}
	k.volume = m->volume;
	/* who cannot repair a database that went back does not look for it */
	k.highest_slice = m->conf.read_only ? 0 : mr->highest_slice;
	mtx_unlock(&m->lock);
	if (gone)
		return -EIO;
	*ret = k;
	return 0;
}

const char *mark_key(const struct mark *k)
{
	return k->id_len == UUID_TEXT ? "setting" : "_gen";
}

bool mark_fits(const struct mark *k, const struct redis_reply *gen,
	       const struct redis_reply *setting)
{
	size_t n;
	const char *p = reply_text(gen, &n);

	if (p || k->id_len != UUID_TEXT)
		return p && n == k->id_len && !memcmp(p, k->id, n);
	p = reply_text(setting, &n);
	return p && memmem(p, n, k->id, k->id_len);
}

static int eval(struct meta_redis *mr, struct redis *redis, enum script s, struct args *a,
		uint64_t deadline_us, const struct mark *k, struct redis_reply **ret)
{
	const char **v = (const char **)(uintptr_t)a->v;
	char highest[21], log[42] = "";
	uint64_t begin = clock_us();
	int n = a->n, r;

	if (a->slot == SLOT_NONE)
		return -ETIMEDOUT;
	if (meta_setting(&mr->base)->change_log)
		snprintf(log, sizeof(log), "%" PRIu64 ",%" PRIu64, session_now(&mr->base),
			 __atomic_add_fetch(&mr->logged, 1, __ATOMIC_RELAXED));
	a->v[n] = log;
	a->len[n++] = strlen(log);
	a->v[n] = highest;
	a->len[n++] = (size_t)snprintf(highest, sizeof(highest), "%" PRIu64, k->highest_slice);
	a->v[n] = k->id;
	a->len[n++] = k->id_len;
	r = redis_eval(redis, deadline_us, &mr->scripts[s], 1, n, v, a->len, ret);
	a->v[a->n] = a->v[a->n + 1] = a->v[a->n + 2] = NULL; /* of this attempt only */
	metric_observe_us(mr->seconds[s], clock_us() - begin);
	return r;
}

/* until the mark is the volume's */
static int eval_marked(struct meta_redis *mr, struct redis *redis, enum script s, struct args *a,
		       uint64_t deadline_us, struct mark *ret_mark, struct redis_reply **ret)
{
	for (int i = 0; i < MARK_TRIES; i++) {
		struct mark k;
		int r = mark_take(mr, &k);

		if (r)
			return r;
		r = eval(mr, redis, s, a, deadline_us, &k, ret);
		if (r != -ESTALE) {
			*ret_mark = k;
			return r;
		}
		r = generation_check(mr, &k, deadline_us);
		if (r)
			return r;
	}
	return -EIO;
}

int op_eval_once(struct meta_redis *mr, enum script s, struct args *a, uint64_t deadline_us,
		 const struct mark *k, struct redis_reply **ret)
{
	return op_error(eval(mr, mr->redis, s, a, deadline_us, k, ret));
}

int op_eval_until(struct meta_redis *mr, enum script s, struct args *a, uint64_t deadline_us,
		  struct mark *ret_mark, struct redis_reply **ret)
{
	return op_error(eval_marked(mr, mr->redis, s, a, deadline_us, ret_mark, ret));
}

int op_eval(struct meta_redis *mr, enum script s, struct args *a, struct redis_reply **ret)
{
	struct mark k;

	return op_eval_until(mr, s, a, a->deadline_us ? a->deadline_us : op_deadline(mr), &k, ret);
}

int own_eval(struct meta_redis *mr, enum script s, struct args *a, uint64_t deadline_us,
	     struct redis_reply **ret)
{
	struct mark k;

	return eval_marked(mr, mr->own_redis, s, a, deadline_us, &k, ret);
}

static int get_once(struct meta_redis *mr, const char *kind, uint64_t inode, const struct mark *k,
		    uint64_t deadline_us, struct redis_reply **ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *p = mr->prefix;
	int r = redis_once(mr->redis, deadline_us, &reply, "MGET %s%s%llu %s_gen %s%s", p, kind,
			   (unsigned long long)inode, p, p, mark_key(k));

	if (r)
		return op_error(r);
	if (!mark_fits(k, reply_at(reply, 1), reply_at(reply, 2)))
		return -ESTALE;
	*ret = TAKE_PTR(reply);
	return 0;
}

int op_get(struct meta_redis *mr, const char *kind, uint64_t inode, struct redis_reply **ret)
{
	uint64_t deadline = op_deadline(mr);
	struct mark k;
	int r = -ESTALE;

	for (int i = 0; i < MARK_TRIES && r == -ESTALE; i++) {
		r = mark_take(mr, &k);
		if (!r)
			r = get_once(mr, kind, inode, &k, deadline, ret);
		if (r == -ESTALE && generation_check(mr, &k, deadline))
			r = -EIO;
	}
	return r == -ESTALE ? -EIO : r;
}

int op_cmdv(struct meta_redis *mr, int argc, const char **argv, const size_t *lens,
	    struct redis_reply **ret)
{
	uint64_t deadline = op_deadline(mr);
	struct redis_conn *c;
	int r;

	for (;;) {
		r = redis_acquire(mr->redis, deadline, &c);
		if (r)
			return op_error(r);
		r = redis_cmdv(c, deadline, ret, argc, argv, lens);
		redis_release(c);
		if (op_error(r) != -EIO || r == -EIO || clock_left(deadline) == 0)
			return op_error(r);
		fiber_sleep_us(RETRY_US);
	}
}

int reply_attr(const struct redis_reply *r, struct attr *ret)
{
	size_t n;
	const char *p = r ? reply_text(r, &n) : NULL;

	return p && attr_decode((const uint8_t *)p, n, ret) == 0 ? 0 : -EIO;
}

int reply_be64(const struct redis_reply *r, uint64_t *ret)
{
	size_t n;
	const char *p = r ? reply_text(r, &n) : NULL;
	uint64_t v = 0;

	if (!p || n != 8)
		return -EIO;
	for (int i = 0; i < 8; i++)
		v = v << 8 | (uint8_t)p[i];
	*ret = v;
	return 0;
}

bool reply_is(const struct redis_reply *r, const char *text)
{
	size_t n;
	const char *p = r ? reply_text(r, &n) : NULL;

	return p && n == strlen(text) && !memcmp(p, text, n);
}

static int counter_take(struct meta_redis *mr, bool slices, struct mark *ret_mark, uint64_t *ret)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	uint64_t batch = slices ? SLICE_BATCH : INODE_BATCH;
	struct args args;
	int r;

	args_init(&args, mr);
	args_text(&args, slices ? "nextchunk" : "nextinode");
	args_u64(&args, batch);
	args_now(&args);
	r = op_eval_until(mr, SC_COUNTER, &args, slices ? data_deadline(mr) : op_deadline(mr),
			  ret_mark, &reply);
	if (r)
		return r;
	if (reply_int(reply) < (int64_t)batch)
		return -EIO;
	*ret = (uint64_t)reply_int(reply);
	return 0;
}

static bool pool_next_locked(struct meta_redis *mr, struct id_pool *pool, uint64_t *ret,
			     struct hash128 *ret_volume) REQUIRES(mr->base.lock)
{
	if (pool->next >= pool->end)
		return false;
	*ret = pool->next++;
	*ret_volume = mr->base.volume; /* pools are emptied when it moves */
	return true;
}

static void pool_fill_locked(struct meta_redis *mr, struct id_pool *pool, const struct mark *k,
			     uint64_t last) REQUIRES(mr->base.lock)
{
	bool slices = pool == &mr->slices;

	if (slices)
		mr->highest_slice = MAX(mr->highest_slice, last);
	if (memcmp(k->volume.b, mr->base.volume.b, sizeof(k->volume.b)) != 0)
		return; /* it moved: these are of the old one */
	pool->next = last - (slices ? SLICE_BATCH : INODE_BATCH) + 1;
	/* number 1 is the root's; numbers of slices begin at 1 */
	if (!slices && pool->next <= INODE_ROOT)
		pool->next = INODE_ROOT + 1;
	pool->end = last + 1;
}

int id_pool_take(struct meta_redis *mr, struct id_pool *pool, uint64_t *ret,
		 struct hash128 *ret_volume)
{
	struct hash128 volume = {{0}};
	uint64_t last = 0, got = 0;
	struct mark k;
	bool have;
	int r = 0;

	for (int i = 0; i < MARK_TRIES && !r; i++) {
		mtx_lock(&mr->base.lock);
		while (!(have = pool_next_locked(mr, pool, &got, &volume)) && pool->filling)
			cond_wait(&mr->pool_filled, &mr->base.lock);
		if (!have)
			pool->filling = true; /* one thread asks, the others wait for it */
		mtx_unlock(&mr->base.lock);
		if (!have) {
			r = counter_take(mr, pool == &mr->slices, &k, &last);
			mtx_lock(&mr->base.lock);
			pool->filling = false;
			if (!r)
				pool_fill_locked(mr, pool, &k, last);
			have = pool_next_locked(mr, pool, &got, &volume);
			cond_broadcast(&mr->pool_filled);
			mtx_unlock(&mr->base.lock);
		}
		if (have) {
			*ret = got;
			*ret_volume = volume;
			return 0;
		}
	}
	return r ? r : -EIO;
}

void nextchunk_seen(struct meta_redis *mr, const struct redis_reply *text)
{
	int64_t v = reply_int(text);

	mtx_lock(&mr->base.lock);
	if (v > 0)
		mr->highest_slice = MAX(mr->highest_slice, (uint64_t)v);
	mtx_unlock(&mr->base.lock);
}
