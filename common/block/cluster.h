/* SPDX-License-Identifier: Apache-2.0 */
/* The group as one immutable snapshot: members, and the ring of their points that all rings are
 * views of. Counted; swapped whole. */
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

/* One ring has the points of all members; the rings that are spoken of are this one without some of
 * them: the ring (joining + active: who serves), the holder ring (active + draining), a sub-group's
 * (of the ring, only its members).
 *
 * Where a block is: along the ring from its key on, the members up to the first active one are its
 * *path*. A block that the group has is at one of them, for a member comes into the ring as joining
 * and goes out as draining, which only makes paths longer, and before a member becomes active
 * (which cuts off what lies behind it) or leaves, it has copied or handed on what that would hide:
 * see cached/mover.h. */
struct cluster { /* read only */
	unsigned refs;
	uint64_t version; /* ring version */
	size_t n;
	struct member *members; /* sorted by id */
	struct ring *ring;	/* of all: indices into members */
	uint8_t *state;		/* enum member_state, by member */
	/* sub-groups are numbered from 1 on, by name; 0: none */
	uint16_t *sub; /* by member */
	size_t n_subs;
	const char **sub_name; /* by number - 1; into members */
	size_t *sub_serving;   /* by number - 1: as serving */
	size_t serving;	       /* joining or active, with a weight */
	size_t holding;	       /* active or draining, with a weight */
	size_t active;	       /* with a weight */
	/* so often, as far as this process knows, a member with a weight went: it left or began to,
	 * was started anew, or changed its weight */
	uint64_t losses;
};

/* what came from outside: id and addr are printable texts that end, a socket path has port 0 and
 * nothing else has, weight and state are in range, a sub-group is printable */
bool member_valid(const struct member *m);
/* copies members (valid, ids unique); NULL: no memory */
struct cluster *cluster_new(uint64_t version, const struct member *members, size_t n);
/* the same, in less time when little changed since old (may be NULL, keeps its reference), and
 * losses go on from there */
struct cluster *cluster_next(const struct cluster *old, uint64_t version,
			     const struct member *members, size_t n);
struct cluster *cluster_ref(struct cluster *c);
void cluster_unref(struct cluster *c);
/* owner, successor, … of a key: indices into members; returns how many */
size_t cluster_find(const struct cluster *c, const struct block_key *k, uint32_t *ret, size_t max);
size_t cluster_find_holders(const struct cluster *c, const struct block_key *k, uint32_t *ret,
			    size_t max);
/* the same among the members of the sub-group; 0 when it has none */
size_t cluster_find_sub(const struct cluster *c, const struct block_key *k, const char *sub_group,
			uint32_t *ret, size_t max);
/* The members of the key's path, at most max: the holder ring's owner first, he most likely has it,
 * then the others as the ring has them. Without an active member all are on it. */
size_t cluster_find_path(const struct cluster *c, const struct block_key *k, uint32_t *ret,
			 size_t max);
/* whether the member is on the key's path, or would be its owner if it were active */
bool cluster_on_path(const struct cluster *c, const struct block_key *k, uint32_t member);
/* the first active member along the ring, the end of the path; -1: there is none */
int cluster_find_active(const struct cluster *c, const struct block_key *k);
/* index of the member with this id, or -1 */
int cluster_index(const struct cluster *c, const char *id);
/* RING answers: appends the wire form for who speaks this version of the protocol (1 knows no
 * sub-groups) / reads either. -EPROTO */
struct str;
int cluster_encode(const struct cluster *c, unsigned version, struct str *out);
/* old: as for cluster_next */
int cluster_decode(const struct cluster *old, const uint8_t *p, size_t n, struct cluster **ret);

/* where the current snapshot hangs */
struct cluster_view {
	struct mtx lock;
	struct cluster *current;
	bool consumer; /* atomic, a daemon's: it is no member, and nobody waits for it */
};
void cluster_view_init(struct cluster_view *v);
void cluster_view_fini(struct cluster_view *v);
/* a reference, or NULL before the first */
struct cluster *cluster_view_get(struct cluster_view *v);
/* takes c over */
void cluster_view_set(struct cluster_view *v, struct cluster *c);

#endif
