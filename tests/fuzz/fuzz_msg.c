/* SPDX-License-Identifier: Apache-2.0 */
/* First byte: which body. What decodes must encode to the same bytes again. */
#include "common/base.h"
#include "proto/msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	uint8_t p[MSG_HELLO_MAX];
	struct msg_key k;
	struct msg_get g;
	struct msg_welcome w;
	struct msg_stat s;
	struct msg_fill f;
	struct msg_list l;
	const uint8_t *get;
	uint64_t id;
	ssize_t used;

	if (n == 0)
		return 0;
	n--;
	switch (*data++ % 8) {
	case 0:
		if ((used = msg_key_decode(data, n, &k)) > 0) {
			msg_key_encode(&k, p);
			assert(memcmp(p, data, (size_t)used) == 0);
		}
		break;
	case 1:
		if ((used = msg_get_decode(data, n, &g)) > 0) {
			assert(g.off + g.len <= g.key.size && g.len > 0);
			assert(msg_get_encode(&g, p) == (size_t)used &&
			       memcmp(p, data, (size_t)used) == 0);
		}
		break;
	case 2:
		if ((used = msg_welcome_decode(data, n, &w)) > 0)
			assert(msg_welcome_encode(&w, p) == (size_t)used &&
			       memcmp(p, data, (size_t)used) == 0);
		break;
	case 3:
		if ((used = msg_list_decode(data, n, &l)) > 0) {
			msg_list_encode(&l, p);
			assert(memcmp(p, data, (size_t)used) == 0);
		}
		break;
	case 4:
		if ((used = msg_list_key_decode(data, n, &k, &id)) > 0) {
			msg_list_key_encode(&k, id, p);
			assert(memcmp(p, data, (size_t)used) == 0);
		}
		break;
	case 5:
		if ((used = msg_fill_decode(data, n, &f)) > 0)
			assert(msg_fill_encode(&f, p) == (size_t)used &&
			       memcmp(p, data, (size_t)used) == 0);
		break;
	case 6:
		if ((used = msg_mget_decode(data, n, &id, &get)) > 0) {
			assert(get == data + 8);
			msg_mget_encode(id, get, p);
			assert(memcmp(p, data, (size_t)used) == 0);
		}
		break;
	default:
		if ((used = msg_stat_decode(data, n, &s)) > 0)
			assert(msg_stat_encode(&s, p) >= (size_t)used &&
			       memcmp(p, data, (size_t)used) == 0);
	}
	return 0;
}
