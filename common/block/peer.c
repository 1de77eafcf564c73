/* SPDX-License-Identifier: Apache-2.0 */
/* All daemons this process talks to, and how each of them is doing. Threads: peers_get, peer_start,
 * health from anywhere; the probe lives on the small connection's loop.
 *
 * Health of a peer, under its leaf lock:
 *	good	calls are sent
 *	down	the last try to connect failed: calls end at once	peer_connect_failed
 *	slow	a hedge was needed: callers ask another first		peer_note, probe_fire
 *
 * Both start the probe (an empty STAT on the small connection), which is repeated with back-off and
 * ends them: any connection that gets ready ends down, an answer to the probe in time ends slow.
 * The probe gives up after PROBE_TRIES failures and is started again by the next call that is
 * refused. */
#include "common/block/peer.h"

#include "common/block/peer_conn.h"
#include "common/clock.h"
#include "common/log.h"

enum {
	PROBE_FIRST_US = 200000,
	PROBE_MAX_US = 2000000,
	PROBE_TRIES = 60,
	LATENCY_SAMPLES = 4096,
	LATENCY_ENOUGH = 64,
	DAMAGED_MAX = 8,
};

/* --- latency --- */

static unsigned latency_bucket(uint64_t us)
{
	unsigned msb, b;

	if (us < 4)
		return (unsigned)us;
	msb = 63 - (unsigned)__builtin_clzll(us);
	b = msb * 4 + (unsigned)(us >> (msb - 2) & 3) - 4;
	return MIN(b, (unsigned)ARRAY_LEN(((struct peer_latency *)0)->bucket) - 1);
}

/* the upper edge */
static uint64_t latency_edge(unsigned b)
{
	if (b < 4)
		return b + 1;
	return ((uint64_t)(b % 4) + 5) << ((b + 4) / 4 - 2);
}

static void latency_add(struct peer_latency *l, uint64_t us)
{
	l->bucket[latency_bucket(us)]++;
	if (++l->n < LATENCY_SAMPLES)
		return;
	/* the past counts half */
	l->n = 0;
	for (unsigned i = 0; i < ARRAY_LEN(l->bucket); i++)
		l->n += l->bucket[i] /= 2;
}

static uint64_t latency_p99(const struct peer_latency *l)
{
	uint32_t above = l->n / 100, seen = 0;

	if (l->n < LATENCY_ENOUGH)
		return 0;
	for (unsigned i = ARRAY_LEN(l->bucket); i-- > 0;) {
		seen += l->bucket[i];
		if (seen > above)
			return latency_edge(i);
	}
	return 0;
}

void peer_observe(struct peer *p, uint64_t us)
{
	mtx_lock(&p->lock);
	latency_add(&p->latency, us);
	mtx_unlock(&p->lock);
	metric_observe_us(p->peers->latency, us);
}

/* --- health --- */

void peer_connected(struct peer *p)
{
	mtx_lock(&p->lock);
	p->down = false;
	p->error = 0;
	mtx_unlock(&p->lock);
}

static void peer_start_probing(struct peer *p)
{
	bool start;

	mtx_lock(&p->lock);
	start = !p->probing;
	p->probing = true;
	mtx_unlock(&p->lock);
	if (start)
		loop_post(p->conn[CONN_SMALL].loop, &p->probe_job);
}

void peer_connect_failed(struct peer *p, int status)
{
	mtx_lock(&p->lock);
	p->down = true;
	p->error = status;
	mtx_unlock(&p->lock);
	if (!__atomic_load_n(&p->peers->closing, __ATOMIC_ACQUIRE))
		peer_start_probing(p);
}

bool peer_gate(struct peer *p, int *ret_status)
{
	bool down;

	mtx_lock(&p->lock);
	down = p->down;
	if (down)
		*ret_status = p->error;
	mtx_unlock(&p->lock);
	if (down)
		peer_start_probing(p);
	return !down;
}

/* how long the loops that read from it have not run */
static uint64_t stood_still(const struct peer *p, uint64_t now)
{
	uint64_t us = 0;

	for (unsigned i = 0; i < CONN_COUNT; i++) {
		uint64_t due = __atomic_load_n(&p->conn[i].sweep_us, __ATOMIC_RELAXED);

		if (due && now > due)
			us = MAX(us, now - due);
	}
	return us;
}

