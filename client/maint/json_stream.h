/* SPDX-License-Identifier: Apache-2.0 */
/* Reading JSON of any size in one pass: what is small is taken out as text for jansson, what is
 * large is walked. Reads anything anybody may have written; memory is bounded by JSON_TEXT_MAX. One
 * thread.
 *
 * Every call returns 0 or -errno: -EPROTO not JSON (json_offset tells where), -EFBIG a value or a
 * string that is too long, -ENOMEM, or what read returned. After an error the stream stays where it
 * is. */
#ifndef STOKE_CLIENT_MAINT_JSON_STREAM_H
#define STOKE_CLIENT_MAINT_JSON_STREAM_H

#include "common/str.h"

enum { JSON_TEXT_MAX = 64 << 20, JSON_DEPTH_MAX = 100, JSON_BUFFER = 64 << 10 };

/* bytes, 0 at the end, -errno */
typedef ssize_t json_read_fn(void *arg, void *p, size_t cap);

struct json_stream {
	json_read_fn *read;
	void *arg;
	unsigned char *buf;
	size_t at, end;
	uint64_t before; /* bytes before buf */
	bool eof;
};

/* buf is allocated by the first read */
void json_stream_init(struct json_stream *s, json_read_fn *read, void *arg);
void json_stream_fini(struct json_stream *s);
uint64_t json_offset(const struct json_stream *s);

/* the next byte that is no space, left there; 0: the end */
int json_peek(struct json_stream *s, char *ret);
/* takes it; -EPROTO when it is another */
int json_take(struct json_stream *s, char c);
/* a string, decoded (\u too); out is reset */
int json_text(struct json_stream *s, struct str *out);
/* any value as it stands; out is reset */
int json_value(struct json_stream *s, struct str *out);
/* any value, not kept */
int json_skip(struct json_stream *s);
/* Inside an object or array that began with json_take: *ret_more: another element comes (its comma
 * is taken); else close was taken. first: none came before. */
int json_more(struct json_stream *s, char close, bool first, bool *ret_more);
/* "name": of the next member; out is reset */
int json_name(struct json_stream *s, struct str *out);
/* only space is left */
int json_end(struct json_stream *s);

#endif
