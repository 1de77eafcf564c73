/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the S3 store share: the store, a slot for one request under way, and the two
 * questions about an operation: what is asked, and what does the answer mean (private to
 * object_s3*.c). */
#ifndef STOKE_COMMON_OBJECT_OBJECT_S3_H
#define STOKE_COMMON_OBJECT_OBJECT_S3_H

#include "common/mtx.h"
#include "common/object/object.h"
#include "common/object/object_s3_cred.h"
#include "common/object/object_s3_http.h"
#include "common/object/object_s3_url.h"
#include "common/workq.h"

struct s3_slot;

struct s3 {
	struct object_store base;
	struct loop *loop;
	/* the loop's after start: its region may be corrected by the server */
	struct s3_endpoint endpoint;
	unsigned retries, max_conns;
	struct workq *sums; /* checksums of what is PUT: milliseconds a block, not on the loop */
	bool own_sums;
	struct mtx lock;
	struct list_node inbox GUARDED_BY(lock); /* object_req.link, on the way to the loop */
	bool posted GUARDED_BY(lock);
	struct loop_job job;
	/* the loop's */
	struct s3_http *http;
	struct s3_cred *cred;
	struct list_node queue;	       /* object_req.link, in order of arrival */
	struct loop_timer queue_timer; /* the nearest deadline in queue */
	struct s3_slot *slots;	       /* max_conns of them */
	struct object_tier *tiers;     /* tier 0 first */
	size_t n_tiers;
	struct list_node idle; /* s3_slot.link */
	bool closing;
};

/* sums of a PUT's bytes, req->priv until a slot takes them over */
struct s3_sums {
	struct workq_job job;
	struct s3 *s3;
	struct object_req *req;
	uint32_t crc;
	char sha256[65]; /* or "UNSIGNED-PAYLOAD" */
};

/* of an answer's headers, what matters */
struct s3_answer {
	char etag[80]; /* strong ones, quotes included; else "" */
	char region[64];
	uint64_t range_off; /* Content-Range's first byte */
	bool has_range, has_crc;
	uint32_t crc;
};

struct s3_slot {
	struct list_node link;
	struct s3 *s3;
	struct object_req *req; /* NULL: idle */
	struct s3_exchange x;
	struct loop_timer wait; /* back-off */
	unsigned attempt;	/* failed ones that count */
	uint64_t tried_us;	/* the last one began */
	unsigned knocks;	/* those that do not */
	/* the request as sent */
	struct str url, headers, body;
	struct s3_sums *sums;
	/* the answer */
	struct s3_answer answer;
	struct str text; /* its body, when it is XML */
	/* GET, over all attempts */
	bool begun;		/* the answer's headers were judged */
	bool growing;		/* its length was confirmed: progress runs */
	bool shown;		/* progress ran: bytes below req->got must stay */
	char etag[80];		/* of the object they are from */
	bool has_crc;		/* the object's own CRC-32C is known */
	uint32_t want_crc, crc; /* it; and that of [0, req->got) */
	/* what the server taught us, over all attempts */
	bool no_location;	 /* CREATE_BUCKET without LocationConstraint */
	bool renewed, relocated; /* keys, region: once each */
};

enum s3_verdict {
	S3_END,		/* *ret_status is the request's */
	S3_RETRY,	/* after a pause, if attempts are left; req->reason says why */
	S3_RETRY_LATER, /* the same, the server asked for less: longer pauses */
	S3_AGAIN,	/* at once, with something changed */
};

/* fills slot's request (method, url, headers, body) and signs it with k. 0 or -errno */
int s3_op_build(struct s3_slot *slot, const struct s3_keys *k);
/* r as s3_exchange.done has it */
enum s3_verdict s3_op_judge(struct s3_slot *slot, int r, int *ret_status);
/* hooks of slot->x */
void s3_op_header(struct s3_exchange *x, const char *name, size_t name_len, const char *value);
int s3_op_data(struct s3_exchange *x, const unsigned char *p, size_t n);

#endif
