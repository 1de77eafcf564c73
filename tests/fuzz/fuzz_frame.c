/* SPDX-License-Identifier: Apache-2.0 */
/* What decodes must encode to the same bytes again. */
#include "common/base.h"
#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	for (int is_answer = 0; is_answer < 2; is_answer++) {
		struct frame f;
		uint8_t p[FRAME_HEADER];

		if (frame_decode(data, n, is_answer, &f) != FRAME_HEADER)
			continue;
		frame_encode(&f, p);
		assert(memcmp(p, data, FRAME_HEADER) == 0);
		assert(f.body_len <= FRAME_BODY_MAX && op_name(f.op)[0] != '?' &&
		       status_name(f.status)[0] != '?');
	}
	return 0;
}
