/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to the kernel, their metrics, and the lines of the access log in JuiceFS's style. Any
 * thread. The answer is the last that is done with the request: after it the kernel may send the
 * release of what it was about. */
#include "client/fuse_job.h"

#include <ctype.h>
#include <fcntl.h>
#include <inttypes.h>

#include "client/mount_text.h"
#include "common/clock.h"

enum { BLKSIZE = 65536, GENERATION = 1 };

static double seconds(uint64_t us)
{
	return (double)us / 1e6;
}

static void to_stat(const struct vfs_entry *e, struct stat *ret)
{
	const struct attr *a = &e->attr;

	*ret = (struct stat){
		.st_ino = e->inode,
		.st_mode = inode_type_to_mode(a->type) | a->mode,
		.st_nlink = a->nlink,
		.st_uid = a->uid,
		.st_gid = a->gid,
		.st_rdev = a->rdev, /* the same encoding */
		.st_size = (off_t)a->length,
		.st_blksize = BLKSIZE,
		.st_blocks = (blkcnt_t)DIV_UP(a->length, 512),
		.st_atim = {a->atime.sec, a->atime.nsec},
		.st_mtim = {a->mtime.sec, a->mtime.nsec},
		.st_ctim = {a->ctime.sec, a->ctime.nsec},
	};
}

static void to_param(const struct vfs_entry *e, struct fuse_entry_param *ret)
{
	*ret = (struct fuse_entry_param){
		.ino = e->inode,
		.generation = GENERATION,
		.attr_timeout = seconds(e->attr_us),
		.entry_timeout = seconds(e->entry_us),
	};
	to_stat(e, &ret->attr);
}

/* --- the access log --- */

static const char *const op_names[] = {
#define X(name, text) [FOP_##name] = text,
	FUSE_OP_LIST(X)
#undef X
};

static void mode_text(uint32_t mode, char ret[11])
{
	static const char types[16] = "?pc?d?b?-?l?s???", bits[] = "rwxrwxrwx";

	ret[0] = types[(mode >> 12) & 15];
	for (int i = 0; i < 9; i++)
		ret[i + 1] = '-';
	for (int i = 0; i < 9; i++) {
		if (mode & (0400u >> i))
			ret[i + 1] = bits[i];
	}
	ret[10] = 0;
}

/* " (2,[-rw-r--r--:0100644,1,0,0,atime,mtime,ctime,length])" */
static void entry_text(struct str *out, const struct vfs_entry *e, bool inode)
{
	uint32_t mode = inode_type_to_mode(e->attr.type) | e->attr.mode;
	char text[11];

	mode_text(mode, text);
	str_add(out, " (");
	if (inode)
		str_addf(out, "%" PRIu64 ",", e->inode);
	str_addf(out, "[%s:0%06o,%u,%u,%u,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRIu64 "])", text,
		 mode, e->attr.nlink, e->attr.uid, e->attr.gid, e->attr.atime.sec,
		 e->attr.mtime.sec, e->attr.ctime.sec, e->attr.length);
}

