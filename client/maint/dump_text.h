/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a dump, as JuiceFS 1.4 writes it (JSON, two spaces a level, an entry's attributes,
 * xattrs, rules and chunks each on one line), and its escapes. Pure.
 *
 * Names, targets of symlinks and values of xattrs are bytes: what is not UTF-8, control characters,
 * space, '%', '"' and '\' become %XX inside the JSON string. */
#ifndef STOKE_CLIENT_MAINT_DUMP_TEXT_H
#define STOKE_CLIENT_MAINT_DUMP_TEXT_H

#include "client/meta/acl.h"
#include "client/meta/attr.h"

/* appends the escaped bytes, without quotes: nothing in it needs a JSON escape */
void dump_escape(const char *p, size_t n, struct str *out);
/* undoes it in place; what is no escape stays. Returns the length, which never grows */
size_t dump_unescape(char *p, size_t n);
/* appends a JSON string, quotes included, as Go writes it; what is not UTF-8 becomes U+FFFD */
void dump_string(const char *p, size_t n, struct str *out);

/* false: what dump_string loses */
bool dump_is_utf8(const char *p, size_t n);

/* "regular", "directory", …; NULL, 0: unknown */
const char *dump_type_name(uint8_t type);
uint8_t dump_type(const char *name);

/* {"inode":…}, {"owner":…}, {"index":0,"slices":[…]} */
void dump_attr(uint64_t inode, const struct attr *a, struct str *out);
void dump_acl(const struct acl *a, struct str *out);
void dump_chunk(uint32_t index, const struct slice *s, size_t n, struct str *out);
/* a newline and depth levels */
void dump_line(unsigned depth, struct str *out);

#endif
