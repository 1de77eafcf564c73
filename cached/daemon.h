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

enum { DAEMON_SOCKETS = 8 };

/* Starts everything that serves volume meta (a Redis URL); 0, or -errno with one line in err. A
 * Redis that is away is waited for, 30 s, or until SIGTERM or SIGINT is pending.
 * conf's strings are kept. Sockets that are given by the environment are taken (notify.h). */
int daemon_start(const struct daemon_conf *conf, const char *meta, struct daemon **ret,
		 struct str *err);
/* the volume it was started for is no longer in Redis: it has sent itself SIGTERM, and is to end as
 * failed, so that it is started anew */
bool daemon_is_replaced(struct daemon *d);
/* What can be checked without serving: the secret and certificates, directories, addresses. 0, or
 * -errno with one line in err */
int daemon_check(const struct daemon_conf *conf, struct str *err);
/* its loops run: false never comes, it hangs instead, and the watchdog ends the process */
bool daemon_is_alive(struct daemon *d);
/* 0: Redis answers; -errno after half a second */
int daemon_hears_redis(struct daemon *d);
/* Finishes what is being served, for a moment; then everything waits for the next program: it is to
 * be executed at once, in this process, with these sockets (DAEMON_SOCKETS at most) and this index
 * (-1: none). The member stays in the group. Returns how many */
unsigned daemon_hand_over(struct daemon *d, int *ret, int *ret_index);
/* Reads the group's secret and certificates again; what is in use stays in use when they are not
 * good. now (NULL: not good): the options DAEMON_CHANGING are taken from it. Says in the log what
 * changed. */
#define DAEMON_CHANGING "rebalance-limit", "hot-share", "scrub-rate"
void daemon_reload(struct daemon *d, const struct daemon_conf *now);
/* Leaves the group, finishes what is being served, frees. false: something was still under way
 * after the time allowed (11 s: an object store or a disk that does not answer), and nothing was
 * freed: the process is to end at once. Its exit status is the same: nothing is lost by it */
bool daemon_stop(struct daemon *d);

#endif
