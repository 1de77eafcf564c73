/* SPDX-License-Identifier: Apache-2.0 */
/* Views of a chunk: the format's vectors, and random lists against a plain array that is painted
 * record by record. */
#include <stdio.h>
#include <time.h>

#include "tests/unit/meta/vectors.h"

#include "client/meta/slice.h"

enum { MODEL = 5000, RECORDS = 60, ROUNDS = 400 };

static void views_are_the_vectors(void **state)
{
	unsigned cases = 0;
	size_t i, k;
	json_t *v, *e;

	(void)state;
	json_array_foreach(vectors("slice_resolution"), i, v)
	{
		json_t *records = json_object_get(v, "records_in_list_order");
		json_t *view = json_object_get(v, "view");
		struct slice r[64];
		struct slice_view got;
		uint32_t pos = 0;

		assert_true(json_array_size(records) <= ARRAY_LEN(r));
		json_array_foreach(records, k, e) r[k] =
			(struct slice){.pos = (uint32_t)vector_number(e, "pos"),
				       .id = vector_number(e, "id"),
				       .size = (uint32_t)vector_number(e, "size"),
				       .off = (uint32_t)vector_number(e, "off"),
				       .len = (uint32_t)vector_number(e, "len")};
		assert_int_equal(slice_view_build(r, json_array_size(records), &got), 0);
		if (got.n != json_array_size(view))
			fail_msg("%s: %zu pieces, not %zu",
				 json_string_value(json_object_get(v, "name")), got.n,
				 json_array_size(view));
		json_array_foreach(view, k, e)
		{
			const struct slice *p = &got.pieces[k];

			assert_int_equal(p->pos, pos);
			assert_int_equal(p->id, vector_number(e, "id"));
			assert_int_equal(p->len, vector_number(e, "len"));
			if (p->id) {
				assert_int_equal(p->off, vector_number(e, "off"));
				assert_int_equal(p->size, vector_number(e, "size"));
			}
			pos += p->len;
		}
		slice_view_fini(&got);
		cases++;
	}
	assert_true(cases >= 18);
}

/* the vector is one sentence; these are its numbers */
static int block_of_vector(const struct block_range *r, void *arg)
{
	const uint32_t mib = 1 << 20;

	assert_int_equal(r->slice, 12);
	assert_int_equal(r->index, 1);
	assert_int_equal(r->size, 4 * mib);
	assert_int_equal(r->off, 1 * mib);
	assert_int_equal(r->len, 3 * mib);
	assert_int_equal(r->out_off, 0);
	++*(int *)arg;
	return 0;
}

static void blocks_are_counted_from_the_slices_start(void **state)
{
	const uint32_t mib = 1 << 20;
	struct slice r = {
		.pos = 16 * mib, .id = 12, .size = 10 * mib, .off = 5 * mib, .len = 3 * mib};
	struct slice_view v;
	int calls = 0;

	(void)state;
	assert_true(json_array_size(vectors("block_mapping")) == 1);
	assert_int_equal(slice_view_build(&r, 1, &v), 0);
	assert_int_equal(slice_view_ranges(&v, 4 * mib, 16 * mib, 3 * mib, block_of_vector, &calls),
			 0);
	assert_int_equal(calls, 1);
	slice_view_fini(&v);
}

/* a byte of the model: which slice and which byte of it */
struct cell {
	uint64_t id;
	uint32_t at, size;
};

static unsigned seed;

static unsigned pick(unsigned n)
{
	seed = seed * 1103515245 + 12345;
	return (seed >> 8) % n;
}

static unsigned paint(struct cell *model, struct slice *r)
{
	unsigned n = 1 + pick(RECORDS), end = 0;

	for (unsigned i = 0; i < n; i++) {
		uint32_t pos = pick(MODEL - 1), len = pick(MODEL - pos) >> pick(5);
		uint32_t off = pick(100), size = off + len + pick(50);
		uint64_t id = pick(6) ? 1 + i : 0;

		r[i] = (struct slice){.pos = pos, .id = id, .size = size, .off = off, .len = len};
		for (uint32_t k = 0; k < len; k++)
			model[pos + k] = (struct cell){id, id ? off + k : 0, id ? size : 0};
		if (len && pos + len > end)
			end = pos + len;
	}
	model[MODEL].at = end;
	return n;
}

static void view_is_model(const struct slice_view *v, const struct cell *model)
{
	uint32_t pos = 0;

	for (size_t i = 0; i < v->n; i++) {
		const struct slice *p = &v->pieces[i];

		assert_int_equal(p->pos, pos);
		assert_true(p->len > 0);
		for (uint32_t k = 0; k < p->len; k++) {
			const struct cell *c = &model[pos + k];

			assert_int_equal(c->id, p->id);
			if (p->id) {
				assert_int_equal(c->at, p->off + k);
				assert_int_equal(c->size, p->size);
			}
		}
		pos += p->len;
	}
	assert_int_equal(pos, model[MODEL].at);
}

struct walk {
	const struct cell *model;
	uint32_t off, len, done, block;
};

