/* SPDX-License-Identifier: Apache-2.0 */
/* Tables on standard output, drawn as JuiceFS draws them. */
#ifndef STOKE_CLIENT_CMD_TABLE_H
#define STOKE_CLIENT_CMD_TABLE_H

#include "common/str.h"

enum { TABLE_COLUMNS = 12 };

struct table {
	struct str text; /* rows, each ended by a NUL, fields by tabs */
	size_t n;	 /* rows behind the head */
};

/* fields have tabs between them */
void table_init(struct table *t, const char *head);
void table_row(struct table *t, const char *fields);
/* left: how many columns are text, drawn to the left; others, and the head, are to the right and in
 * the middle. A bit for each column from the first. */
void table_print(struct table *t, unsigned left);
void table_fini(struct table *t);

#endif
