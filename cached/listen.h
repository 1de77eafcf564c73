/* SPDX-License-Identifier: Apache-2.0 */
/* How the others reach this daemon and what they have to prove, made of its options. */
#ifndef STOKE_CACHED_LISTEN_H
#define STOKE_CACHED_LISTEN_H

#include "cached/daemon.h"
#include "cached/worker.h"

/* 0, or -errno with one line in err */
int listen_keys(const struct daemon_conf *conf, struct keys **ret, struct str *err);
/* who may connect to the unix socket */
int listen_guard(const struct daemon_conf *conf, mode_t *ret_mode, gid_t *ret_group,
		 struct str *err);
/* takes the sockets that are given (notify.h), and makes what is missing; self: address and port */
int listen_all(const struct daemon_conf *conf, struct server *s, struct member *self,
	       struct str *err);

#endif
