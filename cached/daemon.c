/* SPDX-License-Identifier: Apache-2.0 */
/* Start and stop order of the daemon. Main's thread; `moved` and `tick` come from the member
 * thread.
 *
 * Start, bottom up: Redis, setting and volume id; memory and loops; object store; disks; peers;
 * chain; server; metrics; membership, which makes us visible to others, last. Stop, top down:
 * membership; server, which waits for what it serves; chain and disks; peers, object store,
 * loops. */
#include "cached/daemon.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "cached/chain.h"
#include "cached/index.h"
#include "cached/listen.h"
#include "cached/member.h"
#include "cached/mover.h"
#include "cached/notify.h"
#include "cached/scrub.h"
#include "cached/snapshot.h"
#include "cached/worker.h"
#include "common/clock.h"
#include "common/http.h"
#include "common/log.h"
#include "common/object/crypt.h"
#include "common/parse.h"

enum {
	START_US = 30000000,   /* Redis at start */
	HAND_OVER_US = 500000, /* the same before the next program; who asks meanwhile waits */
	STOP_US = 10000000,    /* for what is being served */
	DISKS_US = 2000000,    /* for a disk that hangs */
	OBJECT_CONNS = 64,
	CODEC_QUEUE = 1024,
	CONNS_MAX = 24000,
	OPEN_FILES_MAX = 1024,
	DESCRIPTORS_MAX = 1 << 20,
	RELOAD_TICKS = 12, /* heartbeats, of a second */
	RELOAD_WAIT_US = 500000,
	AGAIN_US = 200000, /* Redis is tried again at start */
};

struct daemon {
	struct daemon_conf conf; /* the caller's strings */
	struct redis *redis;
	struct setting *setting;
	struct setting *latest; /* changed since, NULL: not; with ticks the member thread's */
	unsigned ticks;
	/* the member thread's, too: the object store told us to slow down, the last heartbeat */
	bool told;
	uint64_t beaten_us;
	struct generation generation;
	struct keys *keys; /* NULL: no group */
	struct metrics *metrics;
	struct counters counters;
	struct pool *pool;
	struct loop *loops[SERVER_WORKERS_MAX], *object_loop, *timers;
	unsigned n_loops;
	struct object_store *objects;
	struct crypt_block *crypt;
	struct workq *codecs;
	struct disk *disks[INDEX_DISKS_MAX];
	unsigned n_disks;
	char node[DISK_NODE_ID + 1];
	struct cluster_view view;
	struct peers *peers;
	struct req_env env;
	struct source *chain;
	struct store *store;
	struct server *server;
	struct http *http;
	struct mover *mover;
	struct membership *membership;
	struct scrub *scrub;
	char scrub_rate[32];
	unsigned max_conns, max_open;
	atomic_bool ready, replaced;
};

/* --- volume --- */

static bool is_to_end(void)
{
	sigset_t set;

	return sigpending(&set) == 0 &&
	       (sigismember(&set, SIGTERM) == 1 || sigismember(&set, SIGINT) == 1);
}

/* A Redis that is away, or loads, is waited for: it may be started, or fail over, at the same time
 * as we are, and who is replaced while it does has sockets that mounts wait at. */
static int open_redis(struct daemon *d, const char *meta, struct str *err)
{
	const struct redis_conf redis = {.max_conns = 8};
	uint64_t end = clock_us() + START_US;
	bool said = false;
	int r;

	for (;;) {
		str_reset(err);
		r = redis_new(meta, &redis, &d->redis, err);
		if ((r != -ECONNREFUSED && r != -ECONNRESET && r != -ETIMEDOUT && r != -EAGAIN) ||
		    clock_us() >= end || is_to_end())
			return r;
		if (!said)
			log_warn("%s: waiting %d s for it", str_c(err), START_US / 1000000);
		said = true;
		(void)usleep(AGAIN_US);
	}
}

static int open_volume(struct daemon *d, const char *meta, struct str *err)
{
	struct str why = STR_INIT;
	int r = open_redis(d, meta, err);

	if (r == 0)
		r = setting_load(d->redis, clock_us() + START_US, &d->setting, err);
	if (r < 0)
		return r;
	r = setting_check(d->setting, &why);
	if (r < 0) {
		str_addf(err, "volume %s uses what this version does not handle: %s",
			 d->setting->name, str_c(&why));
	} else {
		r = volume_generation(d->redis, clock_us() + START_US, true, &d->generation);
		if (r < 0)
			str_addf(err, "generation of volume %s: %s", d->setting->name,
				 strerror(-r));
	}
	str_fini(&why);
	return r;
}

