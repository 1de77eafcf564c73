/* SPDX-License-Identifier: Apache-2.0 */
/* Which of this host's addresses the group reaches it at. */
#ifndef STOKE_CACHED_NETWORK_H
#define STOKE_CACHED_NETWORK_H

#include <ifaddrs.h>

#include "common/block/cluster.h"
#include "common/str.h"

/* networks: "10.1.0.0/16,fd00::/8", the first of them that an address of an interface in list is in
 * decides; NULL: the first address that is no loopback, 127.0.0.1 without any. 0, -EINVAL (no
 * network) or -EADDRNOTAVAIL (no such address), with a line in err */
int network_pick(const char *networks, const struct ifaddrs *list, char ret[MEMBER_ADDR_MAX],
		 struct str *err);

#endif