void peer_health(struct peer *p, struct peer_health *ret)
{
	uint64_t now = clock_us(), rx = __atomic_load_n(&p->last_rx_us, __ATOMIC_RELAXED);
	struct peer_health h = {
		.in_flight = __atomic_load_n(&p->in_flight, __ATOMIC_RELAXED),
		.idle_us = now > rx ? now - rx : 0,
	};

	h.idle_us -= MIN(h.idle_us, stood_still(p, now));

	mtx_lock(&p->lock);
	h.down = p->down;
	h.slow = p->slow;
	h.error = p->error;
	h.p99_us = latency_p99(&p->latency);
	mtx_unlock(&p->lock);
	*ret = h;
}

void peer_note(struct peer *p, int status)
{
	bool probe = false, news = false;

	mtx_lock(&p->lock);
	if (status == 0) {
		p->damaged = 0;
	} else if (status == -ETIMEDOUT) {
		news = !p->slow;
		p->slow = probe = true;
	} else if (status == -EBADMSG && ++p->damaged >= DAMAGED_MAX) {
		p->damaged = 0;
		news = !p->slow;
		p->slow = probe = true;
	}
	mtx_unlock(&p->lock);
	if (news)
		metric_add(p->peers->slow, 1);
	if (probe)
		peer_start_probing(p);
}

void peer_probe(struct peer *p)
{
	peer_start_probing(p);
}

/* --- the probe --- */

static void probe_end(struct peer *p, bool answered)
{
	uint64_t us = PROBE_FIRST_US;
	bool again;

	mtx_lock(&p->lock);
	if (answered)
		p->slow = false;
	p->probe_failures = answered ? 0 : p->probe_failures + 1;
	again = (p->down || p->slow) && p->probe_failures < PROBE_TRIES &&
		!__atomic_load_n(&p->peers->closing, __ATOMIC_RELAXED);
	p->probing = again;
	mtx_unlock(&p->lock);
	if (!again) {
		p->probe_failures = 0;
		return;
	}
	us <<= MIN(p->probe_failures, 8U);
	loop_timer_start(&p->probe_timer, MIN(us, (uint64_t)PROBE_MAX_US));
}

static void probe_done(struct peer_call *call, int status)
{
	struct peer *p = container_of(call, struct peer, probe_call);

	p->probe_out = false;
	loop_timer_stop(&p->probe_timer);
	if (__atomic_load_n(&p->peers->closing, __ATOMIC_RELAXED))
		return;
	probe_end(p, status == 0);
}

/* the timer: a probe is due, or the one on its way is late. It stays on its way: its answer, when
 * the daemon lives again, ends slow. */
static void probe_fire(struct loop_timer *t)
{
	struct peer *p = container_of(t, struct peer, probe_timer);

	if (p->probe_out) {
		mtx_lock(&p->lock);
		p->slow = true;
		mtx_unlock(&p->lock);
		return;
	}
	p->probe_call = (struct peer_call){
		.op = OP_STAT,
		.timeout_us = PEER_PROBE_US,
		.fd = -1,
		.done = probe_done,
		.probe = true,
		.peer = p,
		.conn = &p->conn[CONN_SMALL],
	};
	p->probe_out = true;
	__atomic_fetch_add(&p->in_flight, 1, __ATOMIC_RELAXED);
	loop_timer_start(t, PEER_PROBE_US);
	conn_submit(&p->conn[CONN_SMALL], &p->probe_call);
	conn_flush(&p->conn[CONN_SMALL]);
}

static void probe_job(struct loop_job *job)
{
	struct peer *p = container_of(job, struct peer, probe_job);

	if (__atomic_load_n(&p->peers->closing, __ATOMIC_RELAXED))
		return;
	p->probe_failures = 0;
	/* a connect that was refused is not repeated at once */
	if (p->conn[CONN_SMALL].retry_us > clock_us())
		loop_timer_start(&p->probe_timer, PROBE_FIRST_US);
	else
		probe_fire(&p->probe_timer);
}

/* --- calls --- */

static void call_job(struct loop_job *job)
{
	struct peer_call *call = container_of(job, struct peer_call, job);
	struct peer_conn *c = call->conn;
	unsigned more = __atomic_sub_fetch(&c->posted, 1, __ATOMIC_ACQ_REL);

	conn_submit(c, call);
	/* those behind in the mailbox go out in one piece with this one */
	if (!more || c->n_queue >= MSG_MGET_MAX)
		conn_flush(c);
}

