/* SPDX-License-Identifier: Apache-2.0 */
/* Object stores: one interface, completions instead of results. An implementation embeds struct
 * object_store and has a const table.
 *
 * A request belongs to the store from object_start until req->done runs (once, on any thread).
 * Retries, time-outs per phase and back-off happen inside; progress (may be NULL) runs as bytes of
 * a GET arrive, with how many from the start are valid, only after the length was confirmed to be
 * what was asked for, and on the thread that will run done. It may be called again from 0 after a
 * retry; bytes that were once valid stay the same (If-Match), else the request fails with -ESTALE.
 *
 * The length is what was asked for when it is len, or, for a whole object (len 0), cap. A GET with
 * progress that had to be repeated goes on behind the valid bytes and never writes them again. A
 * whole GET of an S3 object that carries its CRC-32C (docs/format.md §5.7) is checked against it.
 *
 * Errors: -ENOENT (404), -EACCES (403), -ENODATA (bucket missing), -EIO (after the retries),
 * -ETIMEDOUT (req->deadline_us passed), -EMSGSIZE (object longer than cap), -EEXIST (create bucket,
 * put if absent), -EINVAL, -EOPNOTSUPP (the store lacks the operation), -ENOMEM, -ECANCELED
 * (object_free came first). reason then says what happened in one line, with the object's name,
 * without secrets. */
#ifndef STOKE_COMMON_OBJECT_OBJECT_H
#define STOKE_COMMON_OBJECT_OBJECT_H

#include "common/loop.h"
#include "common/metrics.h"
#include "common/str.h"

enum object_op {
	OBJECT_GET,
	OBJECT_PUT,
	OBJECT_HEAD,
	OBJECT_DELETE,
	OBJECT_DELETE_MANY,
	OBJECT_LIST,
	OBJECT_CREATE_BUCKET,
	OBJECT_RESTORE
};

/* what a PUT says beside its bytes, by the tier of the file (docs/format.md §2.2, §5.7) */
struct object_tier {
	uint8_t id;
	char *storage_class, *tag; /* "" for none; tag: "key=value" */
};

struct object_info {
	char *key;
	uint64_t size;
	int64_t mtime;
};

struct object_req {
	enum object_op op;
	/* full key below the bucket, "vol/chunks/0/0/1_0_4096"; LIST: the prefix. Lives until
	 * done */
	const char *key;
	/* GET: bytes wanted; len 0: the whole object. A range past the end gives fewer bytes */
	uint64_t off, len;
	unsigned char *buf; /* GET: where bytes go. PUT: the bytes. Owned by the caller */
	size_t cap;	    /* GET: room in buf. PUT: length */
	size_t got;	    /* GET: bytes that came. HEAD: size of the object */
	bool if_absent;	    /* PUT: fail with -EEXIST when it is there */
	uint8_t tier;	    /* PUT: of object_conf.tiers; one that is not there counts as 0 */
	unsigned days;	    /* RESTORE: an archived object can be read for so long; others: done */
	/* DELETE_MANY: at most 1 000 full keys; missing ones are no error */
	const char *const *keys;
	size_t n_keys;
	const char *start_after; /* LIST: keys behind this one; NULL: from the start */
	/* LIST: result, up to 1 000, sorted; freed with object_list_free */
	struct object_info *list;
	size_t n_list;
	bool more;	      /* LIST: there are more */
	uint64_t deadline_us; /* 0: none */
	/* go on with retries for at least this long, whatever conf.retries says (uploads); 0: by
	 * count only */
	uint64_t persist_us;
	char reason[256];
	void (*progress)(struct object_req *req, size_t valid);
	void (*done)(struct object_req *req, int status);
	void *arg;	       /* the caller's */
	struct list_node link; /* the store's while it has the request */
	void *priv;	       /* the store's */
	uint64_t start_us;     /* object.c's */
};

struct object_conf;
struct object_store;
struct object_ops {
	const char *name; /* "s3", "file" */
	void (*start)(struct object_store *s, struct object_req *req);
	void (*free)(struct object_store *s);
	/* NULL: nothing of it can change */
	int (*change)(struct object_store *s, const struct object_conf *conf, struct str *err);
};
struct object_limit;
struct object_metrics;
struct workq;
struct object_store {
	const struct object_ops *ops;
	struct object_metrics *metrics;
	struct object_limit *limit; /* NULL: opened without a loop, or a part of another store */
};

