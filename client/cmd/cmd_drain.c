/* SPDX-License-Identifier: Apache-2.0 */
/* stoke drain: asks a member of a cache group to move what it holds to the others and leave, and
 * waits until it did. One thread; blocks. */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>

#include "client/cmd/cmd.h"
#include "common/block/registry.h"
#include "common/clock.h"

enum { CALL_US = 10000000, AWAY_US = 60000000, LOOK_US = 300000, GROUP_MAX = MSG_NAME_MAX };

struct drain_conf {
	char *group;
	bool undo;
};

static const struct conf_option options[] = {
	{"cache-group", 0, CONF_STR, offsetof(struct drain_conf, group), NULL, NULL,
	 "the group, when the volume has several with such a member"},
	{"undo", 0, CONF_FLAG, offsetof(struct drain_conf, undo), "false", NULL,
	 "take the wish back: what is not moved yet stays, and the member joins again"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke drain [options] META [NODE]",
	.summary =
		"have a member of a cache group move what it holds to the others, and leave. NODE: "
		"its id or the beginning of it, its address, or address:port; default: the "
		"member on this machine",
	.min_args = 1,
	.max_args = 2,
};

/* the member that is meant, among those of all groups */
struct search {
	const char *group, *node; /* NULL: any, this machine's */
	struct ifaddrs *local;
	unsigned found;
	char in_group[GROUP_MAX + 1];
	struct member member;
	struct registry_note note;
};

static bool is_local(const struct ifaddrs *a, const char *addr)
{
	char text[INET6_ADDRSTRLEN];

	for (; a; a = a->ifa_next) {
		const struct sockaddr *s = a->ifa_addr;
		const void *ip = NULL;

		if (s && s->sa_family == AF_INET)
			ip = &((const struct sockaddr_in *)(const void *)s)->sin_addr;
		else if (s && s->sa_family == AF_INET6)
			ip = &((const struct sockaddr_in6 *)(const void *)s)->sin6_addr;
		if (ip && inet_ntop(s->sa_family, ip, text, sizeof(text)) && !strcmp(text, addr))
			return true;
	}
	return false;
}

static bool is_meant(const struct search *s, const struct member *m)
{
	char place[MEMBER_ADDR_MAX + 8];

	if (!s->node)
		return is_local(s->local, m->addr);
	(void)snprintf(place, sizeof(place), "%s:%u", m->addr, m->port);
	return !strcmp(s->node, m->addr) || !strcmp(s->node, place) ||
	       !strncmp(s->node, m->id, strlen(s->node));
}

static void look(const char *group, const struct cluster *c, const struct registry_note *notes,
		 void *arg)
{
	struct search *s = arg;

	if (s->group && strcmp(s->group, group) != 0)
		return;
	for (size_t i = 0; i < c->n; i++) {
		if (!is_meant(s, &c->members[i]))
			continue;
		s->found++;
		(void)snprintf(s->in_group, sizeof(s->in_group), "%s", group);
		s->member = c->members[i];
		s->note = notes[i];
	}
}

static int find(struct redis *r, struct search *s, struct str *err)
{
	int e;

	if (!s->node && getifaddrs(&s->local) < 0)
		return -errno;
	e = registry_each(r, clock_us() + CALL_US, look, s);
	if (s->local)
		freeifaddrs(s->local);
	if (e < 0)
		return e;
	if (s->found == 1)
		return 0;
	str_addf(err, "%s %s %s of a cache group: stoke status shows them all",
		 s->found ? "more than one member" : "no member",
		 s->node ? "is" : "has an address of this", s->node ? s->node : "machine");
	return s->found ? -EEXIST : -ENOENT;
}

/* what a look at the registry tells of one member */
struct watch {
	const char *group, *id;
	bool there;
	struct registry_note note;
};

static void watch_one(const char *group, const struct cluster *c, const struct registry_note *notes,
		      void *arg)
{
	struct watch *w = arg;
	int i = strcmp(group, w->group) == 0 ? cluster_index(c, w->id) : -1;

	if (i < 0)
		return;
	w->there = true;
	w->note = notes[i];
}

static void show(const struct registry_note *now, struct registry_note *last)
{
	if (now->to_move && (now->moved != last->moved || now->to_move != last->to_move))
		(void)fprintf(stderr, "stoke drain: %" PRIu64 " of %" PRIu64 " blocks moved\n",
			      now->moved, now->to_move);
	*last = *now;
}

/* it is gone: how */
static int ended(struct registry *g, const char *id, struct str *err)
{
	uint64_t lost = 0;

	if (registry_left(g, clock_us() + CALL_US, id, &lost) != 1) {
		str_addf(err,
			 "member %s went away before it had moved everything: it was stopped, or "
			 "died",
			 id);
		return -EHOSTDOWN;
	}
	if (lost == 0)
		return 0;
	str_addf(err,
		 "member %s has left the group, but %" PRIu64 " block(s) were not taken by the "
		 "members that are to have them: the object store will be asked for them (the "
		 "daemon's log and stoke_cached_disk_* of the others say more)",
		 id, lost);
	return -EIO;
}

/* until the member is gone */
static int follow(struct redis *r, struct registry *g, const struct search *s, struct str *err)
{
	struct registry_note last = {0};
	uint64_t heard_us = clock_us();
	unsigned unasked = 0;

	for (;;) {
		struct watch w = {.group = s->in_group, .id = s->member.id};
		int e = registry_each(r, clock_us() + CALL_US, watch_one, &w);

		if (e < 0 && clock_us() > heard_us + AWAY_US)
			return e;
		if (e == 0) {
			heard_us = clock_us();
			if (!w.there)
				break;
			show(&w.note, &last);
			/* members and notes are read one after the other: once may be the moment in
			 * which it leaves */
			unasked = w.note.drain ? 0 : unasked + 1;
			if (unasked > 1) {
				str_addf(err, "somebody took the wish back (--undo)");
				return -ECANCELED;
			}
		}
		usleep(LOOK_US);
	}
	return ended(g, s->member.id, err);
}

static int drain(struct redis *r, const struct drain_conf *conf, const char *node, struct str *err)
{
	struct search s = {.group = conf->group, .node = node};
	struct registry *g = NULL;
	int e = find(r, &s, err);

	if (e == 0)
		e = registry_new(r, s.in_group, &g);
	if (e == 0)
		e = registry_wish(g, clock_us() + CALL_US, s.member.id, !conf->undo);
	if (e == 0 && !conf->undo) {
		(void)fprintf(stderr,
			      "stoke drain: member %s (%s:%u) of group %s moves what it holds; "
			      "it goes on when this command is interrupted\n",
			      s.member.id, s.member.addr, s.member.port, s.in_group);
		e = follow(r, g, &s, err);
	}
	if (e == 0)
		(void)fprintf(stderr, "stoke drain: member %s %s\n", s.member.id,
			      conf->undo ? "stays in the group"
					 : "has left the group: it can be stopped");
	registry_free(g);
	return e;
}

static int drain_run(int argc, char **argv)
{
	_cleanup_(str_fini) struct str err = STR_INIT;
	_cleanup_(freep) char *url = NULL;
	struct redis *redis = NULL;
	struct drain_conf conf;
	char **args;
	size_t n;
	int r = conf_parse(&table, &conf, argc, argv, &args, &n, &err);

	if (r) {
		if (r < 0)
			(void)cmd_error("drain", "%s", str_c(&err));
		conf_fini(&table, &conf);
		return r < 0 ? 2 : 0;
	}
	url = strdup(args[0]);
	redis_blank_password(args[0]);
	r = url ? redis_new(url, NULL, &redis, &err) : -ENOMEM;
	if (r == 0)
		r = drain(redis, &conf, n > 1 ? args[1] : NULL, &err);
	if (r < 0)
		(void)cmd_error("drain", "%s", err.len ? str_c(&err) : strerror(-r));
	redis_free(redis);
	conf_fini(&table, &conf);
	return r < 0;
}

const struct cmd cmd_drain = {
	"drain", "move what a member of a cache group holds, and have it leave", drain_run, &table};
