/* SPDX-License-Identifier: Apache-2.0 */
/* The session of a mount: registered, kept alive, ended; and, with each sign of life, what changed
 * in the volume: its setting, its generation, its being there at all. Thread: one for the
 * heartbeat, over connections that operations never use. A read-only mount has no session and only
 * looks. An operation that was refused because the volume is not what it was does the same at once.
 *
 *	state		what makes it
 *	alive		start; each beat
 *	refuse_writes	the setting got something that we do not handle: changes answer EROFS until
 *			the next mount
 *	gone		no setting, or another UUID: everything answers EIO until the next mount */
#include "client/meta/meta_redis.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <jansson.h>
#include <net/if.h>
#include <netinet/in.h>
#include <time.h>

#include "client/meta/meta_redis_quota.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/object/crypt.h"
#include "common/thread.h"

enum { LAPSE_BEATS = 5, SWEEP_BEATS = 256, NUMBER_TRIES = 100 };

static void add_addresses(json_t *list)
{
	struct ifaddrs *all, *i;
	char text[INET6_ADDRSTRLEN];

	if (getifaddrs(&all))
		return;
	for (i = all; i; i = i->ifa_next) {
		const void *p = NULL;

		if (!i->ifa_addr || (i->ifa_flags & IFF_LOOPBACK))
			continue;
		if (i->ifa_addr->sa_family == AF_INET)
			p = &((const struct sockaddr_in *)(const void *)i->ifa_addr)->sin_addr;
		if (p && inet_ntop(AF_INET, p, text, sizeof(text)))
			json_array_append_new(list, json_string(text));
	}
	freeifaddrs(all);
}

/* as JuiceFS reads it: MountTime must be RFC 3339, Version a version */
static char *session_json(const char *mount_point)
{
	char host[256] = "", when[64], *text;
	json_t *o = json_object(), *addresses = json_array();
	struct time_ns now;
	struct tm tm;
	time_t t;
	size_t n;

	clock_real(&now.sec, &now.nsec);
	t = (time_t)now.sec;
	gmtime_r(&t, &tm);
	n = strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(when + n, sizeof(when) - n, ".%09uZ", now.nsec);
	(void)gethostname(host, sizeof(host) - 1);
	add_addresses(addresses);
	json_object_set_new(o, "Version", json_string(SETTING_AS_JUICEFS "-stoke+" STOKE_VERSION));
	json_object_set_new(o, "HostName", json_string(host));
	if (json_array_size(addresses))
		json_object_set(o, "IPAddrs", addresses);
	if (json_object_set_new(o, "MountPoint", json_string(mount_point ? mount_point : "")))
		json_object_set_new(o, "MountPoint", json_string("?")); /* not UTF-8 */
	json_object_set_new(o, "MountTime", json_string(when));
	json_object_set_new(o, "ProcessID", json_integer(getpid()));
	text = json_dumps(o, JSON_COMPACT);
	json_decref(addresses);
	json_decref(o);
	return text;
}

static void volume_gone(struct meta *m, const char *why)
{
	bool first;

	mtx_lock(&m->lock);
	first = !m->gone;
	m->gone = true;
	mtx_unlock(&m->lock);
	if (!first)
		return;
	log_error("%s: nothing more is read or written", why);
	if (m->changed)
		m->changed(m->changed_arg, true);
}

static void refuse_writes(struct meta *m, const char *why)
{
	bool first;

	mtx_lock(&m->lock);
	first = !m->refuse_writes;
	m->refuse_writes = true;
	mtx_unlock(&m->lock);
	if (first)
		log_error("read-only from now on: the volume uses %s, which is not handled yet",
			  why);
}

/* false: it is another volume's */
static bool take_setting(struct meta_redis *mr, const char *text, size_t n)
{
	_cleanup_(str_fini) struct str why = STR_INIT, err = STR_INIT;
	_cleanup_(setting_freep) struct setting *s = NULL;
	struct meta *m = &mr->base;
	const struct setting *old = meta_setting(m);
	static struct log_rate rate;
	unsigned quiet;

	if (strlen(old->text) == n && !memcmp(old->text, text, n))
		return true;
	if (setting_parse(text, n, &s, &err)) {
		if (log_rate_ok(&rate, 60 * 1000000, &quiet))
			log_warn("the volume's setting changed and cannot be read: %s",
				 str_c(&err));
		return memmem(text, n, old->uuid, strlen(old->uuid));
	}
	if (strcmp(old->uuid, s->uuid) != 0) {
		volume_gone(m, "another volume took this one's place");
		return false;
	}
	if (!m->conf.read_only && setting_check(s, &why))
		refuse_writes(m, str_c(&why));
	if (!meta_swap_setting(m, s))
		return true;
	if (m->configured)
		m->configured(m->configured_arg, old, s);
	s = NULL;
	return true;
}

