/* SPDX-License-Identifier: Apache-2.0 */
/* Records of the metadata against the format's vectors, and what no record may do. */
#include <stdio.h>
#include <sys/stat.h>

#include "tests/unit/meta/vectors.h"

#include "client/meta/attr.h"

static struct attr attr_of(json_t *f)
{
	return (struct attr){
		.flags = (uint8_t)vector_number(f, "flags"),
		.type = (uint8_t)vector_number(f, "typ"),
		.tier = (uint8_t)vector_number(f, "tier"),
		.mode = (uint16_t)vector_number(f, "mode"),
		.uid = (uint32_t)vector_number(f, "uid"),
		.gid = (uint32_t)vector_number(f, "gid"),
		.rdev = (uint32_t)vector_number(f, "rdev"),
		.nlink = (uint32_t)vector_number(f, "nlink"),
		.access_acl = (uint32_t)vector_number(f, "aacl"),
		.default_acl = (uint32_t)vector_number(f, "dacl"),
		.length = vector_number(f, "length"),
		.parent = vector_number(f, "parent"),
		.atime = {(int64_t)vector_number(f, "at"), (uint32_t)vector_number(f, "atn")},
		.mtime = {(int64_t)vector_number(f, "mt"), (uint32_t)vector_number(f, "mtn")},
		.ctime = {(int64_t)vector_number(f, "ct"), (uint32_t)vector_number(f, "ctn")},
	};
}

static void same(const struct attr *a, const struct attr *b)
{
	uint8_t p[ATTR_MAX], q[ATTR_MAX];
	size_t n = attr_encode(a, p), m = attr_encode(b, q);

	assert_int_equal(n, m);
	assert_memory_equal(p, q, n);
}

static void attributes_are_the_vectors_bytes(void **state)
{
	unsigned encoded = 0, decoded = 0;
	size_t i;
	json_t *v;

	(void)state;
	json_array_foreach(vectors("attr"), i, v)
	{
		json_t *fields = json_object_get(v, "fields");
		uint8_t want[128], got[ATTR_MAX];
		size_t n = vector_hex(v, "hex", want, sizeof(want));
		struct attr a, b;

		assert_int_equal(attr_decode(want, n, &b), 0);
		decoded++;
		if (!fields)
			continue;
		a = attr_of(fields);
		if (n < 72) { /* older than the parent field: read, never written */
			same(&a, &b);
			continue;
		}
		assert_int_equal(attr_encode(&a, got), n);
		assert_memory_equal(got, want, n);
		same(&a, &b);
		encoded++;
	}
	assert_true(decoded >= 15 && encoded >= 14);
}

static void fields_lie_where_the_table_says(void **state)
{
	struct attr a = {.flags = 0x21,
			 .type = INODE_DIR,
			 .mode = 01234,
			 .uid = 0x01020304,
			 .gid = 0x05060708,
			 .nlink = 0x11121314,
			 .rdev = 0x21222324,
			 .length = 0x3132333435363738,
			 .parent = 0x4142434445464748,
			 .access_acl = 0x51525354,
			 .default_acl = 0x61626364,
			 .tier = 3,
			 .mtime = {-2, 0x71727374}};
	uint8_t p[ATTR_MAX];
	json_t *table = json_object_get(json_array_get(vectors("attr_offsets"), 0), "table");
	static const struct {
		const char *field;
		uint8_t first;
	} want[] = {
		{"Flags", 0x21},     {"Uid", 1},	   {"Gid", 5},
		{"Mtime", 0xff},     {"Mtimensec", 0x71},  {"Nlink", 0x11},
		{"Length", 0x31},    {"Rdev", 0x21},	   {"Parent", 0x41},
		{"AccessACL", 0x51}, {"DefaultACL", 0x61}, {"Tier (with ACL)", 3},
	};

	(void)state;
	assert_int_equal(attr_encode(&a, p), 81);
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		json_t *at = json_array_get(json_object_get(table, want[i].field), 0);

		assert_true(json_is_integer(at));
		assert_int_equal(p[json_integer_value(at)], want[i].first);
	}
	assert_int_equal(p[80], 0);
	a.access_acl = a.default_acl = 0;
	assert_int_equal(attr_encode(&a, p), 73);
	assert_int_equal(p[71], 3);
}

static void damaged_records_are_refused(void **state)
{
	struct attr a = {.type = INODE_FILE}, b;
	uint8_t p[ATTR_MAX];
	size_t n = attr_encode(&a, p);

	(void)state;
	for (size_t i = 0; i < 63; i++)
		assert_int_equal(attr_decode(p, i, &b), -EPROTO);
	for (size_t i = 63; i <= n; i++)
		assert_int_equal(attr_decode(p, i, &b), 0);
	p[1] = 0x01;
	assert_int_equal(attr_decode(p, n, &b), -EPROTO);
	p[1] = 0x81;
	assert_int_equal(attr_decode(p, n, &b), -EPROTO);
}