static void args_text(struct str *out, const struct job *j)
{
	unsigned long long ino = j->ino, ino2 = j->ino2, off = j->off, fh = j->h ? j->h->number : 0;
	const char *name = j->name ? j->name : "", *name2 = j->name2 ? j->name2 : "";

	switch (j->op) {
	case FOP_READ:
	case FOP_WRITE:
		str_addf(out, "%llu,%zu,%llu,%llu", ino, j->size, off, fh);
		break;
	case FOP_READDIR:
	case FOP_READDIRPLUS:
		str_addf(out, "%llu,%zu,%llu", ino, j->size, off);
		break;
	case FOP_MKNOD:
	case FOP_MKDIR:
	case FOP_CREATE:
	case FOP_TMPFILE:
		str_addf(out, "%llu,%s,0%04o", ino, name, j->mode);
		break;
	case FOP_RENAME:
		str_addf(out, "%llu,%s,%llu,%s,%d", ino, name, ino2, name2, j->flags);
		break;
	case FOP_SYMLINK:
		str_addf(out, "%llu,%s,%s", ino, name, name2);
		break;
	case FOP_LINK:
		str_addf(out, "%llu,%llu,%s", ino, ino2, name);
		break;
	case FOP_OPEN:
	case FOP_ACCESS:
		str_addf(out, "%llu,0x%X", ino, (unsigned)j->flags);
		break;
	case FOP_SETATTR:
		str_addf(out, "%llu,0x%X", ino, j->set | (j->has_size ? 8u : 0));
		break;
	case FOP_FLUSH:
	case FOP_FSYNC:
	case FOP_RELEASE:
	case FOP_RELEASEDIR:
		str_addf(out, "%llu,%llu", ino, fh);
		break;
	case FOP_FALLOCATE:
		str_addf(out, "%llu,%d,%llu,%llu", ino, j->flags, off, (unsigned long long)j->len);
		break;
	case FOP_COPY_FILE_RANGE:
		str_addf(out, "%llu,%llu,%llu,%llu,%llu", ino, off, ino2,
			 (unsigned long long)j->off2, (unsigned long long)j->len);
		break;
	case FOP_GETLK:
	case FOP_SETLK:
	case FOP_FLOCK:
		str_addf(out, "%llu,%llu,%016" PRIX64 ",%u", ino, fh, j->lock.owner,
			 j->lock.lock.type);
		break;
	case FOP_LSEEK:
		str_addf(out, "%llu,%llu,%d", ino, off, j->flags);
		break;
	case FOP_SETXATTR:
	case FOP_GETXATTR:
		str_addf(out, "%llu,%s,%zu", ino, name, j->size);
		break;
	default:
		str_addf(out, j->name ? "%llu,%s" : "%llu", ino, name);
	}
}

/* a name may hold newlines and other bytes that would break the line */
static void clean(char *s)
{
	for (; *s; s++) {
		if (iscntrl((unsigned char)*s))
			*s = '?';
	}
}

static void access_line(struct job *j, int status, uint64_t took_us, struct str *result)
{
	_cleanup_(str_fini) struct str args = STR_INIT;
	char why[64];

	args_text(&args, j);
	if (str_error(&args) < 0 || str_error(result) < 0)
		return;
	if (args.s)
		clean(args.s);
	if (result->s)
		clean(result->s);
	snprintf(why, sizeof(why), "%s", status ? strerror(-status) : "OK");
	if (status)
		why[0] = (char)tolower((unsigned char)why[0]);
	internal_log(j->f->conf.internal, "[uid:%u,gid:%u,pid:%u] %s (%s): %s%s <%.6f>", j->ctx.uid,
		     j->ctx.gid, j->ctx.pid, op_names[j->op], str_c(&args), why, str_c(result),
		     seconds(took_us));
}

/* --- the end of a job --- */

/* reading the log is not told in the log, which would feed itself */
static bool logging(const struct job *j)
{
	return internal_logging(j->f->conf.internal) && j->ino != INODE_ACCESSLOG;
}

/* the request was answered: counts, logs, frees. result: what was answered, for the log
 * (emptied) */
static void end(struct job *j, int status, struct str *result)
{
	struct fuse_ops *f = j->f;
	uint64_t took = clock_us() - j->start_us;

	metric_observe_us(f->seconds[j->op], took);
	if (status)
		metric_add(f->errors[j->op], 1);
	if (logging(j))
		access_line(j, status, took, result);
	str_fini(result);
	job_free(j);
	__atomic_sub_fetch(&f->live, 1, __ATOMIC_RELEASE);
}

static void end_plain(struct job *j, int status)
{
	struct str none = STR_INIT;

	end(j, status, &none);
}

/* j->h may be released as soon as the kernel has its answer: the log's number of it is taken
 * before. A handle's end is answered after. */
static void forget_handle(struct job *j, struct handle *copy)
{
	if (!j->h)
		return;
	copy->number =
		logging(j) && j->op != FOP_RELEASE && j->op != FOP_RELEASEDIR ? j->h->number : 0;
	j->h = copy;
}

void job_reply_err(struct job *j, int status)
{
	struct handle copy;

	forget_handle(j, &copy);
	if (job_claim(j))
		fuse_reply_err(j->req, -status);
	end_plain(j, status);
}

