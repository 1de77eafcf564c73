/* SPDX-License-Identifier: Apache-2.0 */
/* Secrets sealed in the volume's setting (docs/format.md §2.2.1): AES-128-GCM under MD5 of the UUID
 * text; SM4-GCM under the SM3 of it in volumes whose algorithm is sm4gcm. */
#ifndef STOKE_COMMON_OBJECT_CRYPT_H
#define STOKE_COMMON_OBJECT_CRYPT_H

#include "common/base.h"

/* *ret: the plain text, freed by the caller. "" stays "". -EBADMSG: damaged, or another UUID;
 * -ENOENT: "removed" (stripped by a dump) */
int crypt_unseal(const char *uuid, bool sm4, const char *sealed, char **ret);
int crypt_seal(const char *uuid, bool sm4, const char *plain, char **ret);
void crypt_random(void *p, size_t n);
/* random version 4 UUID as text */
void crypt_uuid(char ret[37]);

#endif
