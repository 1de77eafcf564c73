/* SPDX-License-Identifier: Apache-2.0 */
/* Record locks as anybody may have written them: a list that is accepted, and every change of it,
 * stays a list that can be written and read. The first 24 bytes are the lock that is set. */
#include "client/meta/plock.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct plock want = {0}, list = {0}, again = {0};
	uint8_t *bytes;

	if (n < PLOCK_LEN || n > 1 << 14 || plock_decode(p, PLOCK_LEN, &want))
		return 0;
	if (plock_decode(p + PLOCK_LEN, n - PLOCK_LEN, &list) == 0) {
		const struct meta_lock *c = plock_conflict(&list, &want.l[0]);

		assert(!c || (c->start <= want.l[0].end && c->end >= want.l[0].start));
		assert(plock_set(&list, &want.l[0]) == 0);
		bytes = malloc(list.n * PLOCK_LEN + 1);
		assert(bytes);
		plock_encode(&list, bytes);
		assert(plock_decode(bytes, list.n * PLOCK_LEN, &again) == 0);
		assert(again.n == list.n && !memcmp(again.l, list.l, list.n * sizeof(*list.l)));
		free(bytes);
		plock_fini(&again);
		plock_fini(&list);
	}
	plock_fini(&want);
	return 0;
}
