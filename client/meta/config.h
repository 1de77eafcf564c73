/* SPDX-License-Identifier: Apache-2.0 */
/* Changing the setting of a volume that is there (docs/format.md §2.2). */
#ifndef STOKE_CLIENT_META_CONFIG_H
#define STOKE_CLIENT_META_CONFIG_H

#include <jansson.h>

#include "client/meta/attr.h"
#include "common/redis.h"

/* A setting as JuiceFS writes it: its fields in its order, empty ones left out where it leaves them
 * out, one element a line; fields that nobody here knows stay, behind them. 0 or -ENOMEM */
int setting_write(const json_t *root, struct str *out);

/* one step: sums that begin anew because they are kept from now on */
enum config_reset { CONFIG_DIR_STATS = 1, CONFIG_USER_GROUP = 2 };
struct config_request {
	const char *old, *text; /* what is stored now; what is to be */
	unsigned reset;
	bool change_log; /* of the new text: the resets get their lines */
	bool has_trash;	 /* of the new text: the trash's root is made when it is missing */
};
/* Writes text in place of old, if old is still what is stored: -EAGAIN when it is not. */
int setting_replace(struct redis *r, uint64_t deadline_us, const struct config_request *c);

/* a root (1, or the trash's) as a new volume has it; returns its length */
size_t meta_root_record(uint16_t mode, uint8_t ret[ATTR_MAX]);

#endif
