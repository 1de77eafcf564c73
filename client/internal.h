/* SPDX-License-Identifier: Apache-2.0 */
/* The mount's own files below its root: .stats .config .accesslog (as JuiceFS's), .control (ours, hidden from listings, 0600: how
 * stoke's commands talk to a mount). They have fixed inodes and never touch Redis.
 *
 * .control: open it, write one request, read answers until end of file. Text, one line each:
 *	-> "warmup fill|check|evict PARALLEL\n" then "INODE\n"… and an empty line   (several writes; the empty line starts it)
 *	<- "progress FILES BLOCKS BYTES MISSING ERRORS TOTAL_BLOCKS_SO_FAR\n"…  (at least once a second)
 *	<- "error INODE text\n"…
 *	<- "done FILES BLOCKS BYTES MISSING ERRORS\n"                            BLOCKS: unique blocks looked at; MISSING: of them, not stored when it ended
 *	-> "info\n"      <- one line of JSON: {"version", "pid", "meta" (no password), "mount_point", "volume", "uuid", "group", …} */
#ifndef STOKE_CLIENT_INTERNAL_H
#define STOKE_CLIENT_INTERNAL_H

#include "client/meta/attr.h"

#define INODE_ACCESSLOG	(INODE_INTERNAL + 1)
#define INODE_CONTROL	(INODE_INTERNAL + 2)
#define INODE_STATS	(INODE_INTERNAL + 3)
#define INODE_CONFIG	(INODE_INTERNAL + 4)

#endif
