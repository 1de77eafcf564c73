/* SPDX-License-Identifier: Apache-2.0 */
/* The mount's own files below its root: .stats .config .accesslog (as JuiceFS's), .control (ours,
 * hidden from listings, 0600: how stoke's commands talk to a mount). They have fixed inodes and
 * never touch Redis.
 *
 * .control: open it, write one request, read answers until end of file. Text, one line each:
 *
 *	-> "warmup fill|check|evict|unpin PARALLEL [UNTIL]\n" then "INODE\n"… and an empty line
 *		several writes; the empty line starts it. UNTIL, of a fill: pinned until then
 *		(unix seconds)
 *	<- "progress FILES BLOCKS BYTES MISSING ERRORS TOTAL_BLOCKS_SO_FAR\n"…
 *		at least once a second
 *	<- "error INODE text\n"…
 *	<- "refused BLOCKS\n"		that were not pinned: no more may be. If any
 *	<- "done FILES BLOCKS BYTES MISSING ERRORS\n"
 *		BLOCKS: unique blocks looked at; MISSING: of them, not stored when it ended
 *
 *	-> "inspect INODE RECURSIVE RAW\n"	(flags: 0 or 1)
 *	-> "summary INODE DEPTH ENTRIES\n"
 *		<- "text …\n"…			lines of client/meta/inspect.h
 *	-> "rmr SKIP_TRASH PARENT NAME\n"	(names as dumps escape them: dump_text.h)
 *	-> "clone INODE PRESERVE UMASK PARENT NAME\n"	(umask in decimal)
 *	-> "compact INODE\n"
 *	-> "threads N " and one of these: by so many threads at once
 *	all of these:
 *	<- "progress FILES BYTES\n"…	at least once a second
 *	<- "failed ERRNO\n" or "done FILES BYTES CHUNKS\n"
 *		closing the file ends the work
 *
 *	-> "info\n"
 *	<- one line of JSON: {"version", "pid", "meta" (no password), "mount_point", "volume",
 *		"uuid", "group", …} */
#ifndef STOKE_CLIENT_INTERNAL_H
#define STOKE_CLIENT_INTERNAL_H

#include <sys/ioctl.h>

#include "client/meta/meta.h"
#include "common/loop.h"

/* A read-only mount's files cannot be opened for writing: there the request goes through ioctls of
 * the file open for reading, of n bytes each */
#define CONTROL_IOC(n) _IOC(_IOC_WRITE, 'S', 0xc0, n)
enum { CONTROL_IOC_MAX = 8192 };

#define INODE_ACCESSLOG (INODE_INTERNAL + 1)
#define INODE_CONTROL	(INODE_INTERNAL + 2)
#define INODE_STATS	(INODE_INTERNAL + 3)
#define INODE_CONFIG	(INODE_INTERNAL + 4)

struct internal;
struct ifile; /* one of them, open */
struct vfs_io;
struct control_conf;

struct internal_conf {
	struct metrics *metrics;	    /* .stats: its text without comments */
	const char *config;		    /* .config: JSON, kept by pointer, no secret in it */
	const struct control_conf *control; /* .control; kept by pointer; NULL: cannot be opened */
	struct loop *loop;		    /* ends reads of an idle .accesslog */
};

/* the line an idle .accesslog gives after a second, as JuiceFS does, so that its readers can be
 * interrupted */
#define ACCESSLOG_IDLE "#\n"
/* bytes of lines that one reader may be behind; more are lost, and the loss is told */
enum { ACCESSLOG_BUFFER = 1 << 20 };

int internal_new(const struct internal_conf *conf, struct internal **ret);
/* all files closed, and .control's requests ended or told to (waits for them). NULL is fine. */
void internal_free(struct internal *i);

/* inode of a name in the root; false: none of ours */
bool internal_find(const char *name, uint64_t *ret_inode);
/* names that a listing of the root shows, by number; NULL behind the last */
const char *internal_listed(size_t n, uint64_t *ret_inode);
/* false: no such inode */
bool internal_attr(struct internal *i, uint64_t inode, struct attr *ret);

/* -EACCES: .accesslog or .config or .control for others than root and the mount's user; -ENODEV: no
 * control */
int internal_open(struct internal *i, const struct meta_ctx *c, uint64_t inode, struct ifile **ret);
void internal_close(struct ifile *f);
/* io->done once; parked while .accesslog or .control has nothing to say */
void internal_read(struct ifile *f, struct vfs_io *io);
/* .control only (-EACCES else); 0 or -errno */
int internal_write(struct ifile *f, const void *data, size_t len);

/* somebody reads .accesslog: only then lines are made */
bool internal_logging(struct internal *i);
/* one line without its time and newline */
void internal_log(struct internal *i, const char *fmt, ...) _printf_(2, 3);

#endif
