/* SPDX-License-Identifier: Apache-2.0 */
/* LIST of a directory as object store (private to object_file.c). */
#ifndef STOKE_COMMON_OBJECT_OBJECT_FILE_LIST_H
#define STOKE_COMMON_OBJECT_OBJECT_FILE_LIST_H

#include "common/object/object.h"

/* Fills req's list from the files below root ("/dir/"), in the order of their keys' bytes. 0 or
 * -errno; blocks. */
int object_file_list(const char *root, struct object_req *req);

#endif
