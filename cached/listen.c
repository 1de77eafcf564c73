/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets, addresses and keys of the daemon. Main's thread, at start. */
#include "cached/listen.h"

#include <grp.h>
#include <ifaddrs.h>
#include <sys/stat.h>

#include "cached/network.h"
#include "cached/notify.h"
#include "common/hash.h"
#include "common/parse.h"

enum { OWN_PORT = 20000, OWN_PORTS = 10000 };

int listen_keys(const struct daemon_conf *c, struct keys **ret, struct str *err)
{
	const struct keys_conf conf = {
		.secret_file = c->group_secret_file,
		.tls = {.cert = c->group_tls_cert,
			.key = c->group_tls_key,
			.ca = c->group_tls_ca,
			.name = c->group_tls_name},
	};

	return c->cache_group ? keys_new(&conf, ret, err) : 0;
}

static int own_address(const struct daemon_conf *conf, char ret[MEMBER_ADDR_MAX], struct str *err)
{
	struct ifaddrs *list = NULL;
	int r;

	if (conf->group_ip) {
		(void)snprintf(ret, MEMBER_ADDR_MAX, "%s", conf->group_ip);
		return 0;
	}
	if (getifaddrs(&list) < 0) {
		r = -errno;
		str_addf(err, "addresses of this host: %s", strerror(-r));
		return r;
	}
	r = network_pick(conf->group_network, list, ret, err);
	freeifaddrs(list);
	return r;
}

/* the configuration may have changed since it was made */
static bool is_wanted(const struct daemon_conf *conf, int fd)
{
	struct sockaddr_storage a = {0};
	socklen_t len = sizeof(a);

	if (getsockname(fd, (struct sockaddr *)&a, &len) == 0 && a.ss_family == AF_UNIX)
		return conf->socket != NULL;
	return conf->cache_group && !conf->no_sharing;
}

/* sockets that listen already: of the service manager, or of the program before this one */
static int adopt_all(const struct daemon_conf *conf, struct server *s, struct member *self,
		     bool *ret_local, struct str *err)
{
	int fd[DAEMON_SOCKETS], r = 0;
	bool ours;
	unsigned n = notify_sockets(fd, DAEMON_SOCKETS, &ours);

	for (unsigned i = 0; r == 0 && i < n; i++) {
		uint16_t port = 0;

		if (ours && !is_wanted(conf, fd[i])) {
			(void)close(fd[i]);
			continue;
		}
		r = server_adopt(s, fd[i], ours, &port);
		if (port)
			self->port = port;
		else if (r == 0)
			*ret_local = true;
	}
	if (r < 0)
		str_addf(err, "a socket that was given by the service manager cannot be used: %s",
			 strerror(-r));
	return r;
}

/* Which port is nobody's wish: the node's own, by its id, while it is free. Whoever is started
 * again has the address that the others know. Below those that the kernel gives to connections. */
static uint16_t own_port(const char *id)
{
	return (uint16_t)(OWN_PORT + hash64(id, strlen(id)) % OWN_PORTS);
}

static int listen_tcp(const struct daemon_conf *conf, struct server *s, struct member *self,
		      struct str *err)
{
	int r = own_address(conf, self->addr, err);

	if (r < 0 || self->port)
		return r;
	if (conf->group_port == 0 &&
	    server_listen_tcp(s, self->addr, own_port(self->id), &self->port) == 0)
		return 0;
	r = server_listen_tcp(s, self->addr, (uint16_t)conf->group_port, &self->port);
	if (r < 0)
		str_addf(err, "cannot listen on %s port %llu: %s", self->addr,
			 (unsigned long long)conf->group_port, strerror(-r));
	return r;
}

int listen_all(const struct daemon_conf *conf, struct server *s, struct member *self,
	       struct str *err)
{
	bool local = false;
	int r = adopt_all(conf, s, self, &local, err);

	if (r == 0 && conf->cache_group && !conf->no_sharing)
		r = listen_tcp(conf, s, self, err);
	if (r == 0 && conf->socket && !local) {
		r = server_listen_unix(s, conf->socket);
		if (r == -EADDRINUSE)
			str_addf(err, "another process serves the socket %s", conf->socket);
		else if (r < 0)
			str_addf(err, "cannot make the socket %s: %s", conf->socket, strerror(-r));
	}
	return r;
}

int listen_guard(const struct daemon_conf *conf, mode_t *ret_mode, gid_t *ret_group,
		 struct str *err)
{
	const char *g = conf->socket_group;
	uint64_t number;
	char *end;
	unsigned long mode = strtoul(conf->socket_mode, &end, 8);

	if (*end || end == conf->socket_mode || mode == 0 || mode > 0777) {
		str_addf(err, "--socket-mode %s: octal permissions like 0660 are meant",
			 conf->socket_mode);
		return -EINVAL;
	}
	*ret_mode = (mode_t)mode;
	*ret_group = 0;
	if (g && parse_u64(g, UINT32_MAX, &number) == 0) {
		*ret_group = (gid_t)number;
	} else if (g) {
		const struct group *entry = getgrnam(g);

		if (!entry) {
			str_addf(err, "--socket-group %s: there is no such group", g);
			return -EINVAL;
		}
		*ret_group = entry->gr_gid;
	}
	return 0;
}

/* --- --check-config --- */

static int check_dirs(const char *list, struct str *err)
{
	for (const char *p = list; *p;) {
		size_t len = strcspn(p, ":");
		char dir[4096];
		struct stat st;

		if (len >= sizeof(dir))
			return -ENAMETOOLONG;
		memcpy(dir, p, len);
		dir[len] = 0;
		/* one that is missing is made at start */
		if (stat(dir, &st) == 0 && (!S_ISDIR(st.st_mode) || access(dir, W_OK) < 0)) {
			int e = S_ISDIR(st.st_mode) ? errno : ENOTDIR;

			str_addf(err, "--cache-dir %s: %s", dir, strerror(e));
			return -e;
		}
		p += len + (p[len] == ':');
	}
	return 0;
}

int daemon_check(const struct daemon_conf *conf, struct str *err)
{
	struct keys *keys = NULL;
	char addr[MEMBER_ADDR_MAX];
	mode_t mode;
	gid_t group;
	int r = listen_keys(conf, &keys, err);

	keys_free(keys);
	if (r == 0)
		r = check_dirs(conf->cache_dir, err);
	if (r == 0)
		r = listen_guard(conf, &mode, &group, err);
	if (r == 0 && conf->cache_group)
		r = own_address(conf, addr, err);
	return r;
}
