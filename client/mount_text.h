/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of a mount: .config, the answer to .control's info, options for mount(2), and its line in
 * sysfs. */
#ifndef STOKE_CLIENT_MOUNT_TEXT_H
#define STOKE_CLIENT_MOUNT_TEXT_H

#include "client/mount.h"
#include "common/block/setting.h"

/* all: the caller's to free; NULL: no memory. No secret is in them. */
char *mount_config_text(const struct mount_conf *conf, const struct setting *s);
char *mount_info_text(const struct mount_conf *conf, const struct setting *s,
		      const char *meta_name);
char *mount_fuse_options(const struct mount_conf *conf, const struct setting *s);

/* is name one of the comma-separated words of options? */
bool mount_has_option(const char *options, const char *name);

/* "4.0 MiB" */
const char *mount_bytes(uint64_t n, char ret[16]);
/* help text of a row of metrics.def, "" when there is none */
const char *mount_metric_help(const char *name);

/* A line of /proc/self/mountinfo: type of the file system mounted last on path (absolute,
 * resolved), "" when none is; and its device. */
struct mount_found {
	char type[64], source[256];
	unsigned major, minor;
};
/* realpath(3) that also works where a mount whose process has died stands: it can be resolved but
 * not looked at. 0 or -errno; ret: PATH_MAX bytes */
int mount_resolve(const char *path, char *ret);
bool mount_find(const char *path, struct mount_found *ret);
/* the kernel's readahead of the mount, where we may set it (/sys/class/bdi); says nothing when we
 * may not */
void mount_read_ahead(const char *path, unsigned kib);

#endif
