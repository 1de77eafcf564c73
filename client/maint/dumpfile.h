/* SPDX-License-Identifier: Apache-2.0 */
/* Files of dump and load: plain, or gzip by the end of their names (.gz); without a name, standard
 * output and input. One thread; blocks. */
#ifndef STOKE_CLIENT_MAINT_DUMPFILE_H
#define STOKE_CLIENT_MAINT_DUMPFILE_H

#include "common/base.h"

struct dumpfile;

/* Writes into a file beside path (0600: it may hold secrets) that takes its name when it is
 * complete; -errno */
int dumpfile_create(const char *path, struct dumpfile **ret);
/* gzip is recognised by its first bytes. -EOPNOTSUPP: zstd, or JuiceFS's binary format */
int dumpfile_open(const char *path, struct dumpfile **ret);
/* 0; the first error stays */
int dumpfile_write(struct dumpfile *f, const void *p, size_t n);
/* bytes, 0 at the end; -EIO (damaged gzip too) */
ssize_t dumpfile_read(struct dumpfile *f, void *p, size_t cap);
/* keep false: what was written goes away. 0, or what writing or its end failed with */
int dumpfile_close(struct dumpfile *f, bool keep);

#endif
