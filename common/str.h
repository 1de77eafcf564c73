/* SPDX-License-Identifier: Apache-2.0 */
/* Growable string, always NUL-terminated once something was added. After a failed allocation it
 * keeps what it had and remembers the failure: add many times, check str_error once. */
#ifndef STOKE_COMMON_STR_H
#define STOKE_COMMON_STR_H

#include "common/base.h"

struct str {
	char *s;
	size_t len, cap;
	int err;
};

#define STR_INIT                                                                                   \
	{                                                                                          \
		.s = NULL                                                                          \
	}
void str_fini(struct str *b);
void str_add(struct str *b, const char *s);
void str_addn(struct str *b, const void *p, size_t n);
void str_addf(struct str *b, const char *fmt, ...) _printf_(2, 3);
void str_reset(struct str *b);
/* 0, or -ENOMEM when an addition was lost */
int str_error(const struct str *b);
/* the text, "" when empty; owned by b */
const char *str_c(const struct str *b);
/* the text, owned by the caller (free); NULL when an addition was lost. b is empty afterwards. */
char *str_take(struct str *b);

#endif
