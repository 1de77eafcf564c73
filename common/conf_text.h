/* SPDX-License-Identifier: Apache-2.0 */
/* What conf.c says about a table besides the help. */
#ifndef STOKE_COMMON_CONF_TEXT_H
#define STOKE_COMMON_CONF_TEXT_H

#include "common/conf.h"

/* the option whose name is nearest to what was typed; NULL when none is near */
const char *conf_nearest(const struct conf_table *t, const char *name, size_t len);

#endif
