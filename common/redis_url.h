/* SPDX-License-Identifier: Apache-2.0 */
/* The URL of a Redis, taken apart. Pure, but for the environment and the file that may hold the
 * password. Used by redis*.c. */
#ifndef STOKE_COMMON_REDIS_URL_H
#define STOKE_COMMON_REDIS_URL_H

#include "common/str.h"

enum { REDIS_HOST_MAX = 255, REDIS_ADDRS_MAX = 256 };

struct redis_addr {
	char host[REDIS_HOST_MAX + 1]; /* name or number, IPv6 without brackets; "": see path */
	uint16_t port;
};

enum redis_mode { REDIS_SINGLE, REDIS_SENTINEL, REDIS_CLUSTER };
/* who answers those who only read (route-read) */
enum redis_route { ROUTE_PRIMARY, ROUTE_REPLICA, ROUTE_RANDOM, ROUTE_LATENCY };

struct redis_tls_conf {
	char *cert, *key;  /* files, PEM; NULL: no certificate of ours */
	char *ca;	   /* file, PEM; NULL: those of the system */
	char *server_name; /* instead of the host's name; NULL: the host's */
	bool skip_verify;
};

struct redis_url {
	enum redis_mode mode;	  /* SINGLE may turn out to be a cluster's node */
	struct redis_addr *addrs; /* the server, the sentinels, or some nodes of the cluster */
	size_t n_addrs;
	char *master;				   /* its name, for the sentinels */
	char *path;				   /* of a unix socket, instead of addrs */
	char *user, *password, *sentinel_password; /* NULL: none */
	bool tls;
	struct redis_tls_conf tls_conf;
	enum redis_route route;
	unsigned db;
	/* 0: not said */
	uint64_t read_timeout_us, dial_timeout_us;
	uint64_t min_backoff_us, max_backoff_us;
};

/* 0; -EINVAL, -EOPNOTSUPP (another engine), -ENOMEM, or -errno of the password's file: err holds
 * one line without the password. Looks for the password where JuiceFS looks (docs/format.md
 * §1.4). */
int redis_url_parse(const char *url, struct redis_url *ret, struct str *err);
void redis_url_fini(struct redis_url *u);
/* the url for people, the password as ****; NULL: no memory */
char *redis_url_name(const struct redis_url *u);

/* the options behind '?' (redis_option.c): those that JuiceFS and go-redis know are honoured, or
 * accepted where they tune a client that is not ours; others are -EINVAL */
int redis_url_options(const char *query, struct redis_url *u, struct str *err);
int redis_url_db(const char *s, size_t n, struct redis_url *u, struct str *err);
/* a copy with %xx (and + as space, in a query) resolved; -EINVAL when one is not hex or is a NUL.
 * An empty text leaves ret as it is. */
int redis_url_unescape(const char *s, size_t n, bool query, char **ret);

bool redis_addr_same(const struct redis_addr *a, const struct redis_addr *b);

/* A connected, non-blocking socket to a unix path or (NULL) an address, by deadline_us. 0;
 * -ECONNREFUSED (nobody there, or the name is unknown), -ETIMEDOUT, or another -errno; a line about
 * it is appended to why (may be NULL). */
int redis_connect_fd(const char *path, const struct redis_addr *a, uint64_t deadline_us,
		     int *ret_fd, struct str *why);

#endif
