/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and networks. Pure; main's thread, at start. */
#include "cached/network.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>

#include "common/parse.h"

struct network {
	int family;
	uint8_t b[16];
	unsigned bits;
};

static int parse_network(const char *s, size_t len, struct network *ret)
{
	char text[INET6_ADDRSTRLEN + 4];
	uint64_t bits;
	char *slash;

	*ret = (struct network){0};
	if (len >= sizeof(text))
		return -EINVAL;
	memcpy(text, s, len);
	text[len] = 0;
	slash = strchr(text, '/');
	if (!slash)
		return -EINVAL;
	*slash = 0;
	ret->family = strchr(text, ':') ? AF_INET6 : AF_INET;
	if (inet_pton(ret->family, text, ret->b) != 1 ||
	    parse_u64(slash + 1, ret->family == AF_INET ? 32 : 128, &bits) < 0)
		return -EINVAL;
	ret->bits = (unsigned)bits;
	return 0;
}

static const void *bytes_of(const struct sockaddr *a)
{
	return a->sa_family == AF_INET
		       ? (const void *)&((const struct sockaddr_in *)(const void *)a)->sin_addr
		       : &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
}

static bool is_in(const struct network *n, const struct sockaddr *a)
{
	const uint8_t *b = bytes_of(a);
	unsigned whole = n->bits / 8, rest = n->bits % 8;

	if (a->sa_family != n->family || memcmp(b, n->b, whole) != 0)
		return false;
	return !rest || (b[whole] ^ n->b[whole]) >> (8 - rest) == 0;
}

/* n NULL: any IPv4 address that is no loopback */
static bool find(const struct network *n, const struct ifaddrs *list, char ret[MEMBER_ADDR_MAX])
{
	for (; list; list = list->ifa_next) {
		const struct sockaddr *a = list->ifa_addr;

		if (!a || !(list->ifa_flags & IFF_UP) ||
		    (a->sa_family != AF_INET && a->sa_family != AF_INET6))
			continue;
		if (n ? !is_in(n, a) : a->sa_family != AF_INET || (list->ifa_flags & IFF_LOOPBACK))
			continue;
		if (inet_ntop(a->sa_family, bytes_of(a), ret, MEMBER_ADDR_MAX))
			return true;
	}
	return false;
}

int network_pick(const char *networks, const struct ifaddrs *list, char ret[MEMBER_ADDR_MAX],
		 struct str *err)
{
	if (!networks) {
		if (!find(NULL, list, ret))
			(void)snprintf(ret, MEMBER_ADDR_MAX, "127.0.0.1");
		return 0;
	}
	for (const char *s = networks;; s++) {
		size_t len = strcspn(s, ",");
		struct network n;

		if (parse_network(s, len, &n) < 0) {
			str_addf(err, "--group-network: '%.*s' is not a network like 10.1.0.0/16",
				 (int)MIN(len, (size_t)64), s);
			return -EINVAL;
		}
		if (find(&n, list, ret))
			return 0;
		s += len;
		if (!*s)
			break;
	}
	str_addf(err, "--group-network %s: no address of this host is in it", networks);
	return -EADDRNOTAVAIL;
}