void peer_start(struct peer *p, struct peer_call *call, bool bulk)
{
	struct peer_conn *c = &p->conn[bulk ? CONN_BULK : CONN_SMALL];

	assert(call->head_len <= sizeof(call->head));
	assert(!call->in || call->in_off + call->in_cap <= call->in->cap);
	call->peer = p;
	call->conn = c;
	call->state = CALL_POSTED;
	call->filled = call->probe = call->held = false;
	call->fd = -1;
	call->verdict = ST_OK;
	call->reason[0] = '\0';
	call->in_len = 0;
	call->job.fn = call_job;
	__atomic_fetch_add(&c->posted, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&p->in_flight, 1, __ATOMIC_RELAXED);
	loop_post(c->loop, &call->job);
}

struct loop *peer_loop(const struct peer *p, bool bulk)
{
	return p->conn[bulk ? CONN_BULK : CONN_SMALL].loop;
}

static void tell_done(struct peer_call *call, int status)
{
	(void)status;
	free(call);
}

void peer_tell(struct peer *p, bool bulk, uint8_t op, const uint8_t *body, size_t n)
{
	struct peer_call *call = calloc(1, sizeof(*call));

	assert(n <= sizeof(call->head));
	if (!call)
		return;
	call->op = op;
	call->quiet_us = 10000000;
	memcpy(call->head, body, n);
	call->head_len = n;
	call->done = tell_done;
	peer_start(p, call, bulk);
}

const char *peer_name(const struct peer *p)
{
	return p->name;
}

bool peer_is_local(const struct peer *p)
{
	return p->local;
}

/* --- all of them --- */

struct addr_key {
	const char *addr;
	uint16_t port;
};

static bool peer_eq(const struct hash_node *n, const void *key)
{
	const struct peer *p = container_of((struct hash_node *)(uintptr_t)n, struct peer, node);
	const struct addr_key *k = key;

	return p->port == k->port && strcmp(p->addr, k->addr) == 0;
}

static struct peer *peer_new(struct peers *ps, const char *addr, uint16_t port)
{
	struct peer *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->peers = ps;
	snprintf(p->addr, sizeof(p->addr), "%s", addr);
	p->port = port;
	p->local = addr[0] == '/';
	if (p->local)
		snprintf(p->name, sizeof(p->name), "%s", addr);
	else
		snprintf(p->name, sizeof(p->name), strchr(addr, ':') ? "[%s]:%u" : "%s:%u", p->addr,
			 (unsigned)port);
	mtx_init(&p->lock);
	p->last_rx_us = clock_us();
	p->probe_job.fn = probe_job;
	return p;
}

/* which loops: those for blocks are dealt out in turn, and a peer's other one is its neighbour's,
 * so that with two loops and several peers both carry blocks */
static void peer_place(struct peer *p, unsigned n)
{
	struct peers_conf *conf = &p->peers->conf;

	for (unsigned i = 0; i < CONN_COUNT; i++)
		conn_init(&p->conn[i], p, conf->loops[(n + i) % conf->n_loops]);
	loop_timer_init(&p->probe_timer, p->conn[CONN_SMALL].loop, probe_fire);
}

static void peer_free(struct peer *p)
{
	mtx_fini(&p->lock);
	free(p);
}

/* they are kept for as long as the process lives */
static void say_full(const char *addr)
{
	static struct log_rate rate;
	unsigned suppressed;

	if (log_rate_ok(&rate, 60000000, &suppressed))
		log_warn("member at %s cannot be asked: %d addresses of members are known already; "
			 "a restart forgets those of before (suppressed=%u)",
			 addr, CLUSTER_MEMBERS_MAX, suppressed);
}

struct peer *peers_get(struct peers *ps, const char *addr, uint16_t port)
{
	struct addr_key k = {addr, port};
	uint64_t hash = hash64(addr, strlen(addr)) + port;
	struct hash_node *n;
	struct peer *p;
	bool full;

	if (strlen(addr) >= MEMBER_ADDR_MAX)
		return NULL;
	mtx_lock(&ps->lock);
	n = hashmap_find(&ps->map, hash, peer_eq, &k);
	mtx_unlock(&ps->lock);
	if (n)
		return container_of(n, struct peer, node);
	p = peer_new(ps, addr, port);
	if (!p)
		return NULL;
	mtx_lock(&ps->lock);
	n = hashmap_find(&ps->map, hash, peer_eq, &k);
	/* whoever closes walks over all, without the lock */
	if (!n && ps->n < CLUSTER_MEMBERS_MAX && !__atomic_load_n(&ps->closing, __ATOMIC_RELAXED)) {
		peer_place(p, ps->n++);
		hashmap_add(&ps->map, &p->node, hash);
		list_add_tail(&ps->all, &p->link);
		n = &TAKE_PTR(p)->node;
	}
	full = ps->n >= CLUSTER_MEMBERS_MAX;
	mtx_unlock(&ps->lock);
	if (p)
		peer_free(p);
	if (!n && full)
		say_full(addr);
	return n ? container_of(n, struct peer, node) : NULL;
}