/* numbers that were reserved are of another volume now */
static void pools_drop_locked(struct meta_redis *mr) REQUIRES(mr->base.lock)
{
	mr->slices.next = mr->slices.end;
	mr->inodes.next = mr->inodes.end;
	mr->old_slices = mr->highest_slice; /* those that will come are above it */
}

static void take_generation(struct meta_redis *mr, const char *p, size_t n)
{
	struct meta *m = &mr->base;
	struct generation gen;
	struct hash128 volume;
	bool same, first;

	if (n != sizeof(gen.b))
		return;
	memcpy(gen.b, p, n);
	volume = volume_id(meta_setting(m)->uuid, &gen);
	mtx_lock(&mr->base.lock);
	first = !m->has_gen;
	same = m->has_gen && !memcmp(m->gen.b, gen.b, n);
	if (!same) {
		pools_drop_locked(mr);
		meta_set_generation_locked(&mr->base, &gen, &volume);
	}
	mtx_unlock(&mr->base.lock);
	if (same)
		return;
	if (!first)
		log_warn("the volume's database went back or was loaded again: caches start empty");
	if (m->changed)
		m->changed(m->changed_arg, false);
}

/* a mount that writes nothing cannot give the volume another one */
static void lose_generation(struct meta_redis *mr)
{
	struct meta *m = &mr->base;
	struct hash128 volume;
	bool had;

	crypt_random(volume.b, sizeof(volume.b));
	mtx_lock(&m->lock);
	had = m->has_gen;
	m->has_gen = false;
	if (had)
		m->volume = volume; /* nobody's: what caches hold was of the old one */
	mtx_unlock(&m->lock);
	if (!had)
		return;
	log_warn("the volume's database was loaded again: read without the group until somebody "
		 "mounts it for writing");
	if (m->changed)
		m->changed(m->changed_arg, false);
}

static void take_beat(struct meta_redis *mr, const struct redis_reply *reply)
{
	size_t n, gn;
	const char *setting = reply_text(reply_at(reply, 0), &n);
	const char *gen;

	if (!setting) {
		volume_gone(&mr->base, "the volume is not in the database any more");
		return;
	}
	if (!take_setting(mr, setting, n))
		return;
	gen = reply_text(reply_at(reply, 1), &gn);
	if (gen)
		take_generation(mr, gen, gn);
	else if (!mr->session_json)
		lose_generation(mr);
}

enum { SESSION_KNOWN, SESSION_UNKNOWN, SESSION_OTHERS }; /* as heartbeat.lua answers */

static int beat(struct meta_redis *mr, uint64_t deadline_us, int64_t *ret_session)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct meta *m = &mr->base;
	struct args args;
	struct time_ns now;
	uint64_t highest;
	uint8_t random[8];
	int r;

	mtx_lock(&m->lock);
	highest = mr->highest_slice;
	mtx_unlock(&m->lock);
	crypt_random(random, sizeof(random));
	clock_real(&now.sec, &now.nsec);
	args_init(&args, mr);
	args_u64(&args, session_now(m));
	args_text(&args, mr->session_json);
	args_i64(&args, now.sec + (int64_t)(LAPSE_BEATS * m->conf.heartbeat_us / 1000000));
	args_u64(&args, highest);
	args_bytes(&args, random, sizeof(random));
	args_text(&args, meta_setting(m)->uuid);
	args_time(&args, now);
	r = own_eval(mr, SC_HEARTBEAT, &args, deadline_us, &reply);
	if (r)
		return r;
	*ret_session = reply_int(reply_at(reply, 2));
	take_beat(mr, reply);
	quota_beat(mr, reply_int(reply_at(reply, 3)) > 0, deadline_us);
	return 0;
}

/* a sign of life; what it found out waits for the heartbeat's thread */
static int beat_noted(struct meta_redis *mr, uint64_t deadline_us)
{
	int64_t session = SESSION_KNOWN;
	int r = beat(mr, deadline_us, &session);

	mtx_lock(&mr->base.lock);
	mr->had_lapsed |= session == SESSION_UNKNOWN;
	mr->not_ours |= session == SESSION_OTHERS;
	mtx_unlock(&mr->base.lock);
	return r;
}

/* what a mount without a session does instead */
static int look(struct meta_redis *mr, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	int r = redis_once(mr->own_redis, deadline_us, &reply, "MGET %ssetting %s_gen", mr->prefix,
			   mr->prefix);

	if (!r)
		take_beat(mr, reply);
	if (!r)
		quota_look(mr, deadline_us);
	return r;
}

