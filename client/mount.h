/* SPDX-License-Identifier: Apache-2.0 */
/* A mounted volume, put together and taken apart. cmd_mount.c types, forks and waits; this is
 * everything else. */
#ifndef STOKE_CLIENT_MOUNT_H
#define STOKE_CLIENT_MOUNT_H

#include "client/meta/meta.h"
#include "common/conf.h"

struct mount_conf {
#define OPTION(member, name, letter, type, dflt, env, help) CONF_C_##type member;
#include "client/conf.def"
#undef OPTION
	const char *meta;	 /* URL, with its password */
	const char *mount_point; /* absolute */
	const struct conf_table *table;
	/* the kernel and we have greeted each other: the volume can be used; any thread */
	void (*ready)(void *arg);
	/* unmounted by somebody; any thread */
	void (*ended)(void *arg);
	/* while mount_stop runs: readable when somebody wants it to end, which again then says */
	int again_fd;
	bool (*again)(void *arg);
	void *arg;
};

/* "UID:GID", "noatime" and the like, an octal umask, as typed; -EINVAL */
int mount_parse_squash(const char *text, uint32_t *ret_uid, uint32_t *ret_gid);
int mount_parse_atime(const char *text, enum atime_mode *ret);
int mount_parse_umask(const char *text, int *ret);
/* the engine is to check permissions, not the kernel */
bool mount_checks(const struct mount_conf *conf);

struct mount;

/* Everything in order: metadata, object store, group, data path, FUSE. 0 or -errno with one line in
 * err; nothing is left behind then. */
int mount_start(const struct mount_conf *conf, struct mount **ret, struct str *err);
/* Flushes what was written, leaves the volume, unmounts if it is mounted still, frees. 0 or the
 * first error of flushing. Says what it waits for; ends the process when that is given up
 * (client/ending.h). */
int mount_stop(struct mount *m);

#endif
