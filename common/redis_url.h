/* SPDX-License-Identifier: Apache-2.0 */
/* The URL of a Redis server, taken apart. Pure, but for the environment and the file that may hold
 * the password. Used by redis.c. */
#ifndef STOKE_COMMON_REDIS_URL_H
#define STOKE_COMMON_REDIS_URL_H

#include "common/str.h"

struct redis_url {
	char *host; /* NULL: unix socket */
	uint16_t port;
	char *path;	       /* of the unix socket */
	char *user, *password; /* NULL: none */
	unsigned db;
	uint64_t read_timeout_us; /* 0: not said */
};

/* 0; -EINVAL, -EOPNOTSUPP (Sentinel, Cluster, TLS, another engine), -ENOMEM, or -errno of the
 * password's file: err holds one line without the password. Looks for the password where JuiceFS
 * looks (docs/format.md §1.4). */
int redis_url_parse(const char *url, struct redis_url *ret, struct str *err);
void redis_url_fini(struct redis_url *u);
/* the url for people, the password as ****; NULL: no memory */
char *redis_url_name(const struct redis_url *u);

/* A connected, blocking socket, by deadline_us. 0; -ECONNREFUSED (nobody there, or the name is
 * unknown), -ETIMEDOUT, or another -errno; a line about it is appended to why (may be NULL). */
int redis_connect_fd(const struct redis_url *u, uint64_t deadline_us, int *ret_fd, struct str *why);

#endif
