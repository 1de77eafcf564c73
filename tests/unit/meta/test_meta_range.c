/* SPDX-License-Identifier: Apache-2.0 */
/* fallocate and copy_file_range: both engines against a plain array, painted as the lists say; then
 * what only Redis has: references, errors, counters, steps, exact numbers. */
#include "client/meta/slice.h"
#include "tests/unit/meta/volume.h"

enum { KEEP = 1, PUNCH = 2, COLLAPSE = 8, ZERO = 16, INSERT = 32 };

static uint64_t make(struct meta *m, const char *name, uint8_t type)
{
	uint64_t inode;
	struct attr a;

	assert_int_equal(
		meta_mknod(m, &root_ctx, INODE_ROOT, name, type, 0644, 0, 0, "", &inode, &a), 0);
	return inode;
}

static struct slice put(struct meta *m, uint64_t inode, uint64_t off, uint32_t len)
{
	struct slice s = {.pos = (uint32_t)(off % CHUNK_SIZE), .size = len, .len = len};
	struct attr a;

	assert_int_equal(meta_new_slice(m, &s.id, &(struct hash128){{0}}), 0);
	assert_int_equal(meta_write(m, inode, (uint32_t)(off >> CHUNK_BITS), &s, time_of(9, 9), &a),
			 0);
	return s;
}

static uint64_t length_of(struct meta *m, uint64_t inode)
{
	struct attr a;

	assert_int_equal(meta_getattr(m, inode, &a), 0);
	return a.length;
}

/* A file is units of UNIT bytes; the model holds what slice, and which unit of it, each shows. */
enum { UNIT = 1 << 20, UNITS = 160, FILES = 3, ROUNDS = 300 };

struct model {
	struct meta *m;
	uint64_t inode[FILES];
	uint64_t id[FILES][UNITS];
	uint32_t off[FILES][UNITS];
	unsigned n[FILES];
	unsigned seed;
};

static unsigned pick(struct model *t, unsigned n)
{
	t->seed = t->seed * 1103515245 + 12345;
	return (t->seed >> 8) % n;
}

static void model_check(struct model *t, unsigned f)
{
	uint64_t length = length_of(t->m, t->inode[f]);

	assert_int_equal(length, (uint64_t)t->n[f] * UNIT);
	for (uint32_t c = 0; c <= length >> CHUNK_BITS; c++) {
		struct chunk_list l;
		struct slice_view v;

		assert_int_equal(meta_read(t->m, t->inode[f], c, 1, &l), 0);
		assert_int_equal(slice_view_build(l.slices, l.n, &v), 0);
		for (unsigned u = 0; u < CHUNK_SIZE / UNIT && c * 64 + u < t->n[f]; u++) {
			uint64_t id = 0;
			uint32_t off = 0;

			for (size_t k = 0; k < v.n; k++) {
				const struct slice *p = &v.pieces[k];

				if (p->pos <= u * UNIT && u * UNIT < p->pos + p->len && p->id) {
					id = p->id;
					off = (p->off + u * UNIT - p->pos) / UNIT;
				}
			}
			if (id != t->id[f][c * 64 + u] || (id && off != t->off[f][c * 64 + u]))
				fail_msg("file %u unit %u: slice %llu unit %u, not %llu unit %u", f,
					 c * 64 + u, (unsigned long long)id, off,
					 (unsigned long long)t->id[f][c * 64 + u],
					 t->off[f][c * 64 + u]);
		}
		slice_view_fini(&v);
		chunk_list_fini(&l);
	}
}

static void model_write(struct model *t, unsigned f, unsigned at, unsigned n)
{
	struct slice s;

	n = MIN(n, 64 - at % 64);
	s = put(t->m, t->inode[f], (uint64_t)at * UNIT, n * UNIT);
	for (unsigned u = 0; u < n; u++) {
		t->id[f][at + u] = s.id;
		t->off[f][at + u] = u;
	}
	t->n[f] = MAX(t->n[f], at + n);
}

