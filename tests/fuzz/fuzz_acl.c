/* SPDX-License-Identifier: Apache-2.0 */
/* ACL rules, as the volume has them and as the kernel hands them over: what is accepted comes back
 * from both forms unchanged. */
#include "client/meta/acl.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void same_in_the_volume(const struct acl *a)
{
	struct str first = STR_INIT, second = STR_INIT;
	struct acl b;

	acl_encode(a, &first);
	assert(acl_decode(first.s, first.len, &b) == 0);
	acl_encode(&b, &second);
	assert(first.len == second.len && memcmp(first.s, second.s, first.len) == 0);
	acl_fini(&b);
	str_fini(&first);
	str_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	static const uint32_t gids[] = {0, 1000};
	struct str out = STR_INIT;
	struct acl a;

	if (acl_decode(p, n, &a) == 0) {
		acl_encode(&a, &out);
		assert(out.len == n && memcmp(out.s, p, n) == 0);
		(void)acl_grants(&a, 0, 0, 1000, gids, 2, 7);
		str_reset(&out);
		acl_to_xattr(&a, &out);
		acl_fini(&a);
	}
	str_reset(&out);
	if (acl_from_xattr(p, n, &a) == 0) {
		same_in_the_volume(&a);
		if (!acl_is_empty(&a)) {
			acl_to_xattr(&a, &out);
			assert(out.len == n);
		}
		acl_fini(&a);
	}
	str_fini(&out);
	return 0;
}
