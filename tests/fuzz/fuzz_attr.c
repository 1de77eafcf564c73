/* SPDX-License-Identifier: Apache-2.0 */
/* Attribute records and entries: what is accepted, encoded and decoded again, stays the same. */
#include "client/meta/attr.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	uint8_t first[ATTR_MAX], second[ATTR_MAX], type, entry[ENTRY_LEN];
	struct attr a, b;
	uint64_t inode;

	if (attr_decode(p, n, &a) == 0) {
		size_t len = attr_encode(&a, first);

		assert(len == 72 || len == 73 || len == 80 || len == 81);
		assert(attr_decode(first, len, &b) == 0);
		assert(attr_encode(&b, second) == len && memcmp(first, second, len) == 0);
		assert(inode_type_from_mode(inode_type_to_mode(a.type)) == a.type);
	}
	if (entry_decode(p, n, &type, &inode) == 0) {
		entry_encode(type, inode, entry);
		assert(memcmp(entry, p, ENTRY_LEN) == 0);
	}
	return 0;
}
