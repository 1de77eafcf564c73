/* SPDX-License-Identifier: Apache-2.0 */
/* A script and its digest, by which a Redis that has it runs it. Pure; any thread. */
#include "common/redis.h"
#include "common/sha1.h"

int redis_script_init(struct redis_script *s, const char *name, const char *prelude,
		      const char *body)
{
	struct str text = STR_INIT;

	str_add(&text, prelude);
	str_add(&text, body);
	sha1_hex(str_c(&text), text.len, s->sha);
	s->name = name;
	s->text = str_take(&text);
	return s->text ? 0 : -ENOMEM;
}

void redis_script_fini(struct redis_script *s)
{
	free(s->text);
	*s = (struct redis_script){.name = NULL};
}