static void entries_are_the_vectors_bytes(void **state)
{
	size_t i;
	json_t *v;

	(void)state;
	json_array_foreach(vectors("dir_entry_value"), i, v)
	{
		uint8_t want[16], got[ENTRY_LEN], type;
		uint64_t inode;

		assert_int_equal(vector_hex(v, "hex", want, sizeof(want)), ENTRY_LEN);
		assert_int_equal(entry_decode(want, ENTRY_LEN, &type, &inode), 0);
		assert_int_equal(type, vector_number(v, "type"));
		assert_int_equal(inode, vector_number(v, "inode"));
		entry_encode(type, inode, got);
		assert_memory_equal(got, want, ENTRY_LEN);
		assert_int_equal(entry_decode(want, ENTRY_LEN - 1, &type, &inode), -EPROTO);
		want[0] = 8;
		assert_int_equal(entry_decode(want, ENTRY_LEN, &type, &inode), -EPROTO);
	}
}

static void slice_records_are_the_vectors_bytes(void **state)
{
	unsigned decoded = 0;
	size_t i;
	json_t *v;

	(void)state;
	json_array_foreach(vectors("slice_record"), i, v)
	{
		struct slice s = {.pos = (uint32_t)vector_number(v, "pos"),
				  .id = vector_number(v, "id"),
				  .size = (uint32_t)vector_number(v, "size"),
				  .off = (uint32_t)vector_number(v, "off"),
				  .len = (uint32_t)vector_number(v, "len")};
		uint8_t want[SLICE_LEN], got[SLICE_LEN];
		struct slice back;

		assert_int_equal(vector_hex(v, "hex", want, sizeof(want)), SLICE_LEN);
		slice_encode(&s, got);
		assert_memory_equal(got, want, SLICE_LEN);
		/* one vector shows the layout with numbers that no slice can have */
		if (s.off > s.size) {
			assert_int_equal(slice_decode(want, SLICE_LEN, &back), -EPROTO);
			continue;
		}
		assert_int_equal(slice_decode(want, SLICE_LEN, &back), 0);
		slice_encode(&back, got);
		assert_memory_equal(got, want, SLICE_LEN);
		assert_int_equal(back.id, s.id);
		decoded++;
	}
	assert_true(decoded >= 5);
}

static void slices_that_leave_chunk_or_slice_are_refused(void **state)
{
	static const struct slice bad[] = {
		{.pos = CHUNK_SIZE, .id = 1, .size = 1, .len = 1},
		{.pos = CHUNK_SIZE - 1, .id = 1, .size = 2, .len = 2},
		{.pos = 0, .id = 1, .size = 10, .off = 5, .len = 6},
		{.pos = 0, .id = 1, .size = 10, .off = 11, .len = 0},
		{.pos = UINT32_MAX, .id = 0, .len = UINT32_MAX},
		{.pos = 10, .id = 1, .size = UINT32_MAX, .off = UINT32_MAX, .len = 2},
	};
	/* a copied hole carries anything in size and off */
	struct slice hole = {.pos = 5, .size = 1, .off = 99, .len = 7}, s;
	uint8_t p[SLICE_LEN];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		slice_encode(&bad[i], p);
		assert_int_equal(slice_decode(p, SLICE_LEN, &s), -EPROTO);
	}
	slice_encode(&hole, p);
	assert_int_equal(slice_decode(p, SLICE_LEN, &s), 0);
	assert_int_equal(s.off, 0);
	assert_int_equal(s.size, 0);
	assert_int_equal(slice_decode(p, SLICE_LEN - 1, &s), -EPROTO);
}

static void lengths_cost_whole_pages(void **state)
{
	size_t i;
	json_t *v;

	(void)state;
	json_array_foreach(vectors("align4K"), i, v)
		assert_int_equal(align4k(vector_number(v, "length")), vector_number(v, "space"));
	assert_int_equal(align4k(FILE_LENGTH_MAX), UINT64_C(1) << 57);
}

static void types_and_modes_are_each_others_inverse(void **state)
{
	(void)state;
	for (uint8_t t = INODE_FILE; t <= INODE_SOCKET; t++)
		assert_int_equal(inode_type_from_mode(inode_type_to_mode(t) | 0644), t);
	assert_int_equal(inode_type_to_mode(INODE_DIR), S_IFDIR);
	assert_int_equal(inode_type_to_mode(8), 0);
	assert_int_equal(inode_type_from_mode(0644), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(attributes_are_the_vectors_bytes),
		cmocka_unit_test(fields_lie_where_the_table_says),
		cmocka_unit_test(damaged_records_are_refused),
		cmocka_unit_test(entries_are_the_vectors_bytes),
		cmocka_unit_test(slice_records_are_the_vectors_bytes),
		cmocka_unit_test(slices_that_leave_chunk_or_slice_are_refused),
		cmocka_unit_test(lengths_cost_whole_pages),
		cmocka_unit_test(types_and_modes_are_each_others_inverse),
	};

	return cmocka_run_group_tests(tests, NULL, vectors_free);
}
