/* SPDX-License-Identifier: Apache-2.0 */
/* Backups of the metadata in the object store, as JuiceFS's mounts make them (docs/format.md §5.5,
 * §7.3): meta/dump-YYYY-MM-DD-HHMMSS.json.gz, one an interval and volume by whichever client looks
 * first, and old ones thinned out. stoke load and juicefs load take them. A thread of its own. */
#ifndef STOKE_CLIENT_BACKUP_H
#define STOKE_CLIENT_BACKUP_H

#include "client/meta/meta.h"
#include "common/object/coding.h"
#include "common/object/object.h"

struct backup;
struct backup_conf {
	struct meta *meta;
	struct object_store *store;
	const struct crypt_block *crypt; /* NULL: not encrypted */
	uint64_t interval_us;
	bool skip_trash;
	struct metrics *metrics;
};
/* 0 or -errno */
int backup_start(const struct backup_conf *conf, struct backup **ret);
/* what is being made is given up. NULL is fine */
void backup_stop(struct backup *b);

enum { BACKUP_NAME_LEN = 30 };
/* Of names "dump-….json.gz" in ascending order, those that are not kept, *ret_n of them first in
 * names: everything of two days stays, then the first of each day up to two weeks, of each week up
 * to two months, of each 30 days after that. Names of another form stay. Pure. */
void backup_thin(const char **names, size_t n, int64_t now_sec, size_t *ret_n);

#endif
