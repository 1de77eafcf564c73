/* SPDX-License-Identifier: Apache-2.0 */
/* LIST: a joining member asks what we hold of the keys that it will have to serve. On the
 * connection's loop, a bounded step at a time. */
#include "cached/conn.h"
#include "common/hash.h"
#include "proto/bytes.h"

enum {
	KEYS_MAX = (FRAME_LIST_MAX - MSG_LIST_HEAD) / MSG_LIST_KEY,
	STEP = 256,
	STEPS = 16, /* looks at 4 096 keys at most: half a millisecond */
};

/* by the digest of its id; -1: our ring has no such member (yet) */
static int asker_find(const struct cluster *c, uint64_t digest)
{
	for (size_t i = 0; i < c->n; i++)
		if (hash64(c->members[i].id, strlen(c->members[i].id)) == digest)
			return (int)i;
	return -1;
}

/* appends those keys of the next steps that are the asker's; the next cursor */
static uint64_t list_steps(struct store *s, const struct cluster *c, int member, uint64_t cursor,
			   uint8_t *body, size_t *io_len)
{
	struct block_key k[STEP];
	size_t n;

	for (unsigned i = 0; i < STEPS; i++) {
		if (*io_len + STEP * MSG_LIST_KEY > FRAME_LIST_MAX ||
		    store_each(s, &cursor, k, STEP, &n) < 0)
			break;
		for (size_t j = 0; j < n; j++) {
			struct msg_key key = {
				.slice = k[j].slice, .index = k[j].index, .size = k[j].size};

			if (!cluster_on_path(c, &k[j], (uint32_t)member))
				continue;
			msg_list_key_encode(&key, store_pinned(s, &k[j]), body + *io_len);
			*io_len += MSG_LIST_KEY;
		}
		if (cursor == 0)
			break;
	}
	return cursor;
}

void serve_list(struct call *k, const uint8_t *body)
{
	const struct server_conf *conf = k->conn->worker->conf;
	struct cluster *c = conf->view ? cluster_view_get(conf->view) : NULL;
	size_t len = MSG_LIST_HEAD;
	struct msg_list l;
	uint8_t *out, *fit;
	int member;

	if (msg_list_decode(body, k->frame.body_len, &l) < 0) {
		answer_status(k, ST_BAD_REQUEST, NULL);
		cluster_unref(c);
		return;
	}
	member = c ? asker_find(c, l.member) : -1;
	if (member < 0 || c->members[member].weight != l.weight) {
		answer_status(k, ST_STALE, NULL);
	} else if (!(out = malloc(FRAME_LIST_MAX))) {
		answer_status(k, ST_NO_MEMORY, NULL);
	} else {
		put64(out, list_steps(conf->store, c, member, l.cursor, out, &len));
		fit = realloc(out, len); /* most answers are short, and may wait */
		answer_bytes(k, ST_OK, fit ? fit : out, len);
	}
	cluster_unref(c);
}
