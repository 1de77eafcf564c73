/* SPDX-License-Identifier: Apache-2.0 */
/* The one interface for data. A request (struct block_req) is a baton: its holder completes it with
 * req_done or passes it on with source_get & co., exactly once. Layers are stacked in chain.c; a
 * NULL operation means "ask the next layer". The rules every layer keeps are in
 * docs/architecture.md §3.
 *
 * Status: 0, or
 *
 *	-ENOENT				not here: ask the next
 *	-EBADMSG			damaged: ask the next
 *	-ETIMEDOUT, -EHOSTDOWN,
 *	-EBUSY, -ECONNREFUSED		of a peer: ask the next
 *	-ENODATA, -EACCES		404, 403 of the object store: final, with req->reason
 *	-EIO				of it after all retries, or the object is wrong: the same
 *	-ENOBUFS			prefetch found no memory
 *	-ECANCELED			the chain is draining
 *	-ENOMEM */
#ifndef STOKE_COMMON_BLOCK_SOURCE_H
#define STOKE_COMMON_BLOCK_SOURCE_H

#include "common/blob.h"
#include "common/block/key.h"
#include "common/loop.h"
#include "common/metrics.h"
#include "common/object/coding.h"
#include "common/object/object.h"
#include "common/workq.h"

enum { REQ_DEPTH = 12, REQ_REASON = 256 };

enum req_flags {
	/* stores only: never leads, never goes to the object store. In flight it joins only whoever
	 * asks the object store already, or has asked nobody yet */
	REQ_NO_FILL = 1,
	/* nobody waits for it yet: never waits for memory */
	REQ_PREFETCH = 2,
	/* pass it on, keep nothing */
	REQ_NO_ADMIT = 4,
	/* no data wanted: done when the owner has it stored (warm-up). ram and flight pass it on,
	 * object refuses it */
	REQ_FILL = 8,
	/* no data wanted: 0 when the owner has it stored, else -ENOENT (warmup --check) */
	REQ_PROBE = 16,
	/* random reader: a layer must not widen it to the whole block unless it has to */
	REQ_RANGE_ONLY = 32,
	/* in a daemon: another member asks. He may be waited for by one whom we would ask, so
	 * nobody is asked to fill it: it joins and becomes what waits for no member but by
	 * NO_FILL */
	REQ_MEMBER = 64,
	/* with REQ_FILL: keep it until pin_until (unix seconds), whatever else has to go; in the
	 * past: no longer, and nothing is fetched */
	REQ_PIN = 128,
};

/* Whom a fetch waits for, as far as it matters to who may wait for it (rule 7). It only grows; the
 * peers' layer goes from OPEN or HOLDERS to ASKS, never from PROMISED. */
enum req_way {
	WAY_OPEN,
	WAY_PROMISED, /* a member waits for it: it will ask peers by NO_FILL alone */
	WAY_HOLDERS,  /* peers, by NO_FILL */
	WAY_ASKS,     /* a peer who may ask others in turn */
	WAY_OBJECT    /* the object store */
};

/* which kind of source answered; for "bytes by source" */
enum req_via {
	VIA_NONE,
	VIA_RAM,
	VIA_FLIGHT,
	VIA_STORE,
	VIA_LOCAL,
	VIA_PEER,
	VIA_OBJECT,
	VIA_COUNT
};
const char *req_via_name(enum req_via v); /* "ram" "flight" "store" "local" "peer" "s3" */

/* shared by all requests of one chain; outlives them */
struct req_env {
	struct pool *pool;
	struct loop *timers;	 /* runs the deadlines of forks */
	struct metrics *metrics; /* may be NULL in tests */
	/* blocks that are compressed or encrypted come whole from the object store */
	enum codec codec;
	const struct crypt_block *crypt; /* NULL: not encrypted */
	uint32_t block_size;
	bool want_sums; /* daemon: checksums of whole blocks from the object store are computed */
	/* a get that comes without a deadline is given up after so long; 0: never. See
	 * req_budget_us */
	uint64_t budget_us;
	unsigned live; /* requests alive; drain waits for 0 (atomic) */
	/* source.c's own, zero at the start: the deadlines of forks, made with the first layer and
	 * freed with the last */
	struct req_clock *clock;
	unsigned layers;
};

static inline struct coding req_coding(const struct req_env *env)
{
	return (struct coding){env->codec, env->crypt};
}

/* The time that a read has, all its ways to an answer together: --io-retries says how often the
 * object store is asked, and this how long that may take. A daemon is given half of what is left,
 * so that its asker still has the time to try another way. */
static inline uint64_t req_budget_us(uint64_t io_retries)
{
	return MAX(io_retries, UINT64_C(1)) * 6000000;
}

struct block_req;
struct source;
typedef void req_fn(struct block_req *req, int status, void *arg);