static void model_fallocate(struct model *t, unsigned f, unsigned at, unsigned n)
{
	static const int modes[] = {0, KEEP, PUNCH | KEEP, ZERO, ZERO | KEEP};
	int mode = modes[pick(t, ARRAY_LEN(modes))];
	struct attr a;

	assert_int_equal(meta_fallocate(t->m, &root_ctx, t->inode[f], mode, (uint64_t)at * UNIT,
					(uint64_t)n * UNIT, &a),
			 0);
	for (unsigned u = at; u < at + n && mode & (PUNCH | ZERO); u++)
		t->id[f][u] = 0;
	if (!(mode & KEEP))
		t->n[f] = MAX(t->n[f], at + n);
}

static void model_copy(struct model *t, unsigned f, unsigned at, unsigned n)
{
	unsigned g = pick(t, FILES), to = pick(t, UNITS - n + 1);
	uint64_t ids[UNITS], copied;
	uint32_t offs[UNITS];
	struct attr a;
	int r = meta_copy_file_range(t->m, &root_ctx, t->inode[f], (uint64_t)at * UNIT, t->inode[g],
				     (uint64_t)to * UNIT, (uint64_t)n * UNIT, &copied, &a);

	if (f == g && at < to + n && to < at + n) {
		assert_int_equal(r, -EINVAL);
		return;
	}
	assert_int_equal(r, 0);
	n = at < t->n[f] ? MIN(n, t->n[f] - at) : 0;
	assert_int_equal(copied, (uint64_t)n * UNIT);
	memcpy(ids, t->id[f] + at, n * sizeof(*ids));
	memcpy(offs, t->off[f] + at, n * sizeof(*offs));
	memcpy(t->id[g] + to, ids, n * sizeof(*ids));
	memcpy(t->off[g] + to, offs, n * sizeof(*offs));
	if (n)
		t->n[g] = MAX(t->n[g], to + n);
	assert_int_equal(a.length, (uint64_t)t->n[g] * UNIT);
}

static void model_truncate(struct model *t, unsigned f, unsigned at)
{
	struct attr a;

	assert_int_equal(
		meta_truncate(t->m, &root_ctx, t->inode[f], (uint64_t)at * UNIT, false, &a), 0);
	for (unsigned u = at; u < UNITS; u++)
		t->id[f][u] = 0;
	t->n[f] = at;
}

static void model_run(struct meta *m, unsigned seed)
{
	static struct model t;

	t = (struct model){.m = m, .seed = seed};
	print_message("seed %u\n", seed);
	for (unsigned f = 0; f < FILES; f++) {
		char name[8];

		snprintf(name, sizeof(name), "f%u", f);
		t.inode[f] = make(m, name, INODE_FILE);
	}
	for (unsigned i = 0; i < ROUNDS; i++) {
		unsigned f = pick(&t, FILES), n = 1 + pick(&t, 70), at = pick(&t, UNITS - n + 1);

		switch (pick(&t, 8)) {
		case 0:
			model_truncate(&t, f, at);
			break;
		case 1:
		case 2:
			model_fallocate(&t, f, at, n);
			break;
		case 3:
		case 4:
			model_copy(&t, f, at, n);
			break;
		default:
			model_write(&t, f, at, n);
		}
		for (f = 0; f < FILES; f++)
			model_check(&t, f);
	}
}

static unsigned random_seed(void)
{
	const char *s = getenv("STOKE_SEED");

	return s ? (unsigned)strtoul(s, NULL, 10) : (unsigned)time(NULL);
}

static void ranges_in_memory_are_painted_the_same(void **state)
{
	struct deleted d = {0};
	struct meta *m = open_mem(0, &d);

	(void)state;
	model_run(m, random_seed());
	close_meta(m);
}

