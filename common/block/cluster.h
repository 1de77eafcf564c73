/* SPDX-License-Identifier: Apache-2.0 */
/* The group as one immutable snapshot: members and the two rings made of them. Counted; swapped
 * whole. */
#ifndef STOKE_COMMON_BLOCK_CLUSTER_H
#define STOKE_COMMON_BLOCK_CLUSTER_H

#include "common/block/key.h"
#include "common/mtx.h"
#include "common/ring.h"

enum {
	MEMBER_ID_MAX = 64,
	MEMBER_ADDR_MAX = 108,
	MEMBER_SUB_MAX = 64,
	CLUSTER_MEMBERS_MAX = 10000,
	MEMBER_WEIGHT_MAX = 100000
};
enum member_state { MEMBER_JOINING = 1, MEMBER_ACTIVE = 2, MEMBER_DRAINING = 3 };

struct member {
	char id[MEMBER_ID_MAX];	    /* stable over restarts: kept in the cache directory */
	char addr[MEMBER_ADDR_MAX]; /* IP or host name; an absolute path is a unix socket */
	uint16_t port;		    /* 0 with a unix socket */
	uint32_t weight;	    /* 0: serves nothing of the ring; 100 is the unit */
	enum member_state state;
	char sub_group[MEMBER_SUB_MAX]; /* the rack or zone; "": none */
};

struct cluster { /* read only */
	unsigned refs;
	uint64_t version; /* ring version */
	size_t n;
	struct member *members; /* sorted by id */
	struct ring *ring;	/* joining + active: indices into members, see cluster_find */
	struct ring *holders;	/* active + draining */
	uint32_t *ring_member, *holder_member;
};

/* what came from outside: id and addr are printable texts that end, a socket path has port 0 and
 * nothing else has, weight and state are in range, a sub-group is printable */
bool member_valid(const struct member *m);
/* copies members (valid, ids unique); NULL: no memory */
struct cluster *cluster_new(uint64_t version, const struct member *members, size_t n);
struct cluster *cluster_ref(struct cluster *c);
void cluster_unref(struct cluster *c);
/* owner, successor, … of a key: indices into members; returns how many */
size_t cluster_find(const struct cluster *c, const struct block_key *k, uint32_t *ret, size_t max);
size_t cluster_find_holders(const struct cluster *c, const struct block_key *k, uint32_t *ret,
			    size_t max);
/* index of the member with this id, or -1 */
int cluster_index(const struct cluster *c, const char *id);
/* RING answers: appends the wire form for who speaks this version of the protocol (1 knows no
 * sub-groups) / reads either. -EPROTO */
struct str;
int cluster_encode(const struct cluster *c, unsigned version, struct str *out);
int cluster_decode(const uint8_t *p, size_t n, struct cluster **ret);

/* where the current snapshot hangs */
struct cluster_view {
	struct mtx lock;
	struct cluster *current;
};
void cluster_view_init(struct cluster_view *v);
void cluster_view_fini(struct cluster_view *v);
/* a reference, or NULL before the first */
struct cluster *cluster_view_get(struct cluster_view *v);
/* takes c over */
void cluster_view_set(struct cluster_view *v, struct cluster *c);

#endif