void job_reply_entry(struct job *j, const struct vfs_entry *e)
{
	struct fuse_entry_param p;
	struct str text = STR_INIT;

	to_param(e, &p);
	if (job_claim(j))
		fuse_reply_entry(j->req, &p);
	if (logging(j))
		entry_text(&text, e, true);
	end(j, 0, &text);
}

void job_reply_attr(struct job *j, const struct vfs_entry *e)
{
	struct str text = STR_INIT;
	struct handle copy;
	struct stat st;

	forget_handle(j, &copy);
	to_stat(e, &st);
	if (job_claim(j))
		fuse_reply_attr(j->req, &st, seconds(e->attr_us));
	if (logging(j))
		entry_text(&text, e, false);
	end(j, 0, &text);
}

void job_reply_open(struct job *j, const struct vfs_entry *created, struct handle *h, bool keep)
{
	struct fuse_file_info *fi = &j->fi;
	struct fuse_entry_param p;
	struct str text = STR_INIT;
	int r;

	fi->fh = (uintptr_t)h;
	fi->keep_cache = keep;
	fi->direct_io = h->kind == HANDLE_INTERNAL;
	/* where this mount keeps locks, every close may end some of its process's */
	fi->noflush = h->kind != HANDLE_FILE || (!h->wfile && !j->f->locks);
	if (logging(j))
		str_addf(&text, " [fh:%" PRIu64 "]", h->number);
	if (!job_claim(j)) {
		r = -ENOENT;
	} else if (created) {
		to_param(created, &p);
		r = fuse_reply_create(j->req, &p, fi);
	} else {
		r = fuse_reply_open(j->req, fi);
	}
	/* the request went away: so did the kernel's wish to release it. Opens answer from the meta
	 * workq, which may block. */
	if (r == -ENOENT)
		vfs_release(h);
	end(j, 0, &text);
}

void job_reply_data(struct job *j, const struct iovec *iov, int n, size_t total)
{
	struct str text = STR_INIT;
	struct handle copy;

	forget_handle(j, &copy);
	if (!job_claim(j))
		total = 0;
	else if (total == 0)
		fuse_reply_buf(j->req, NULL, 0);
	else if (n == 1)
		fuse_reply_buf(j->req, iov->iov_base, iov->iov_len);
	else
		fuse_reply_iov(j->req, iov, n);
	metric_add(j->f->read_bytes, total);
	if (logging(j))
		str_addf(&text, " (%zu)", total);
	end(j, 0, &text);
}

void job_reply_write(struct job *j, size_t total)
{
	struct handle copy;

	forget_handle(j, &copy);
	if (job_claim(j))
		fuse_reply_write(j->req, total);
	metric_add(j->f->write_bytes, total);
	end_plain(j, 0);
}

void job_reply_readlink(struct job *j, const char *target)
{
	struct str text = STR_INIT;

	if (job_claim(j))
		fuse_reply_readlink(j->req, target);
	if (logging(j))
		str_addf(&text, " (%s)", target);
	end(j, 0, &text);
}

void job_reply_statfs(struct job *j, const struct meta_statfs *s)
{
	enum { UNIT = 4096 };
	struct statvfs v = {
		.f_bsize = UNIT,
		.f_frsize = UNIT,
		.f_blocks = s->total_bytes / UNIT,
		.f_bfree = s->avail_bytes / UNIT,
		.f_bavail = s->avail_bytes / UNIT,
		.f_files = s->used_inodes + s->avail_inodes,
		.f_ffree = s->avail_inodes,
		.f_favail = s->avail_inodes,
		.f_namemax = NAME_LEN_MAX,
	};

	if (job_claim(j))
		fuse_reply_statfs(j->req, &v);
	end_plain(j, 0);
}

void job_reply_xattr(struct job *j, const char *value, size_t len)
{
	if (j->size > 0 && len > j->size) {
		job_reply_err(j, -ERANGE);
		return;
	}
	if (job_claim(j)) {
		if (j->size == 0)
			fuse_reply_xattr(j->req, len);
		else
			fuse_reply_buf(j->req, value, len);
	}
	end_plain(j, 0);
}