/* --- memory, loops, object store --- */

static struct coding coding(const struct daemon *d)
{
	return (struct coding){d->setting->codec, d->crypt};
}

static int open_crypt(struct daemon *d, struct str *err)
{
	if (d->setting->encrypted && d->conf.cache_group && !d->conf.group_tls_cert &&
	    !d->conf.allow_plain_peers) {
		str_addf(err,
			 "volume %s is encrypted, and blocks would go to the other nodes of group "
			 "%s "
			 "in plain: give --group-tls-cert, or --allow-plain-peers if that network "
			 "is trusted",
			 d->setting->name, d->conf.cache_group);
		return -EPERM;
	}
	return volume_open_crypt(d->setting, &d->crypt, err);
}

static int open_pool(struct daemon *d, struct str *err)
{
	uint32_t bs = d->setting->block_size;
	size_t block = bs + msg_sums_len(bs);
	int r;

	if (!coding_is_plain(coding(d))) /* block and object are reserved in one step */
		block += coding_bound(coding(d), bs);
	r = pool_new(d->conf.buffer_size, block, &d->pool);
	if (r == -EINVAL)
		str_addf(err,
			 "--buffer-size is too small for this volume's blocks: give at least %zu "
			 "MiB",
			 DIV_UP(4 * pool_cost(block), (size_t)1 << 20));
	return r;
}

static int open_loops(struct daemon *d)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned n = cpus < 2 ? 2 : cpus > 8 ? 8 : (unsigned)cpus;
	char name[16];
	int r = loop_new("timers", &d->timers);

	if (r == 0)
		r = loop_new("object", &d->object_loop);
	while (r == 0 && d->n_loops < n) {
		(void)snprintf(name, sizeof(name), "loop%u", d->n_loops);
		r = loop_new(name, &d->loops[d->n_loops]);
		if (r == 0)
			d->n_loops++;
	}
	return r;
}

static void raise_descriptors(struct daemon *d)
{
	struct rlimit rl;
	unsigned n = 1024;

	if (getrlimit(RLIMIT_NOFILE, &rl) == 0) {
		rl.rlim_cur = MIN(rl.rlim_max, (rlim_t)DESCRIPTORS_MAX);
		(void)setrlimit(RLIMIT_NOFILE, &rl);
		if (getrlimit(RLIMIT_NOFILE, &rl) == 0)
			n = (unsigned)MIN(rl.rlim_cur, (rlim_t)DESCRIPTORS_MAX);
	}
	d->max_open = MIN(n / 8, (unsigned)OPEN_FILES_MAX);
	d->max_conns = MIN(n / 2, (unsigned)CONNS_MAX);
}

static int open_machine(struct daemon *d, struct str *err)
{
	int r = open_crypt(d, err);

	raise_descriptors(d);
	if (r == 0)
		r = open_pool(d, err);
	if (r == 0)
		r = open_loops(d);
	if (r == 0)
		r = volume_open_store_retrying(d->setting, d->object_loop, OBJECT_CONNS,
					       MAX((unsigned)d->conf.io_retries, 1U), d->metrics,
					       &d->objects, err);
	if (r == 0 && !coding_is_plain(coding(d)))
		r = workq_new("codec", 2, CODEC_QUEUE, &d->codecs);
	return r;
}

/* --- disks --- */

/* One size is for all of them, each an equal share, as JuiceFS has it; else one for each. */
static int read_sizes(const struct daemon *d, unsigned n, uint64_t ret[INDEX_DISKS_MAX],
		      struct str *err)
{
	_cleanup_(freep) char *copy = strdup(d->conf.cache_size);
	char *list = copy, *size = copy ? strsep(&list, ":") : NULL;
	bool one = !list;

	if (!copy)
		return -ENOMEM;
	for (unsigned i = 0; i < n; i++) {
		if (!size || parse_size(size, 1 << 20, &ret[i]) < 0 || ret[i] == 0)
			break;
		if (one)
			ret[i] /= n;
		else
			size = strsep(&list, ":");
		if (i == n - 1 && (one || !size))
			return 0;
	}
	str_addf(err,
		 "--cache-size \"%s\": one size for all directories together, or one for each of "
		 "the %u, like 2T:500G",
		 d->conf.cache_size, n);
	return -EINVAL;
}