static int range_is_model(const struct block_range *r, void *arg)
{
	struct walk *w = arg;

	assert_int_equal(r->out_off, w->done);
	assert_true(r->len > 0 && r->len <= w->len - w->done);
	for (uint32_t k = 0; k < r->len; k++) {
		uint32_t at = w->off + w->done + k;
		const struct cell *c = &w->model[at];

		assert_int_equal(at < MODEL ? c->id : 0, r->slice);
		if (r->slice) {
			assert_int_equal(c->at, r->index * w->block + r->off + k);
			assert_int_equal(r->size, MIN(w->block, c->size - r->index * w->block));
		}
	}
	assert_true(!r->slice || (r->off + r->len <= r->size && r->size <= w->block));
	w->done += r->len;
	return 0;
}

static void random_lists_are_painted_the_same(void **state)
{
	static const uint32_t blocks[] = {1, 7, 64, 1024, 1 << 22};
	const char *env = getenv("STOKE_SEED");

	(void)state;
	seed = env ? (unsigned)strtoul(env, NULL, 10) : (unsigned)time(NULL);
	print_message("seed %u\n", seed);
	for (int round = 0; round < ROUNDS; round++) {
		struct cell model[MODEL + 1] = {{0}};
		struct slice r[RECORDS + 1];
		unsigned n = paint(model, r);
		struct slice_view v;
		uint32_t off = pick(MODEL), len = pick(MODEL - off + 100);
		struct walk w = {model, off, len, 0, blocks[pick(ARRAY_LEN(blocks))]};
		uint32_t end = model[MODEL].at;

		assert_int_equal(slice_view_build(r, n, &v), 0);
		view_is_model(&v, model);
		model[MODEL].id = 0;
		if (off + len > MODEL)
			w.len = len = MODEL - off;
		assert_int_equal(slice_view_ranges(&v, w.block, off, len, range_is_model, &w), 0);
		assert_int_equal(w.done, len);
		assert_true(v.n == 0 || v.pieces[v.n - 1].pos + v.pieces[v.n - 1].len == end);
		slice_view_fini(&v);
	}
}

static int stop_at_once(const struct block_range *r, void *arg)
{
	(void)r;
	++*(int *)arg;
	return -EINTR;
}

static void a_range_walk_stops_when_told(void **state)
{
	struct slice r[2] = {{.id = 1, .size = 10, .len = 10},
			     {.pos = 20, .id = 2, .size = 10, .len = 10}};
	struct slice_view v;
	int calls = 0;

	(void)state;
	assert_int_equal(slice_view_build(r, 2, &v), 0);
	assert_int_equal(v.n, 3);
	assert_int_equal(slice_view_ranges(&v, 4, 0, 30, stop_at_once, &calls), -EINTR);
	assert_int_equal(calls, 1);
	assert_int_equal(slice_view_ranges(&v, 4, 5, 0, stop_at_once, &calls), 0);
	slice_view_fini(&v);
	assert_int_equal(slice_view_build(NULL, 0, &v), 0);
	assert_int_equal(v.n, 0);
	slice_view_fini(&v);
}

static void a_list_of_a_hundred_thousand_records_takes_no_time(void **state)
{
	enum { N = 100000 };
	struct slice *r = calloc(N, sizeof(*r));
	struct slice_view v;

	(void)state;
	/* each covers half of the one before: the worst for whoever splits pieces */
	for (uint32_t i = 0; i < N; i++)
		r[i] = (struct slice){
			.pos = i, .id = i + 1, .size = 2 * N - 2 * i, .len = 2 * N - 2 * i};
	assert_int_equal(slice_view_build(r, N, &v), 0);
	assert_int_equal(v.n, 2 * N - 1);
	slice_view_fini(&v);
	free(r);
}

static void seeking_finds_the_edges_of_data_and_holes(void **state)
{
	/* hole [0, 10), data [10, 30), hole [30, 40), data [40, 50) of two slices, hole behind */
	static const struct slice r[] = {{.pos = 10, .id = 1, .size = 40, .len = 40},
					 {.pos = 30, .len = 10},
					 {.pos = 45, .id = 2, .size = 5, .len = 5}};
	static const uint32_t data[][2] = {{0, 10},  {10, 10}, {29, 29},	 {30, 40},
					   {44, 44}, {49, 49}, {50, CHUNK_SIZE}, {60, CHUNK_SIZE}};
	static const uint32_t holes[][2] = {{0, 0},   {9, 9},	{10, 30}, {30, 30},
					    {40, 50}, {45, 50}, {50, 50}, {60, 60}};
	struct slice_view v, none = {0};

	(void)state;
	assert_int_equal(slice_view_build(r, ARRAY_LEN(r), &v), 0);
	for (size_t i = 0; i < ARRAY_LEN(data); i++)
		assert_int_equal(slice_view_seek(&v, data[i][0], false), data[i][1]);
	for (size_t i = 0; i < ARRAY_LEN(holes); i++)
		assert_int_equal(slice_view_seek(&v, holes[i][0], true), holes[i][1]);
	assert_int_equal(slice_view_seek(&none, 7, true), 7);
	assert_int_equal(slice_view_seek(&none, 7, false), CHUNK_SIZE);
	slice_view_fini(&v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(views_are_the_vectors),
		cmocka_unit_test(blocks_are_counted_from_the_slices_start),
		cmocka_unit_test(random_lists_are_painted_the_same),
		cmocka_unit_test(a_range_walk_stops_when_told),
		cmocka_unit_test(seeking_finds_the_edges_of_data_and_holes),
		cmocka_unit_test(a_list_of_a_hundred_thousand_records_takes_no_time),
	};

	return cmocka_run_group_tests(tests, NULL, vectors_free);
}