/* each record that shows a slice is counted, so that the last one that goes deletes it */
static void ranges_on_redis_are_painted_the_same_and_all_is_deleted_in_the_end(void **state)
{
	struct deleted d = {0};
	struct meta *m;
	uint64_t slices;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	model_run(m, random_seed());
	assert_int_equal(meta_new_slice(m, &slices, &(struct hash128){{0}}), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "f1"), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "f0"), 0);
	assert_int_equal(meta_unlink(m, &root_ctx, INODE_ROOT, "f2"), 0);
	close_meta(m); /* ends what was begun */
	assert_int_equal(raw_int("GET usedSpace"), 0);
	assert_int_equal(raw_int("EXISTS delfiles"), 0);
	/* every slice once, except the one that was never written */
	assert_int_equal(d.n, slices - 1);
	assert_int_equal(raw_int("HLEN sliceRef"), 0);
}

static void what_cannot_be_done_changes_nothing(void **state)
{
	static const int wrong[] = {PUNCH, PUNCH | ZERO, PUNCH | ZERO | KEEP, COLLAPSE | KEEP,
				    INSERT | KEEP};
	uint64_t f, fifo, copied;
	struct attr a;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	f = make(m, "f", INODE_FILE);
	fifo = make(m, "fifo", INODE_FIFO);
	put(m, f, 0, 100);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		assert_int_equal(meta_fallocate(m, &root_ctx, f, wrong[i], 0, 10, &a), -EINVAL);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, COLLAPSE, 0, 10, &a), -EOPNOTSUPP);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, INSERT, 0, 10, &a), -EOPNOTSUPP);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, 64, 0, 10, &a), -EOPNOTSUPP);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, 0, 0, 0, &a), -EINVAL);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, 0, FILE_LENGTH_MAX, 1, &a), -EFBIG);
	assert_int_equal(meta_fallocate(m, &root_ctx, fifo, 0, 0, 10, &a), -EPIPE);
	assert_int_equal(meta_fallocate(m, &root_ctx, INODE_ROOT, 0, 0, 10, &a), -EPERM);
	assert_int_equal(meta_fallocate(m, &root_ctx, 4711, 0, 0, 10, &a), -ENOENT);
	assert_int_equal(meta_copy_file_range(m, &root_ctx, f, 0, INODE_ROOT, 0, 10, &copied, &a),
			 -EINVAL);
	assert_int_equal(meta_copy_file_range(m, &root_ctx, f, 0, f, 50, 51, &copied, &a), -EINVAL);
	raw_run("SET usedSpace 4096");
	assert_int_equal(f, 2);
	raw_run("SETRANGE i2 0 \x02"); /* append-only */
	assert_int_equal(meta_fallocate(m, &root_ctx, f, PUNCH | KEEP, 0, 10, &a), -EPERM);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, ZERO, 0, 10, &a), -EPERM);
	assert_int_equal(meta_copy_file_range(m, &root_ctx, f, 0, f, 50, 10, &copied, &a), -EPERM);
	assert_int_equal(length_of(m, f), 100);
	assert_int_equal(raw_int("GET usedSpace"), 4096);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, 0, 0, 5000, &a), 0);
	assert_int_equal(a.length, 5000);
	assert_int_equal(raw_int("GET usedSpace"), 8192);
	close_meta(m);
}

static void lengths_beyond_2_53_stay_exact(void **state)
{
	const uint64_t far = FILE_LENGTH_MAX - 12345;
	uint64_t f, g, copied;
	struct chunk_list l;
	struct meta *m;
	struct attr a;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	f = make(m, "f", INODE_FILE);
	g = make(m, "g", INODE_FILE);
	put(m, f, 0, 1000);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, 0, far, 12345, &a), 0);
	assert_int_equal(a.length, FILE_LENGTH_MAX);
	/* a hole over two thousand million chunks touches the lists that are there */
	assert_int_equal(meta_copy_file_range(m, &root_ctx, f, 0, g, far + 1, 1000, &copied, &a),
			 0);
	assert_int_equal(copied, 1000);
	assert_int_equal(a.length, far + 1001);
	assert_int_equal(meta_fallocate(m, &root_ctx, g, PUNCH | KEEP, 7, far, &a), 0);
	assert_int_equal(a.length, far + 1001);
	assert_int_equal(meta_read(m, g, (uint32_t)(far >> CHUNK_BITS), 1, &l), 0);
	assert_int_equal(l.n, 2);
	assert_int_equal(l.slices[1].id, 0);
	assert_int_equal(l.slices[1].pos, 0);
	assert_int_equal(l.slices[1].len, (far + 7) % CHUNK_SIZE);
	chunk_list_fini(&l);
	/* the length of the source clips, exactly */
	assert_int_equal(meta_copy_file_range(m, &root_ctx, g, far + 1000, f, 0, 4096, &copied, &a),
			 0);
	assert_int_equal(copied, 1);
	assert_int_equal(a.length, FILE_LENGTH_MAX);
	close_meta(m);
}