/* list is taken apart */
static int open_listed(struct daemon *d, char *list, const uint64_t *sizes, struct str *err)
{
	int r = 0;

	for (char *dir = strsep(&list, ":"); r == 0 && dir; dir = strsep(&list, ":")) {
		if (!*dir) {
			str_addf(err, "--cache-dir: an empty name in \"%s\"", d->conf.cache_dir);
			return -EINVAL;
		}
		r = disk_open(dir, d->setting->uuid, d->n_disks, sizes[d->n_disks],
			      d->conf.free_space_ratio, &d->disks[d->n_disks], err);
		if (r == 0)
			d->n_disks++;
	}
	return r;
}

/* The id is on every disk, so that it outlives any of them. */
static void name_node(struct daemon *d)
{
	for (unsigned i = 0; i < d->n_disks && !d->node[0]; i++)
		disk_node(d->disks[i], d->node);
	if (!d->node[0])
		crypt_uuid(d->node);
	for (unsigned i = 0; i < d->n_disks; i++)
		disk_set_node(d->disks[i], d->node);
}

static int open_disks(struct daemon *d, struct str *err)
{
	uint64_t sizes[INDEX_DISKS_MAX];
	unsigned n = 1;
	char *list;
	int r;

	for (const char *p = d->conf.cache_dir; *p; p++)
		n += *p == ':';
	if (n > INDEX_DISKS_MAX) {
		str_addf(err, "--cache-dir: more than %d directories", INDEX_DISKS_MAX);
		return -EINVAL;
	}
	r = read_sizes(d, n, sizes, err);
	if (r < 0)
		return r;
	list = strdup(d->conf.cache_dir);
	r = list ? open_listed(d, list, sizes, err) : -ENOMEM;
	free(list);
	if (r == 0)
		name_node(d);
	return r;
}

static void close_disks(struct daemon *d)
{
	for (unsigned i = 0; i < d->n_disks; i++)
		(void)disk_close(d->disks[i], DISKS_US);
	d->n_disks = 0;
}

/* --- chain --- */

static int open_peers(struct daemon *d)
{
	const struct peers_conf conf = {
		.id = {.role = d->conf.no_sharing ? ROLE_MOUNT : ROLE_MEMBER,
		       .volume = volume_id(d->setting->uuid, &d->generation),
		       .group = d->conf.cache_group,
		       .node = d->node},
		.keys = d->keys,
		.loops = d->loops,
		.n_loops = d->n_loops,
		.metrics = d->metrics,
	};

	return d->conf.cache_group ? peers_new(&conf, &d->peers) : 0;
}

static int open_chain(struct daemon *d)
{
	struct chain_conf conf = {
		.object = {.store = d->objects,
			   .volume_name = d->setting->name,
			   .hash_prefix = d->setting->hash_prefix,
			   .codecs = d->codecs},
		.peer = {.mode = PEER_HOLDER,
			 .peers = d->peers,
			 .view = &d->view,
			 .self = d->node,
			 .sub_group = d->conf.sub_group,
			 .remote_us = d->conf.remote_timeout},
		.store = {.disks = d->disks,
			  .n_disks = d->n_disks,
			  .volume = volume_id(d->setting->uuid, &d->generation),
			  .policy = evict_loop_new,
			  .counters = &d->counters,
			  .view = d->conf.cache_group ? &d->view : NULL,
			  .self = d->node,
			  .max_open = d->max_open,
			  .snapshot = snapshot_take(notify_index())},
	};
	int r;

	d->env = (struct req_env){
		.pool = d->pool,
		.timers = d->timers,
		.metrics = d->metrics,
		.codec = d->setting->codec,
		.crypt = d->crypt,
		.block_size = d->setting->block_size,
		.want_sums = true,
		.budget_us = req_budget_us(d->conf.io_retries),
	};
	r = open_peers(d);
	if (r < 0)
		return r;
	conf.peer.peers = d->peers;
	r = chain_new(&d->env, &conf, &d->chain, &d->store);
	d->n_disks = 0; /* the chain's, or closed */
	return r;
}

/* --- server --- */

