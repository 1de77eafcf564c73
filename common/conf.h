/* SPDX-License-Identifier: Apache-2.0 */
/* Options as rows of a table -> members of a struct. One row gives the flag, its environment variable, its line in --help and in the
 * man page. Order of precedence: argv, environment, file, default.
 *
 * A program writes its rows once:
 *	// client/conf.def
 *	OPTION(buffer_size, "buffer-size", SIZE_MIB, "300M", "memory for reading and writing; MiB unless a unit is given")
 * and includes the file twice: to declare the struct (conf_struct.h style, see CONF_MEMBER) and to make the rows (CONF_ROW). */
#ifndef STOKE_COMMON_CONF_H
#define STOKE_COMMON_CONF_H

#include "common/str.h"

enum conf_type {
	CONF_FLAG,	/* bool; --name, --name=false */
	CONF_STR,	/* char *; NULL when absent and no default */
	CONF_U64,	/* uint64_t */
	CONF_SIZE,	/* uint64_t bytes; a bare number is bytes */
	CONF_SIZE_MIB,	/* uint64_t bytes; a bare number is MiB */
	CONF_SIZE_KIB,	/* uint64_t bytes; a bare number is KiB (JuiceFS: --block-size) */
	CONF_DURATION,	/* uint64_t microseconds; a bare number is seconds */
	CONF_RATIO,	/* double in 0…1 */
	CONF_SECRET,	/* char *; never printed; accepted from environment or file only, never argv */
};

/* members of the struct that a table fills */
#define CONF_C_FLAG	bool
#define CONF_C_STR	char *
#define CONF_C_U64	uint64_t
#define CONF_C_SIZE	uint64_t
#define CONF_C_SIZE_MIB	uint64_t
#define CONF_C_SIZE_KIB	uint64_t
#define CONF_C_DURATION	uint64_t
#define CONF_C_RATIO	double
#define CONF_C_SECRET	char *

struct conf_option {
	const char *name;	/* "cache-size" */
	char letter;		/* 'p', or 0 */
	enum conf_type type;
	size_t offset;		/* in the target struct */
	const char *dflt;	/* as typed; NULL: zero */
	const char *env;	/* "STOKE_GROUP_SECRET", or NULL */
	const char *help;	/* one sentence, starts with a small letter; shown behind the default */
};

struct conf_table {
	const struct conf_option *options;
	size_t n;
	const char *usage;	/* "stoke mount [options] META DIR" */
	const char *summary;	/* one line */
	size_t min_args, max_args;	/* words that are not options */
};

/* Fills *target (of the table's struct; zeroed before) from defaults, environment and argv[1…argc). Options may stand anywhere; "--" ends
 * them. *args points at the first word that is not an option: argv is reordered, options first. 0; 1 when --help was asked for and
 * printed on stdout; -EINVAL with one line in err (names the option, what was wrong, and "see --help"). */
int conf_parse(const struct conf_table *t, void *target, int argc, char **argv, char ***args, size_t *n_args, struct str *err);
/* lines "name = value", "#" comments; unknown names are errors. Call before conf_parse. 0 or -errno with err set */
int conf_load_file(const struct conf_table *t, void *target, const char *path, struct str *err);
/* frees the strings in target */
void conf_fini(const struct conf_table *t, void *target);
void conf_help(const struct conf_table *t, struct str *out);
/* the options as JSON members of target, secrets left out: for .config */
void conf_print_json(const struct conf_table *t, const void *target, struct str *out);

#endif
