/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon as a whole: everything between the options and the wait for a signal. */
#ifndef STOKE_CACHED_DAEMON_H
#define STOKE_CACHED_DAEMON_H

#include "common/conf.h"

struct daemon_conf {
#define OPTION(member, name, letter, type, dflt, env, help) CONF_C_##type member;
#include "cached/conf.def"
#undef OPTION
};

struct daemon;

/* Starts everything that serves volume meta (a Redis URL); 0, or -errno with one line in err */
int daemon_start(const struct daemon_conf *conf, const char *meta, struct daemon **ret,
		 struct str *err);
/* the volume it was started for is no longer in Redis: it has sent itself SIGTERM, and is to end as
 * failed, so that it is started anew */
bool daemon_is_replaced(struct daemon *d);
/* Reads the group's secret and certificates again; what is in use stays in use when they are not
 * good. Says in the log what changed. */
void daemon_reload(struct daemon *d);
/* Leaves the group, finishes what is being served, frees. false: something was still under way
 * after the time allowed, and nothing was freed */
bool daemon_stop(struct daemon *d);

#endif
