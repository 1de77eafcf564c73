/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a script: of the prelude only what its body needs. Redis runs a script's whole text
 * each time, so a function that is defined and not called costs each operation. Pure. */
#ifndef STOKE_CLIENT_META_SCRIPT_TEXT_H
#define STOKE_CLIENT_META_SCRIPT_TEXT_H

#include "common/str.h"

/* prelude: definitions that begin with "local" in a line's first column, each using only those
 * before it; body: the rest. Appends the definitions that body uses, and those that they use, in
 * their order and without lines that are only comments, and the body. 0, -ENOMEM, or -EINVAL when
 * the prelude is not of that form. */
int script_text_add(struct str *out, const char *prelude, const char *body);

#endif