struct block_req {
	struct req_env *env;
	struct block_key key;
	uint32_t off, len; /* wanted range, inside the block; len > 0 */
	uint32_t flags;
	enum pool_class klass;
	uint64_t pin_until;   /* REQ_PIN */
	uint64_t deadline_us; /* of the whole request; 0: none. Enforced by the fork that set it */
	struct blob data;     /* answer: exactly [off, off + len); put: the whole block */
	/* checksums of all pieces, only when data is the whole block and they are known; else
	 * empty */
	struct blob sums;
	enum req_via via;
	char reason[REQ_REASON]; /* final errors: object's name and what happened */
	size_t reserved;	 /* budget taken and not yet turned into buffers */
	struct pool_wait wait;
	struct list_node link; /* whoever holds the request */
	struct loop_job job;   /* the same */
	struct {
		req_fn *fn;
		void *arg;
		struct source *source;
		uint64_t start_us;
		uint8_t op;
		bool passed;
	} frame[REQ_DEPTH];
	unsigned depth;
	/* made by a layer (fork, whole block for a range): no read of its own in the counters */
	bool inner;
	uint8_t tier;	  /* put: the file's, see object.h */
	enum req_way way; /* atomic: whom it waits for, see flight */
	/* set by a layer that can use a growing prefix (flight); see req_progress */
	void (*progress)(struct block_req *req, const struct blob *data, size_t valid, void *arg);
	void *progress_arg;
	struct race *race; /* several ways to one answer, see req_fork */
	struct fork *fork; /* set when this is a child of such a race */
};

struct source_ops {
	const char *name;
	void (*get)(struct source *s, struct block_req *req);
	void (*put)(struct source *s, struct block_req *req);
	/* keep a whole block (take references, return at once) */
	void (*admit)(struct source *s, struct block_req *req);
	void (*drop)(struct source *s, struct block_req *req);
	void (*free)(struct source *s); /* only itself, with source_fini */
};
/* prev: the layer above, NULL on top; set when that one is made */
struct source {
	const struct source_ops *ops;
	struct source *next, *prev;
	struct req_env *env;
	struct source_metrics *metrics;
};

/* For constructors of layers: sets the base, and registers stoke_source_* metrics under ops->name.
 * 0 or -ENOMEM */
int source_init(struct source *s, const struct source_ops *ops, struct req_env *env,
		struct source *next);
void source_fini(struct source *s);
/* frees s and everything below; NULL is fine */
void source_free(struct source *s);

/* --- requests --- */
/* NULL: no memory */
struct block_req *req_new(struct req_env *env, const struct block_key *key, uint32_t off,
			  uint32_t len, uint32_t flags, enum pool_class klass);
/* drops data, sums and reservation */
void req_free(struct block_req *req);

/* Passes the baton to s: pushes fn(req, status, arg), then s->ops->get (or the next layer that has
 * one; none: req_done with -ENOENT, a drop with 0). Ends the race of req, if one runs. s may be
 * NULL (below the last layer). */
void source_get(struct source *s, struct block_req *req, req_fn *fn, void *arg);
void source_put(struct source *s, struct block_req *req, req_fn *fn, void *arg);
void source_drop(struct source *s, struct block_req *req, req_fn *fn, void *arg);
/* The only place that admits: whole blocks in memory only, not when REQ_NO_ADMIT; nothing
 * otherwise. */
void source_admit(struct source *s, struct block_req *req);
/* the same for all layers above s: of a block that s fetched on its own account */
void source_admit_above(struct source *s, struct block_req *req);
/* Completes: pops the innermost frame and calls it. Asserts that status 0 of a get carries exactly
 * req->len bytes (none for FILL, PROBE). Any thread. The request may be gone afterwards. */
void req_done(struct block_req *req, int status);
/* req_done(status), a negative errno, with a formatted reason */
void req_fail(struct block_req *req, int status, const char *fmt, ...) _printf_(3, 4);

/* --- memory: reserve, then ask --- */
/* budget that get of this range takes at most: pieces and checksums, and for an encoded block's
 * whole fetch its object too */
size_t req_need(const struct block_req *req);
/* calls go(req, 0, arg) with the budget reserved, at once or later (then on env->timers' thread);
 * go(req, -ENOBUFS, arg) for prefetch without room, and when the pool is too small for it at all.
 * Does nothing but call go when req->reserved already covers the need. */
void req_reserve(struct block_req *req, req_fn *go, void *arg);
/* gives back what of the reservation was not used */
void req_unreserve(struct block_req *req);
/* Upload of a block in an encoded volume also takes this much, so that encoding never waits for
 * memory while it holds some: 0 when plain. A put without it in req->reserved shares one spare
 * buffer with the others. */
size_t req_put_need(const struct req_env *env, uint32_t size);
/* a buffer of len bytes out of req->reserved; NULL: no memory in the machine, or a bug
 * (asserted) */
struct buf *req_take(struct block_req *req, size_t len);

