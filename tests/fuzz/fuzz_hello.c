/* SPDX-License-Identifier: Apache-2.0 */
/* Both sides of the handshake, given bytes of a stranger: as HELLO, as WELCOME, as PROOF. What is
 * no proof is never accepted. */
#include "common/block/hello.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
	struct secret old = {.len = 8, .b = (uint8_t *)(uintptr_t) "the old "};
	const struct secret both = {.len = 8, .b = (uint8_t *)(uintptr_t) "the new ", .next = &old};
	const uint8_t binding[TLS_BINDING] = {7};
	struct hello_id id = {.role = ROLE_MEMBER, .group = "g", .node = "n", .secret = &both};
	uint8_t body[MSG_HELLO_MAX + MSG_HMAC], proof[MSG_HMAC], role = 0;
	struct hello_state st;
	size_t len = 0;

	if (n == 0)
		return 0;
	if (*data & 1)
		id.binding = binding;
	memset(id.volume.b, 'v', sizeof(id.volume.b));
	data++;
	n--;
	if (hello_answer(&id, &st, data, n, body, &len, &role) == 0) {
		assert(len > MSG_HMAC && len <= MSG_HELLO_MAX);
		assert(role >= ROLE_MOUNT && role <= ROLE_TOOL);
		assert(st.version >= HELLO_VERSION_MIN && st.version <= HELLO_VERSION_MAX);
		assert(hello_verify(&id, &st, data, MIN(n, (size_t)MSG_HMAC)) == -EACCES);
	}
	assert(hello_ask(&id, &st, body) > 0);
	assert(hello_prove(&id, &st, data, n, proof) < 0);
	return 0;
}
