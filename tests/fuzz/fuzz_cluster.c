/* SPDX-License-Identifier: Apache-2.0 */
/* RING answers: whatever is accepted encodes to the same bytes again. */
#include "common/block/cluster.h"
#include "common/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct cluster *c = NULL;
	struct str s = STR_INIT;

	if (n > 65536 || cluster_decode(NULL, p, n, &c) < 0)
		return 0;
	if (cluster_encode(c, 2, &s) == 0)
		assert(s.len == n && memcmp(s.s, p, n) == 0);
	str_fini(&s);
	cluster_unref(c);
	return 0;
}