int generation_check(struct meta_redis *mr, const struct mark *k, uint64_t deadline_us)
{
	struct mark now;
	int r = mark_take(mr, &now);

	if (r || now.id_len != k->id_len || memcmp(now.id, k->id, k->id_len) != 0)
		return r; /* somebody was faster */
	return mr->session_json ? beat_noted(mr, deadline_us) : look(mr, deadline_us);
}

/* false: the end */
static bool beat_wait(struct meta_redis *mr)
{
	uint32_t random;
	uint64_t us = mr->base.conf.heartbeat_us, until;
	bool stop;

	/* ± 5 %, so that a thousand mounts started together spread out */
	crypt_random(&random, sizeof(random));
	us = us - us / 20 + (uint64_t)random % (us / 10 + 1);
	until = clock_us() + us;
	mtx_lock(&mr->base.lock);
	while (!mr->stopping && mr->base.gone) /* not ours any more: nothing is told to it */
		cond_wait(&mr->wake, &mr->base.lock);
	while (!mr->stopping && clock_left(until))
		cond_wait_us(&mr->wake, &mr->base.lock, clock_left(until));
	stop = mr->stopping;
	mtx_unlock(&mr->base.lock);
	return !stop;
}

/* a number that no session has had */
static int session_number(struct meta_redis *mr, uint64_t deadline_us)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	int r;

	args_init(&args, mr);
	args_text(&args, "nextsession");
	args_u64(&args, 1);
	args_now(&args);
	r = own_eval(mr, SC_COUNTER, &args, deadline_us, &reply);
	if (!r && reply_int(reply) <= 0)
		r = -EIO;
	if (r)
		return r;
	__atomic_store_n(&mr->base.session, (uint64_t)reply_int(reply), __ATOMIC_RELAXED);
	if (!mr->session_json)
		mr->session_json = session_json(mr->base.conf.mount_point);
	return mr->session_json ? 0 : -ENOMEM;
}

/* The database went back, and numbers of sessions came again: until one is ours alone. The other
 * one goes on with the old number, and whatever of ours is left under it. */
static int session_take(struct meta_redis *mr, uint64_t deadline_us)
{
	int64_t session = SESSION_OTHERS;
	int r = 0;

	for (int i = 0; i < NUMBER_TRIES && !r && session == SESSION_OTHERS; i++) {
		r = session_number(mr, deadline_us);
		if (!r)
			r = beat(mr, deadline_us, &session);
	}
	return !r && session == SESSION_OTHERS ? -EEXIST : r;
}

/* what the sign of life found out */
static int beat_follow(struct meta_redis *mr, uint64_t deadline_us)
{
	uint64_t old = session_now(&mr->base);
	bool not_ours, lapsed;
	int r = 0;

	mtx_lock(&mr->base.lock);
	not_ours = mr->not_ours;
	lapsed = mr->had_lapsed;
	mr->not_ours = mr->had_lapsed = false;
	mtx_unlock(&mr->base.lock);
	if (!not_ours && !lapsed)
		return 0;
	if (not_ours)
		r = session_take(mr, deadline_us);
	if (!r && not_ours)
		log_warn("session %" PRIu64 " is another client's too: this mount is %" PRIu64
			 " from now on",
			 old, session_now(&mr->base));
	if (!r)
		r = session_restore(mr, deadline_us);
	if (!r)
		return 0;
	mtx_lock(&mr->base.lock); /* with the next beat */
	mr->had_lapsed = true;
	mr->not_ours |= not_ours && session_now(&mr->base) == old;
	mtx_unlock(&mr->base.lock);
	return r;
}

static void *beat_main(void *arg)
{
	struct meta_redis *mr = arg;
	static struct log_rate rate;
	unsigned beats = 0, quiet;

	while (beat_wait(mr)) {
		uint64_t deadline = clock_us() + mr->base.conf.heartbeat_us;
		int r;

		r = mr->base.conf.read_only ? look(mr, deadline) : beat_noted(mr, deadline);
		if (!r)
			r = beat_follow(mr, deadline);
		if (r && log_rate_ok(&rate, 60 * 1000000, &quiet))
			log_warn("no heartbeat to %s: %s", redis_name(mr->own_redis), strerror(-r));
		if (r || mr->base.conf.read_only || mr->base.conf.no_bgjob)
			continue;
		stale_clean(mr, deadline);
		if (++beats % SWEEP_BEATS == 0)
			stale_sweep(mr, false, deadline);
	}
	return NULL;
}