static int open_server(struct daemon *d, struct member *self, struct str *err)
{
	struct server_conf conf = {
		.loops = d->loops,
		.n_loops = d->n_loops,
		.env = &d->env,
		.chain = d->chain,
		.store = d->store,
		.counters = &d->counters,
		.view = d->conf.cache_group ? &d->view : NULL,
		.group = d->conf.cache_group ? d->conf.cache_group : "",
		.node = d->node,
		.keys = d->keys,
		.max_conns = d->max_conns,
		.hot_share = (unsigned)d->conf.hot_share,
	};
	int r = listen_guard(&d->conf, &conf.socket_mode, &conf.socket_group, err);

	(void)snprintf(self->id, sizeof(self->id), "%s", d->node);
	if (r == 0)
		r = server_new(&conf, &d->server);
	return r < 0 ? r : listen_all(&d->conf, d->server, self, err);
}

/* --- metrics --- */

static bool is_ready(void *arg)
{
	struct daemon *d = arg;

	return atomic_load_explicit(&d->ready, memory_order_relaxed);
}

static int open_metrics(struct daemon *d, uint16_t *ret_port, struct str *err)
{
	const char *addr = d->conf.metrics ? d->conf.metrics : "127.0.0.1:9568";
	int r = counters_gauges(d->metrics, d->store, d->pool);

	*ret_port = 0;
	if (r < 0 || !strcmp(addr, "none"))
		return r;
	r = http_new(d->timers, addr, d->conf.metrics != NULL, d->metrics, is_ready, d, &d->http,
		     ret_port);
	if (r < 0)
		str_addf(err, "cannot serve metrics on %s: %s", addr, strerror(-r));
	return r;
}

/* --- member --- */

/* true when Redis holds another volume than the one we were started for: other objects, other cache
 * directories */
static bool is_replaced(struct daemon *d)
{
	struct str err = STR_INIT;
	struct setting *now = NULL;
	bool other = false;

	if (setting_load(d->redis, clock_us() + START_US, &now, &err) == 0)
		other = strcmp(now->uuid, d->setting->uuid) != 0 ||
			strcmp(now->bucket, (d->latest ? d->latest : d->setting)->bucket) != 0 ||
			now->block_size != d->setting->block_size;
	setting_free(now);
	str_fini(&err);
	return other;
}

static void moved(void *arg, const struct generation *gen)
{
	struct daemon *d = arg;
	struct hash128 id = volume_id(d->setting->uuid, gen);
	int r;

	log_warn("volume %s has another generation (loaded, rolled back or made anew): the cache "
		 "starts empty",
		 d->setting->name);
	r = store_move(d->store, &id); /* from here on no old block is served */
	if (r < 0)
		log_error("the cache directories cannot be used for the new generation: %s",
			  strerror(-r));
	if (d->peers) /* who greets the others with the old one is refused */
		peers_set_volume(d->peers, &id);
	store_clean(d->store);
	if (!is_replaced(d))
		return;
	log_error("Redis holds another volume than %s: stopping, to be started again",
		  d->setting->uuid);
	atomic_store_explicit(&d->replaced, true, memory_order_relaxed);
	(void)kill(getpid(), SIGTERM);
}

/* as mounts do at their heartbeat: a new bucket, new keys. Bounded: heartbeats wait for it. */
static void reload_setting(struct daemon *d)
{
	_cleanup_(setting_freep) struct setting *now = NULL;
	_cleanup_(str_fini) struct str err = STR_INIT;
	const struct setting *old = d->latest ? d->latest : d->setting;

	if (setting_load(d->redis, clock_us() + RELOAD_WAIT_US, &now, &err) < 0 ||
	    strcmp(now->uuid, old->uuid) != 0 || strcmp(now->text, old->text) == 0)
		return;
	volume_change_store(old, now, d->objects);
	setting_free(d->latest);
	d->latest = TAKE_PTR(now);
}

/* --- the object store is the group's --- */

static bool slowed(void *arg)
{
	struct daemon *d = arg;

	/* what was said in a beat that did not get through is said again */
	d->told = object_was_slowed(d->objects) || d->told;
	return d->told;
}

/* What the object store told another member since the last beat holds here, too. The volume's
 * limit is divided by those who ask the object store: the members. */
static void beaten(void *arg, const struct registry_beat *beat)
{
	struct daemon *d = arg;
	uint64_t now = clock_us(), since = now - d->beaten_us;

	if (d->beaten_us && !d->told && beat->slowed_ago_us < since)
		object_slow(d->objects);
	d->told = false;
	d->beaten_us = now;
	object_share(d->objects, beat->members);
}

static void tick(void *arg)
{
	struct daemon *d = arg;

	store_trim(d->store);
	if (++d->ticks % RELOAD_TICKS == 0)
		reload_setting(d);
}