static struct metric *calls_metric(struct metrics *m, const char *labels)
{
	return metrics_get(m, "stoke_peer_calls_total", labels, METRIC_COUNTER,
			   "calls to other daemons, by outcome");
}

static int peers_metrics(struct peers *ps, struct metrics *m)
{
	if (!m)
		return 0;
	ps->ok = calls_metric(m, "result=\"ok\"");
	ps->failed = calls_metric(m, "result=\"failed\"");
	ps->timed_out = calls_metric(m, "result=\"timeout\"");
	ps->held = calls_metric(m, "result=\"held\"");
	ps->connects = metrics_get(m, "stoke_peer_connects_total", "result=\"ok\"", METRIC_COUNTER,
				   "connections to other daemons, by outcome");
	ps->refused = metrics_get(m, "stoke_peer_connects_total", "result=\"failed\"",
				  METRIC_COUNTER, "connections to other daemons, by outcome");
	ps->latency = metrics_get(m, "stoke_peer_seconds", "", METRIC_HISTOGRAM,
				  "answers of other daemons, without those that had to fetch");
	ps->slow =
		metrics_get(m, "stoke_peer_slow_total", "", METRIC_COUNTER,
			    "times that a daemon was set behind the others, because it was silent "
			    "or sent damaged blocks");
	if (!ps->slow || !ps->ok || !ps->failed || !ps->held || !ps->timed_out || !ps->connects ||
	    !ps->refused || !ps->latency)
		return -ENOMEM;
	return 0;
}

int peers_new(const struct peers_conf *conf, struct peers **ret)
{
	struct peers *ps = calloc(1, sizeof(*ps));
	int r;

	assert(conf->n_loops > 0);
	if (!ps)
		return -ENOMEM;
	ps->conf = *conf;
	mtx_init(&ps->lock);
	list_init(&ps->all);
	r = hashmap_init(&ps->map, 64);
	if (r < 0)
		goto out;
	r = peers_metrics(ps, conf->metrics);
	if (r < 0)
		goto out;
	r = workq_new("resolve", 1, 64, &ps->resolver);
	if (r < 0)
		goto out;
	*ret = ps;
	return 0;
out:
	hashmap_fini(&ps->map);
	mtx_fini(&ps->lock);
	free(ps);
	return r;
}

struct closing {
	struct peers *peers;
	struct loop *loop;
};

static void peers_close_on(void *arg)
{
	struct closing *cl = arg;
	struct list_node *n;

	/* nobody adds any more: the list needs no lock */
	list_for_each(n, &cl->peers->all)
	{
		struct peer *p = container_of(n, struct peer, link);

		if (p->conn[CONN_SMALL].loop == cl->loop)
			loop_timer_stop(&p->probe_timer);
		for (unsigned i = 0; i < CONN_COUNT; i++)
			if (p->conn[i].loop == cl->loop && p->conn[i].state != CONN_CLOSED)
				conn_close(&p->conn[i]);
	}
}

static void nothing(void *arg)
{
	(void)arg;
}

void peers_set_volume(struct peers *ps, const struct hash128 *volume)
{
	mtx_lock(&ps->lock);
	ps->conf.id.volume = *volume;
	mtx_unlock(&ps->lock);
}

void peers_close(struct peers *ps)
{
	mtx_lock(&ps->lock);
	__atomic_store_n(&ps->closing, true, __ATOMIC_RELEASE);
	mtx_unlock(&ps->lock);
	for (unsigned i = 0; i < ps->conf.n_loops; i++) {
		struct closing cl = {ps, ps->conf.loops[i]};

		loop_run_sync(cl.loop, peers_close_on, &cl);
	}
}

void peers_free(struct peers *ps)
{
	struct list_node *n;

	if (!ps)
		return;
	peers_close(ps);
	workq_free(ps->resolver);
	/* what was posted meanwhile finds its connection closed */
	for (unsigned i = 0; i < ps->conf.n_loops; i++)
		loop_run_sync(ps->conf.loops[i], nothing, NULL);
	while ((n = list_pop(&ps->all)))
		peer_free(container_of(n, struct peer, link));
	hashmap_fini(&ps->map);
	mtx_fini(&ps->lock);
	free(ps);
}