struct object_conf {
	const char *storage; /* as in the setting: "s3", "minio", "file", … */
	const char *bucket;  /* URL or directory */
	/* the setting's, unsealed; may be NULL or "": the environment goes first anyway, see
	 * object_s3_cred.h */
	const char *access_key, *secret_key, *session_token;
	unsigned max_conns; /* parallel requests; the rest waits in line. 0: 64; file: at most 16 */
	unsigned retries;   /* 0: 10 */
	struct metrics *metrics; /* may be NULL */
	/* more than 1: so many stores, chosen by the hash of the key; bucket has a %d for the
	 * number */
	unsigned shards;
	/* storage classes and tags; copied */
	const struct object_tier *tiers;
	size_t n_tiers;
	uint64_t upload_limit, download_limit; /* bytes a second; 0: none */
	struct workq *sums; /* threads for checksums shared by the shards of one store, else NULL */
};

/* Counted: stoke_object_requests_total{op,range,result} (range="1": GET of a part; a request is one
 * object_start, whatever its retries), stoke_object_bytes_total{op}, stoke_object_retries_total,
 * stoke_object_seconds{op}.
 *
 * -EOPNOTSUPP: a storage that is not handled, by name in err; -EINVAL: a bucket that makes no
 * sense. loop runs the network (s3); files have threads of their own. The loop must outlive the
 * store. */
int object_open(const struct object_conf *conf, struct loop *loop, struct object_store **ret,
		struct str *err);
/* Drain first; what is still under way ends with -ECANCELED. Not from a done callback. NULL is
 * fine. */
void object_free(struct object_store *s);
/* The volume's setting changed: new bucket, keys, tiers. What is under way ends with the old ones,
 * what is repeated takes the new. 0; -EOPNOTSUPP: this store (a directory, shards whose number
 * changed, another storage) must be opened again; -EINVAL, -ENOMEM. On failure nothing changed. Any
 * thread but the store's. */
int object_change(struct object_store *s, const struct object_conf *conf, struct str *err);
/* bytes a second; 0: none */
void object_change_limits(struct object_store *s, uint64_t upload, uint64_t download);
/* The download limit is that of so many processes: each has its part of it. */
void object_share(struct object_store *s, unsigned processes);
/* The object store asked another process for less (503 SlowDown, 429), so here, too, fewer GETs
 * are started: as when it asks this one. */
void object_slow(struct object_store *s);
/* did it ask this process for less since the last call? */
bool object_was_slowed(struct object_store *s);
void object_start(struct object_store *s, struct object_req *req);
/* for commands and start-up, never on a loop or FUSE thread: starts and waits */
int object_run(struct object_store *s, struct object_req *req);
void object_list_free(struct object_req *req);
/* one line for people: "s3 http://host/bucket", no keys */
void object_describe(const struct object_conf *conf, struct str *out);

/* implementations, for object.c. They end a request with object_done alone, which counts it and
 * calls req->done: req may be gone afterwards. status != 0 without a reason gets one. Holds no
 * lock. */
void object_done(struct object_store *s, struct object_req *req, int status);
/* one attempt failed and will be repeated; later: the store asked for less. On the loop */
void object_retried(struct object_store *s, bool later);
/* sets req->reason: "GET vol/chunks/…: text" */
void object_reason(struct object_req *req, const char *fmt, ...) _printf_(2, 3);
const char *object_op_name(enum object_op op);
int object_s3_new(const struct object_conf *conf, struct loop *loop, struct object_store **ret,
		  struct str *err);
/* om: counts for the stores, too */
int object_shard_new(const struct object_conf *conf, struct loop *loop, struct object_metrics *om,
		     struct object_store **ret, struct str *err);
/* one store, without counters */
int object_open_one(const struct object_conf *conf, struct loop *loop, struct object_store **ret,
		    struct str *err);
int object_file_new(const struct object_conf *conf, struct object_store **ret, struct str *err);

#endif