/* --- several ways --- */
/* A second request for the parent's bytes with memory of its own; it ends by itself. NULL when
 * there is no memory: then there is no fork, and the parent is unchanged. flags replace the
 * parent's; timeout_us (0: the parent's deadline) is enforced here and nowhere else: when it
 * passes, the child counts as failed with -ETIMEDOUT for the race, its late answer is dropped.
 *
 * The parent's race runs from the first req_fork until it is completed: the first child that
 * succeeds completes the parent (data, sums, via are handed over). When a child fails, lost(parent,
 * status, running, arg) is called; running tells how many others still run. The layer may fork
 * again, wait, or pass the parent on or complete it (which ends the race; it must when running is 0
 * and nothing was forked).
 *
 * Calls to lost and tick of one parent never overlap, and while one runs the parent stays alive and
 * uncompleted. Outside of them the parent belongs to the race as soon as a child was started, and
 * may be gone: fork and set the timer first, start the children last. */
typedef void race_fn(struct block_req *parent, int status, unsigned running, void *arg);
struct block_req *req_fork(struct block_req *parent, uint32_t flags, uint64_t timeout_us,
			   race_fn *lost, void *arg);
/* sends a fork on its way: source_get(s, child) with completion inside source.c */
void req_fork_start(struct block_req *child, struct source *s);
/* as above, for a layer that carries the child out itself: complete it with req_done */
void req_fork_begin(struct block_req *child);
/* calls tick(parent, arg) after us unless the race ended before; for hedges. One at a time: a
 * pending one is replaced. Before or after the first req_fork. -ENOMEM, -EOPNOTSUPP (env has no
 * timers) */
int req_race_timer(struct block_req *parent, uint64_t us,
		   void (*tick)(struct block_req *parent, void *arg), void *arg);
/* A range out of the whole block: gives the parent's reservation back, reserves for a child that
 * wants all of the block (in line, no hold-and-wait), sends it to s, admits it nowhere itself, and
 * completes the parent with its range of the child's data. */
void req_whole(struct block_req *parent, struct source *s);

/* Tells who waits behind a fetch that the first valid bytes of [req->off, …) stand in data. Plain
 * blocks only, after the length was confirmed. */
void req_progress(struct block_req *req, const struct blob *data, size_t valid);

/* waits until no request of env is alive; for shutdown, after intake stopped */
void req_env_drain(struct req_env *env);

/* --- layers --- */
/* whole blocks in memory, newest kept, given up when the pool needs room. max_bytes: at most that
 * much of the pool */
int source_ram_new(struct req_env *env, struct source *next, size_t max_bytes, struct source **ret);
/* The same in two halves, for a chain with [flight] between them: keep, below, admits a block
 * before the flight forgets the fetch that brought it, and looks again before a leader goes down;
 * front, above, answers from keep. So nobody who asks in between fetches a second time. What front
 * gave out in full, once, is given up first. front is freed before keep. */
int source_keep_new(struct req_env *env, struct source *next, size_t max_bytes,
		    struct source **ret);
int source_front_new(struct req_env *env, struct source *next, struct source *keep,
		     struct source **ret);
/* equal requests become one; reserves for those who lead. whole_on_second: a second range of a
 * block that misses starts the whole fetch (daemon), and so does the first when the volume's blocks
 * are encoded; it is admitted by the layers above */
int source_flight_new(struct req_env *env, struct source *next, bool whole_on_second,
		      struct source **ret);

/* true when a get of req, which is not under way, joins a fetch in this flight, now or as long as
 * that is there. *ret_listed: there is one, to be joined or not. Any other layer: false */
bool source_flight_joins(struct source *s, const struct block_req *req, bool *ret_listed);

struct source_object_conf {
	struct object_store *store;
	const char *volume_name; /* kept by pointer */
	bool hash_prefix;
	struct workq *codecs; /* for encoding and decoding; may be NULL when blocks are plain */
};
/* the object store; last. -ENOENT for REQ_NO_FILL, FILL, PROBE */
int source_object_new(struct req_env *env, const struct source_object_conf *conf,
		      struct source **ret);

/* tests only: rules of what happens to the nth request that passes */
enum fault_kind { FAULT_FAIL, FAULT_DELAY, FAULT_CORRUPT, FAULT_HANG };
/* get requests after, after + 1, … after + count - 1 (count 0: all that follow) */
struct fault_rule {
	enum fault_kind kind;
	unsigned after, count;
	int status;
	uint64_t delay_us;
};
int source_fault_new(struct req_env *env, struct source *next, struct source **ret);
/* at most 16 rules; the first that fits counts */
void source_fault_add(struct source *s, const struct fault_rule *rule);
/* requests that hang now end with their rule's status, or go on when it is 0 */
void source_fault_release(struct source *s);
/* get requests that arrived */
unsigned source_fault_seen(struct source *s);

#endif
