/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-1 (RFC 3174), only because Redis names scripts by it. Not for security. */
#ifndef STOKE_COMMON_SHA1_H
#define STOKE_COMMON_SHA1_H

#include "common/base.h"

void sha1_hex(const void *p, size_t n, char ret[41]);

#endif