static void copied(void *arg)
{
	struct daemon *d = arg;

	if (atomic_load_explicit(&d->ready, memory_order_acquire))
		membership_wake(d->membership);
}

static int open_mover(struct daemon *d)
{
	const struct mover_conf conf = {
		.env = &d->env,
		.chain = d->chain,
		.store = d->store,
		.peers = d->peers,
		.view = &d->view,
		.self = d->node,
		.limit = d->conf.rebalance_limit,
		.counters = &d->counters,
		.done = copied,
		.arg = d,
	};

	return d->peers && !d->conf.no_sharing ? mover_new(&conf, &d->mover) : 0;
}

static int join(struct daemon *d, struct member *self, struct str *err)
{
	struct member_conf conf = {
		.redis = d->redis,
		.group = d->conf.cache_group,
		.consumer = d->conf.no_sharing,
		.join_now = d->conf.join_now,
		.counters = &d->counters,
		.view = &d->view,
		.generation = d->generation,
		.moved = moved,
		.tick = tick,
		.slowed = slowed,
		.beaten = beaten,
		.arg = d,
	};
	int r = open_mover(d);

	if (r < 0)
		return r;
	if (d->conf.sub_group)
		(void)snprintf(self->sub_group, sizeof(self->sub_group), "%s", d->conf.sub_group);
	self->weight = (uint32_t)d->conf.group_weight;
	self->state = MEMBER_ACTIVE;
	conf.self = *self;
	conf.mover = d->mover;
	r = membership_start(&conf, clock_us() + START_US, &d->membership);
	if (r < 0)
		str_addf(err, "cannot join the group %s: %s",
			 d->conf.cache_group ? d->conf.cache_group : "", strerror(-r));
	return r;
}

/* --- start and stop --- */

static void say_ready(struct daemon *d, const struct member *self, uint16_t metrics_port,
		      uint64_t began_us)
{
	struct msg_stat st;

	store_stat(d->store, &st);
	log_info("stoke-cached %s: volume %s, group %s as %s, address %s:%u, socket %s, metrics "
		 "port %u, cache %s (%llu MiB), "
		 "%llu blocks found, ready in %.2f s",
		 STOKE_VERSION, d->setting->name,
		 d->conf.cache_group ? d->conf.cache_group : "none", d->node,
		 self->addr[0] ? self->addr : "none", self->port,
		 d->conf.socket ? d->conf.socket : "none", metrics_port, d->conf.cache_dir,
		 (unsigned long long)(st.capacity_bytes >> 20), (unsigned long long)st.blocks,
		 (double)(clock_us() - began_us) / 1e6);
}

static int start(struct daemon *d, const char *meta, struct str *err)
{
	uint64_t began_us = clock_us();
	uint16_t metrics_port = 0;
	struct member self = {0};
	int r = listen_keys(&d->conf, &d->keys, err);

	if (r == 0)
		r = open_volume(d, meta, err);
	if (r == 0) {
		d->metrics = metrics_new();
		r = d->metrics ? counters_init(&d->counters, d->metrics) : -ENOMEM;
	}
	if (r == 0)
		r = open_disks(d, err);
	if (r == 0)
		r = open_machine(d, err);
	if (r == 0)
		r = open_chain(d);
	if (r == 0)
		r = open_server(d, &self, err);
	if (r == 0)
		r = open_metrics(d, &metrics_port, err);
	if (r == 0)
		r = join(d, &self, err);
	if (r == 0)
		r = scrub_start(d->store, d->conf.scrub_rate, &d->scrub, err);
	if (r < 0)
		return r;
	(void)snprintf(d->scrub_rate, sizeof(d->scrub_rate), "%s", d->conf.scrub_rate);
	store_clean(d->store);
	atomic_store_explicit(&d->ready, true, memory_order_relaxed);
	say_ready(d, &self, metrics_port, began_us);
	return 0;
}

bool daemon_is_replaced(struct daemon *d)
{
	return atomic_load_explicit(&d->replaced, memory_order_relaxed);
}

static void nothing(void *arg)
{
	(void)arg;
}

bool daemon_is_alive(struct daemon *d)
{
	for (unsigned i = 0; i < d->n_loops; i++)
		loop_run_sync(d->loops[i], nothing, NULL);
	loop_run_sync(d->object_loop, nothing, NULL);
	loop_run_sync(d->timers, nothing, NULL);
	return true;
}

