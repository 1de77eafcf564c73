/* SPDX-License-Identifier: Apache-2.0 */
#include "client/maint/dump_text.h"

#include <inttypes.h>

static const char HEX[] = "0123456789ABCDEF";

/* bytes of the UTF-8 character at p, 0 when there is none (overlong forms and surrogates are
 * none) */
static size_t utf8(const unsigned char *p, size_t n)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t len = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
	uint32_t c = p[0];

	if (len == 1)
		return 1;
	if (p[0] < 0xc2 || p[0] > 0xf4 || len > n)
		return 0;
	c &= 0xffu >> (len + 1);
	for (size_t i = 1; i < len; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (p[i] & 0x3f);
	}
	return c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : len;
}

/* JuiceFS takes a character U+FFFD for a byte that is none, and loses two thirds of it; escaping
 * all of it keeps it, for its load as for ours */
static bool plain(const unsigned char *p, size_t len)
{
	if (len == 0 || (len == 3 && memcmp(p, "\xef\xbf\xbd", 3) == 0))
		return false;
	return len > 1 || (p[0] > 32 && p[0] != '%' && p[0] != '"' && p[0] != '\\');
}

void dump_escape(const char *p, size_t n, struct str *out)
{
	const unsigned char *s = (const unsigned char *)p;

	while (n > 0) {
		size_t len = utf8(s, n);

		if (plain(s, len)) {
			str_addn(out, s, len);
		} else {
			char x[3] = {'%', HEX[s[0] >> 4], HEX[s[0] & 15]};

			len = 1;
			str_addn(out, x, sizeof(x));
		}
		s += len;
		n -= len;
	}
}

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

size_t dump_unescape(char *p, size_t n)
{
	size_t out = 0;

	for (size_t i = 0; i < n; i++) {
		if (p[i] == '%' && i + 2 < n && hex(p[i + 1]) >= 0 && hex(p[i + 2]) >= 0) {
			p[out++] = (char)(hex(p[i + 1]) * 16 + hex(p[i + 2]));
			i += 2;
		} else {
			p[out++] = p[i];
		}
	}
	return out;
}

void dump_string(const char *p, size_t n, struct str *out)
{
	const unsigned char *s = (const unsigned char *)p;

	str_add(out, "\"");
	while (n > 0) {
		size_t len = utf8(s, n);

		if (len == 0) {
			str_add(out, "\\ufffd");
			len = 1;
		} else if (len == 1 && (s[0] < 32 || strchr("<>&", s[0]))) {
			str_addf(out, "\\u%04x", s[0]);
		} else if (len == 1 && (s[0] == '"' || s[0] == '\\')) {
			str_addf(out, "\\%c", s[0]);
		} else {
			str_addn(out, s, len);
		}
		s += len;
		n -= len;
	}
	str_add(out, "\"");
}

bool dump_is_utf8(const char *p, size_t n)
{
	const unsigned char *s = (const unsigned char *)p;

	while (n > 0) {
		size_t len = utf8(s, n);

		if (len == 0)
			return false;
		s += len;
		n -= len;
	}
	return true;
}

static const char *const types[] = {
	[INODE_FILE] = "regular",  [INODE_DIR] = "directory",  [INODE_SYMLINK] = "symlink",
	[INODE_FIFO] = "fifo",	   [INODE_BLOCK] = "blockdev", [INODE_CHAR] = "chardev",
	[INODE_SOCKET] = "socket",
};

const char *dump_type_name(uint8_t type)
{
	return type < ARRAY_LEN(types) ? types[type] : NULL;
}

uint8_t dump_type(const char *name)
{
	for (size_t i = INODE_FILE; i < ARRAY_LEN(types); i++) {
		if (strcmp(types[i], name) == 0)
			return (uint8_t)i;
	}
	return 0;
}

static void nonzero(const char *field, uint32_t v, struct str *out)
{
	if (v)
		str_addf(out, ",\"%s\":%" PRIu32, field, v);
}

void dump_attr(uint64_t inode, const struct attr *a, struct str *out)
{
	const char *type = dump_type_name(a->type);

	str_addf(out, "{\"inode\":%" PRIu64, inode);
	nonzero("flags", a->flags, out);
	str_addf(out, ",\"type\":\"%s\",\"mode\":%u,\"uid\":%" PRIu32 ",\"gid\":%" PRIu32,
		 type ? type : "", a->mode, a->uid, a->gid);
	str_addf(out, ",\"atime\":%" PRId64 ",\"mtime\":%" PRId64 ",\"ctime\":%" PRId64,
		 a->atime.sec, a->mtime.sec, a->ctime.sec);
	nonzero("atimensec", a->atime.nsec, out);
	nonzero("mtimensec", a->mtime.nsec, out);
	nonzero("ctimensec", a->ctime.nsec, out);
	str_addf(out, ",\"nlink\":%" PRIu32 ",\"length\":%" PRIu64, a->nlink,
		 a->type == INODE_FILE ? a->length : 0);
	nonzero("rdev", a->rdev, out);
	nonzero("tier", a->tier, out);
	str_add(out, "}");
}

static void acl_entries(const struct acl_entry *e, size_t n, struct str *out)
{
	for (size_t i = 0; i < n; i++)
		str_addf(out, "%s{\"id\":%" PRIu32 ",\"perm\":%u}", i ? "," : "[", e[i].id,
			 e[i].perm);
	str_add(out, n ? "]" : "null");
}

void dump_acl(const struct acl *a, struct str *out)
{
	str_addf(out, "{\"owner\":%u,\"group\":%u,\"other\":%u,\"mask\":%u,\"users\":", a->owner,
		 a->group, a->other, a->mask);
	acl_entries(a->users, a->n_users, out);
	str_add(out, ",\"groups\":");
	acl_entries(a->groups, a->n_groups, out);
	str_add(out, "}");
}

void dump_chunk(uint32_t index, const struct slice *s, size_t n, struct str *out)
{
	str_addf(out, "{\"index\":%" PRIu32 ",\"slices\":[", index);
	for (size_t i = 0; i < n; i++) {
		str_addf(out, "%s{\"id\":%" PRIu64, i ? "," : "", s[i].id);
		nonzero("pos", s[i].pos, out);
		str_addf(out, ",\"size\":%" PRIu32, s[i].size);
		nonzero("off", s[i].off, out);
		str_addf(out, ",\"len\":%" PRIu32 "}", s[i].len);
	}
	str_add(out, "]}");
}

void dump_line(unsigned depth, struct str *out)
{
	str_add(out, "\n");
	while (depth-- > 0)
		str_add(out, "  ");
}
