/* SPDX-License-Identifier: Apache-2.0 */
/* PUT and GET of N objects of SIZE at concurrency C through object.h: the ceiling of what a mount
 * or a daemon can take from this store.
 *
 *	objbench STORAGE BUCKET [N [SIZE [C]]]		256 objects of 4M, 16 at a time
 *
 * Keys come from ACCESS_KEY and SECRET_KEY. The objects live below objbench-<random>/ and are
 * deleted afterwards. Prints MiB/s, and the CPU seconds that one GiB cost this process. */
#include "common/object/object.h"

#include <sys/resource.h>

#include "common/clock.h"
#include "common/mtx.h"
#include "common/object/crypt.h"
#include "common/parse.h"

struct bench {
	struct object_store *store;
	uint64_t n, size;
	char prefix[64];
	struct mtx lock;
	struct cond cond;
	uint64_t started, ended, failed;
	char reason[256];
};

struct lane {
	struct object_req req;
	struct bench *b;
	char key[128];
};

static void lane_next(struct lane *l);

static void lane_done(struct object_req *req, int status)
{
	struct lane *l = container_of(req, struct lane, req);
	struct bench *b = l->b;
	bool more;

	if (status == 0 && req->op == OBJECT_GET && req->got != b->size)
		status = -EMSGSIZE;
	mtx_lock(&b->lock);
	b->ended++;
	if (status < 0 && b->failed++ == 0)
		(void)snprintf(b->reason, sizeof(b->reason), "%s", req->reason);
	more = b->started < b->n;
	if (b->ended == b->n)
		cond_signal(&b->cond);
	mtx_unlock(&b->lock);
	if (more)
		lane_next(l);
}

static void lane_next(struct lane *l)
{
	struct bench *b = l->b;
	uint64_t i;

	mtx_lock(&b->lock);
	i = b->started++;
	mtx_unlock(&b->lock);
	if (i >= b->n)
		return;
	(void)snprintf(l->key, sizeof(l->key), "%s%llu", b->prefix, (unsigned long long)i);
	object_start(b->store, &l->req);
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int stage(struct bench *b, struct lane *lanes, unsigned n_lanes, enum object_op op)
{
	double cpu = cpu_seconds(), mib = (double)b->n * (double)b->size / (1 << 20), s;
	uint64_t t0 = clock_us();

	b->started = b->ended = b->failed = 0;
	for (unsigned i = 0; i < n_lanes; i++) {
		lanes[i].req.op = op;
		lane_next(&lanes[i]);
	}
	mtx_lock(&b->lock);
	while (b->ended < b->n)
		cond_wait(&b->cond, &b->lock);
	mtx_unlock(&b->lock);
	s = (double)(clock_us() - t0) / 1e6;
	if (op == OBJECT_DELETE)
		return b->failed ? 1 : 0;
	printf("%s: %.0f MiB in %.2f s: %.1f MiB/s, %.0f objects/s, %.2f CPU s/GiB, %llu errors\n",
	       object_op_name(op), mib, s, mib / s, (double)b->n / s,
	       (cpu_seconds() - cpu) / (mib / 1024), (unsigned long long)b->failed);
	if (b->failed)
		printf("first error: %s\n", b->reason);
	return b->failed ? 1 : 0;
}

static int run(struct bench *b, const struct object_conf *conf, unsigned n_lanes)
{
	struct loop *loop = NULL;
	struct lane *lanes = calloc(n_lanes, sizeof(*lanes));
	struct str err = STR_INIT;
	int r = loop_new("objbench", &loop);
	struct object_req create = {.op = OBJECT_CREATE_BUCKET};
	uint64_t tag;

	if (r == 0 && lanes)
		r = object_open(conf, loop, &b->store, &err);
	if (r < 0 || !lanes) {
		fprintf(stderr, "objbench: %s\n", err.len ? str_c(&err) : strerror(-r));
		return 1;
	}
	r = object_run(b->store, &create);
	if (r < 0 && r != -EEXIST) {
		fprintf(stderr, "objbench: %s\n", create.reason);
		return 1;
	}
	crypt_random(&tag, sizeof(tag));
	(void)snprintf(b->prefix, sizeof(b->prefix), "objbench-%016llx/", (unsigned long long)tag);
	for (unsigned i = 0; i < n_lanes; i++) {
		struct lane *l = &lanes[i];

		l->b = b;
		l->req = (struct object_req){.key = l->key, .cap = b->size, .done = lane_done};
		l->req.buf = malloc(b->size);
		if (!l->req.buf)
			return 1;
		crypt_random(l->req.buf, b->size);
	}
	r = stage(b, lanes, n_lanes, OBJECT_PUT);
	r |= stage(b, lanes, n_lanes, OBJECT_GET);
	r |= stage(b, lanes, n_lanes, OBJECT_DELETE);
	object_free(b->store);
	loop_free(loop);
	for (unsigned i = 0; i < n_lanes; i++)
		free(lanes[i].req.buf);
	free(lanes);
	str_fini(&err);
	return r;
}

int main(int argc, char **argv)
{
	struct bench b = {.n = 256, .size = 4 << 20};
	struct object_conf conf = {.access_key = ""};
	uint64_t lanes = 16;

	if (argc < 3 || argc > 6 ||
	    (argc > 3 && (parse_u64(argv[3], 1 << 24, &b.n) < 0 || b.n == 0)) ||
	    (argc > 4 && (parse_size(argv[4], 1, &b.size) < 0 || b.size == 0)) ||
	    (argc > 5 && (parse_u64(argv[5], 1024, &lanes) < 0 || lanes == 0))) {
		fprintf(stderr, "usage: objbench STORAGE BUCKET [N [SIZE [CONCURRENCY]]]\n");
		return 2;
	}
	conf.storage = argv[1];
	conf.bucket = argv[2];
	conf.max_conns = (unsigned)lanes;
	mtx_init(&b.lock);
	cond_init(&b.cond);
	return run(&b, &conf, (unsigned)lanes);
}