static int session_new(struct meta_redis *mr, struct str *err)
{
	uint64_t deadline = op_deadline(mr);
	int r = session_take(mr, deadline);

	if (!r)
		r = stat_begin(mr, deadline);
	if (r)
		str_addf(err, "%s: no session: %s", redis_name(mr->own_redis), strerror(-r));
	else
		stale_sweep(mr, true, deadline);
	return r;
}

/* what is known to lose metadata is said once, line by line */
static void advise(struct meta_redis *mr)
{
	_cleanup_(str_fini) struct str text = STR_INIT;
	uint64_t deadline = op_deadline(mr);
	char *line, *rest;

	if (redis_advise(mr->own_redis, deadline, !mr->base.conf.read_only, &text) || !text.len)
		return;
	for (line = strtok_r(text.s, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		log_warn("%s: %s", redis_name(mr->own_redis), line);
}

int redis_start(struct meta *m, struct str *err)
{
	unsigned threads = MIN(m->conf.max_deletes, (unsigned)DELETE_THREADS);
	struct meta_redis *mr = redis_engine(m);
	int r = 0;

	threads += threads == 0; /* what is counted is counted, even if nothing is deleted */
	/* a command, which has its name there, says what it was asked for and no more */
	if (m->conf.mount_point && *m->conf.mount_point == '/')
		advise(mr);
	if (m->conf.read_only) {
		quota_look(mr, op_deadline(mr));
	} else {
		r = session_new(mr, err);
		if (!r)
			r = workq_new("meta-delete", threads, DELETES_MAX, &mr->deletes);
		if (!r)
			r = thread_start("meta-stat", stat_main, mr, &mr->stat_thread);
		mr->stat_running = !r;
		if (!r)
			r = compactor_start(mr);
	}
	if (!r && !m->conf.read_only && !m->conf.no_bgjob) {
		r = thread_start("meta-jobs", jobs_main, mr, &mr->job_thread);
		mr->job_running = !r;
	}
	if (!r)
		r = thread_start("meta-beat", beat_main, mr, &mr->beat_thread);
	mr->beat_running = !r;
	if (r) {
		if (err->len == 0)
			str_addf(err, "threads cannot be started: %s", strerror(-r));
		redis_stop(m);
	}
	return r;
}

/* whoever has our number too keeps what lies under it */
static bool session_is_others(struct meta_redis *mr, uint64_t sid)
{
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	const char *json;
	size_t n;

	if (redis_once(mr->own_redis, op_deadline(mr), &reply, "HGET %ssessionInfos %llu",
		       mr->prefix, (unsigned long long)sid))
		return false;
	json = reply_text(reply, &n);
	return json && mr->session_json && strcmp(json, mr->session_json) != 0;
}

static void session_end(struct meta_redis *mr)
{
	uint64_t sid = session_now(&mr->base);
	bool others = session_is_others(mr, sid);
	int unclean = others ? 1 : sustained_end(mr, sid, ""), r;

	/* what was begun is ended, for as long as an operation may take */
	__atomic_store_n(&mr->delete_until_us, op_deadline(mr), __ATOMIC_RELAXED);
	workq_free(mr->deletes);
	mr->deletes = NULL;
	if (!others && session_unlock(mr, sid, "", op_deadline(mr)))
		unclean = 1;
	if (unclean)
		return; /* whoever finds the lapsed session does the rest */
	r = session_leave(mr, sid, "", op_deadline(mr));
	if (r)
		log_warn("session %" PRIu64 " stays until it lapses: %s", sid, strerror(-r));
	__atomic_store_n(&mr->base.session, 0, __ATOMIC_RELAXED);
}

void redis_stop(struct meta *m)
{
	struct meta_redis *mr = redis_engine(m);

	mtx_lock(&m->lock);
	mr->stopping = true;
	cond_broadcast(&mr->wake);
	mtx_unlock(&m->lock);
	__atomic_store_n(&mr->jobs.cancel, 1, __ATOMIC_RELAXED);
	compactor_stop(mr);
	if (mr->job_running)
		pthread_join(mr->job_thread, NULL);
	mr->job_running = false;
	if (mr->beat_running)
		pthread_join(mr->beat_thread, NULL);
	if (mr->stat_running)
		pthread_join(mr->stat_thread, NULL); /* flushes before it ends */
	mr->beat_running = mr->stat_running = false;
	free(TAKE_PTR(mr->lapsed));
	mr->n_lapsed = 0;
	if (m->session && !m->gone)
		session_end(mr);
	__atomic_store_n(&mr->delete_until_us, 1, __ATOMIC_RELAXED);
	workq_free(mr->deletes);
	mr->deletes = NULL;
}