int daemon_hears_redis(struct daemon *d)
{
	_cleanup_(setting_freep) struct setting *now = NULL;
	_cleanup_(str_fini) struct str err = STR_INIT;

	return setting_load(d->redis, clock_us() + RELOAD_WAIT_US, &now, &err);
}

unsigned daemon_hand_over(struct daemon *d, int *ret, int *ret_index)
{
	_Static_assert((int)DAEMON_SOCKETS >= (int)SERVER_LISTENERS_MAX, "room for all");
	unsigned n;

	atomic_store_explicit(&d->ready, false, memory_order_relaxed);
	scrub_stop(TAKE_PTR(d->scrub));
	mover_stop(d->mover);
	membership_hand_over(TAKE_PTR(d->membership));
	n = server_hand_over(d->server, HAND_OVER_US, ret);
	*ret_index = store_hand_over(d->store, HAND_OVER_US);
	return n;
}

static void change_scrub(struct daemon *d, const char *rate)
{
	struct scrub *other = NULL;
	struct str err = STR_INIT;

	if (!strcmp(d->scrub_rate, rate))
		return;
	if (scrub_start(d->store, rate, &other, &err) < 0) {
		log_error("%s: the scrubber goes on as before", str_c(&err));
	} else {
		scrub_stop(d->scrub);
		d->scrub = other;
		(void)snprintf(d->scrub_rate, sizeof(d->scrub_rate), "%s", rate);
		log_info("scrub-rate: %s from now on", rate);
	}
	str_fini(&err);
}

static void change_options(struct daemon *d, const struct daemon_conf *now)
{
	if (now->rebalance_limit != d->conf.rebalance_limit) {
		d->conf.rebalance_limit = now->rebalance_limit;
		if (d->mover)
			mover_set_limit(d->mover, now->rebalance_limit);
		log_info("rebalance-limit: %llu bytes a second from now on",
			 (unsigned long long)now->rebalance_limit);
	}
	if (now->hot_share != d->conf.hot_share) {
		d->conf.hot_share = now->hot_share;
		server_set_hot_share(d->server, (unsigned)now->hot_share);
		log_info("hot-share: %llu from now on", (unsigned long long)now->hot_share);
	}
	change_scrub(d, now->scrub_rate);
}

void daemon_reload(struct daemon *d, const struct daemon_conf *now)
{
	struct str err = STR_INIT;
	bool changed = false;

	if (now)
		change_options(d, now);
	if (!d->keys)
		return;
	if (keys_reload(d->keys, &changed, &err) < 0)
		log_error("%s: the secret and certificates of before stay in use", str_c(&err));
	else
		log_info("secret and certificates read again: %s",
			 changed ? "used from now on" : "as before");
	str_fini(&err);
}

bool daemon_stop(struct daemon *d)
{
	if (!d)
		return true;
	atomic_store_explicit(&d->ready, false, memory_order_relaxed);
	scrub_stop(TAKE_PTR(d->scrub));
	mover_stop(d->mover);
	membership_stop(TAKE_PTR(d->membership));
	mover_free(TAKE_PTR(d->mover));
	if (d->server && !server_stop(d->server, STOP_US))
		return false;
	server_free(d->server);
	http_free(d->http);
	req_env_drain(&d->env);
	if (d->store && !store_stop(d->store, DISKS_US))
		return false;
	source_free(d->chain);
	close_disks(d);
	peers_free(d->peers);
	object_free(d->objects);
	workq_free(d->codecs);
	crypt_block_free(d->crypt);
	for (unsigned i = 0; i < d->n_loops; i++)
		loop_free(d->loops[i]);
	loop_free(d->object_loop);
	loop_free(d->timers);
	pool_free(d->pool);
	metrics_free(d->metrics);
	cluster_view_fini(&d->view);
	setting_free(d->setting);
	setting_free(d->latest);
	redis_free(d->redis);
	keys_free(d->keys);
	free(d);
	return true;
}

int daemon_start(const struct daemon_conf *conf, const char *meta, struct daemon **ret,
		 struct str *err)
{
	struct daemon *d = calloc(1, sizeof(*d));
	int r;

	if (!d)
		return -ENOMEM;
	d->conf = *conf;
	cluster_view_init(&d->view);
	r = start(d, meta, err);
	if (r < 0) {
		(void)daemon_stop(d);
		return r;
	}
	*ret = d;
	return 0;
}
