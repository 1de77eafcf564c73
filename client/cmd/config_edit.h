/* SPDX-License-Identifier: Apache-2.0 */
/* The options of stoke config -> fields of the setting's JSON. Pure but for reading a file that an
 * option names. */
#ifndef STOKE_CLIENT_CMD_CONFIG_EDIT_H
#define STOKE_CLIENT_CMD_CONFIG_EDIT_H

#include <jansson.h>

#include "common/block/setting.h"

/* NULL: not given */
struct config_options {
	char *storage, *bucket, *access_key, *secret_key, *session_token, *storage_class, *tag;
	char *tier, *upload_limit, *download_limit, *capacity, *inodes, *trash_days;
	char *min_client, *max_client, *ranger_url, *ranger_service, *kerberos_file;
	char *log_age, *log_lines;
	bool enable_acl, dir_stats, user_group_quota, change_log; /* if … */
	bool acl_given, stats_given, ug_given, log_given;
	bool encrypt_secret, yes, force;
};

/* what the change touches */
struct config_touch {
	bool storage, quota, trash, clients;
	unsigned reset; /* enum config_reset */
	bool stats_off;
};

/* Changes root, which is s's JSON, as the options say; appends a line for each change to msg. 0;
 * -EINVAL with one line in err; -ENOMEM */
int config_edit(const struct config_options *o, const struct setting *s, json_t *root,
		struct config_touch *ret, struct str *msg, struct str *err);
/* seals what is a secret of root and is not sealed yet: new ones, and all when seal_all or the
 * volume seals */
int config_seal(const struct config_options *o, const struct setting *s, json_t *root);

#endif