/* one entry into buf; its size, more than room when it does not fit */
static size_t add_entry(struct job *j, char *buf, size_t room, const struct vfs_dirent *d,
			bool plus)
{
	struct fuse_entry_param p;
	char name[NAME_LEN_MAX + 1];
	size_t n = MIN(d->name_len, sizeof(name) - 1);

	memcpy(name, d->name, n);
	name[n] = 0;
	to_param(&d->entry, &p);
	if (!d->full)
		p.attr.st_mode = inode_type_to_mode(d->entry.attr.type);
	if (!plus)
		return fuse_add_direntry(j->req, buf, room, name, &p.attr, (off_t)d->next);
	/* inode 0: the kernel takes the name and the type, and makes no entry of it */
	if (!d->full)
		p.ino = 0;
	return fuse_add_direntry_plus(j->req, buf, room, name, &p, (off_t)d->next);
}

void job_reply_dir(struct job *j, bool plus)
{
	char *buf = malloc(j->size);
	struct str text = STR_INIT;
	struct handle copy;
	struct vfs_dirent d;
	size_t used = 0;
	uint64_t off = j->off;
	unsigned count = 0;

	if (!buf) {
		job_reply_err(j, -ENOMEM);
		return;
	}
	for (; vfs_readdir_at(j->h, off, &d); count++, off = d.next) {
		size_t n = add_entry(j, buf + used, j->size - used, &d, plus);

		if (n > j->size - used)
			break;
		used += n;
	}
	forget_handle(j, &copy);
	if (job_claim(j))
		fuse_reply_buf(j->req, buf, used);
	free(buf);
	if (logging(j))
		str_addf(&text, " (%u)", count);
	end(j, 0, &text);
}

void job_reply_lock(struct job *j, const struct meta_lock *l)
{
	struct flock f = {.l_type = (short)l->type,
			  .l_whence = SEEK_SET,
			  .l_start = (off_t)l->start,
			  .l_len = l->end >= LOCK_EOF ? 0 : (off_t)(l->end - l->start + 1),
			  .l_pid = (pid_t)l->pid};
	struct handle copy;

	forget_handle(j, &copy);
	if (job_claim(j))
		fuse_reply_lock(j->req, &f);
	end_plain(j, 0);
}

void job_reply_lseek(struct job *j, uint64_t at)
{
	struct handle copy;

	forget_handle(j, &copy);
	if (job_claim(j))
		fuse_reply_lseek(j->req, (off_t)at);
	end_plain(j, 0);
}

void job_reply_ioctl(struct job *j, const void *out, size_t len)
{
	if (job_claim(j))
		fuse_reply_ioctl(j->req, 0, out, len);
	end_plain(j, 0);
}

/* --- metrics --- */

static const char *const op_labels[] = {
#define X(name, text) [FOP_##name] = "op=\"" text "\"",
	FUSE_OP_LIST(X)
#undef X
};

int fuse_ops_metrics(struct fuse_ops *f, struct metrics *m)
{
	f->read_bytes = metrics_get(m, "stoke_fuse_read_bytes_total", "", METRIC_COUNTER,
				    mount_metric_help("stoke_fuse_read_bytes_total"));
	f->write_bytes = metrics_get(m, "stoke_fuse_written_bytes_total", "", METRIC_COUNTER,
				     mount_metric_help("stoke_fuse_written_bytes_total"));
	if (!f->read_bytes || !f->write_bytes)
		return -ENOMEM;
	for (int i = 0; i < FOP_COUNT; i++) {
		f->seconds[i] =
			metrics_get(m, "stoke_fuse_ops_seconds", op_labels[i], METRIC_HISTOGRAM,
				    mount_metric_help("stoke_fuse_ops_seconds"));
		f->errors[i] =
			metrics_get(m, "stoke_fuse_errors_total", op_labels[i], METRIC_COUNTER,
				    mount_metric_help("stoke_fuse_errors_total"));
		if (!f->seconds[i] || !f->errors[i])
			return -ENOMEM;
	}
	return 0;
}
