/* SPDX-License-Identifier: Apache-2.0 */
/* The volume's setting: whatever is accepted keeps its bounds, names its blocks, and shows no
 * secret. */
#include "common/block/key.h"
#include "common/block/setting.h"
#include "common/str.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void check(const struct setting *s)
{
	const struct hash128 volume = {{0}};
	struct str why = STR_INIT, out = STR_INIT;
	char name[BLOCK_NAME_MAX];
	struct block_key k;
	int r;

	assert(s->block_size >= 65536 && s->block_size <= FRAME_BLOCK_MAX);
	assert((s->block_size & (s->block_size - 1)) == 0);
	assert(s->name && s->uuid && s->storage && s->bucket && s->compression && s->text);
	block_key_init(&k, &volume, UINT64_MAX, UINT32_MAX, s->block_size);
	block_key_object(&k, s->name, s->hash_prefix, name);
	r = setting_check(s, &why);
	assert((r != 0) == (why.len != 0));
	assert(setting_redacted(s, &out) == 0);
	assert(!strstr(str_c(&out), "\"SecretKey\":") || strstr(str_c(&out), "****") ||
	       strstr(str_c(&out), "\"SecretKey\": \"\"") ||
	       strstr(str_c(&out), "\"SecretKey\": null"));
	str_fini(&why);
	str_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct setting *s = NULL;
	struct str err = STR_INIT;
	int r = setting_parse((const char *)p, n, &s, &err);

	if (r == 0)
		check(s);
	else
		assert(err.len > 0 && !s);
	setting_free(s);
	str_fini(&err);
	return 0;
}