static void holes_and_copies_over_thousands_of_lists_go_in_steps(void **state)
{
	enum { CHUNKS = 2100 };
	uint64_t f, g, copied, len = (uint64_t)CHUNKS * CHUNK_SIZE;
	struct meta *m;
	struct attr a;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(NULL);
	f = make(m, "f", INODE_FILE);
	g = make(m, "g", INODE_FILE);
	for (uint64_t i = 0; i < CHUNKS; i++)
		put(m, f, i * CHUNK_SIZE + i, 100);
	assert_int_equal(meta_copy_file_range(m, &root_ctx, f, 0, g, 10, len, &copied, &a), 0);
	assert_int_equal(copied, length_of(m, f));
	assert_int_equal(a.length, length_of(m, f) + 10);
	assert_int_equal(raw_int("HLEN sliceRef"), CHUNKS);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, PUNCH | KEEP, 50, len, &a), 0);
	for (uint32_t i = 0; i < CHUNKS; i += 100) {
		struct chunk_list l;
		bool found = false;

		assert_int_equal(meta_read(m, f, i, 1, &l), 0);
		assert_int_equal(l.n, 2);
		assert_int_equal(l.slices[1].pos, i ? 0 : 50);
		assert_int_equal(l.slices[1].id, 0);
		chunk_list_fini(&l);
		assert_int_equal(meta_read(m, g, i, 1, &l), 0);
		for (size_t k = 0; k < l.n; k++) {
			found = found || (l.slices[k].id && l.slices[k].pos == i + 10);
		}
		assert_true(found);
		chunk_list_fini(&l);
	}
	close_meta(m);
}

static void the_volume_s_capacity_holds(void **state)
{
	static const struct format_request limited = {.name = "test",
						      .storage = "file",
						      .bucket = "/nowhere",
						      .block_size = 4 * MB,
						      .capacity = MB};
	struct str err = STR_INIT;
	struct setting *s = NULL;
	bool created;
	struct meta *m;
	struct attr a;
	uint64_t f;

	(void)state;
	NEED_SERVER();
	raw_run("FLUSHDB");
	assert_int_equal(meta_format(raw, soon(), &limited, &s, &created, &err), 0);
	setting_free(s);
	str_fini(&err);
	m = open_redis(NULL);
	f = make(m, "f", INODE_FILE);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, 0, 0, 2 * MB, &a), -ENOSPC);
	assert_int_equal(length_of(m, f), 0);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, KEEP, 0, 2 * MB, &a), 0);
	assert_int_equal(meta_fallocate(m, &root_ctx, f, 0, 0, MB - 8192, &a), 0);
	close_meta(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranges_in_memory_are_painted_the_same),
		cmocka_unit_test(
			ranges_on_redis_are_painted_the_same_and_all_is_deleted_in_the_end),
		cmocka_unit_test(what_cannot_be_done_changes_nothing),
		cmocka_unit_test(lengths_beyond_2_53_stay_exact),
		cmocka_unit_test(holes_and_copies_over_thousands_of_lists_go_in_steps),
		cmocka_unit_test(the_volume_s_capacity_holds),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
