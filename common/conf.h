/* SPDX-License-Identifier: Apache-2.0 */
/* Options as rows of a table -> members of a struct. One row gives the flag, its environment
 * variable, its line in --help and in the man page. Order of precedence: argv, environment, file,
 * default.
 *
 * A small table is written as an array of struct conf_option. A program's long one is written once,
 * as rows of a file, client/conf.def:
 *
 *	OPTION(threads, "threads", 'p', U64, "4", NULL, "threads that read")
 *
 * which is included twice: to declare the struct, with OPTION defined by CONF_MEMBER(member, type),
 * and to make the array, with OPTION defined by CONF_ROW(struct mount_conf, member, name, …). */
#ifndef STOKE_COMMON_CONF_H
#define STOKE_COMMON_CONF_H

#include "common/str.h"

enum conf_type {
	CONF_FLAG,     /* bool; --name, --name=false */
	CONF_STR,      /* char *; NULL when absent and no default */
	CONF_U64,      /* uint64_t */
	CONF_SIZE,     /* uint64_t bytes; a bare number is bytes */
	CONF_SIZE_MIB, /* uint64_t bytes; a bare number is MiB */
	CONF_SIZE_KIB, /* uint64_t bytes; a bare number is KiB (JuiceFS: --block-size) */
	CONF_DURATION, /* uint64_t microseconds; a bare number is seconds */
	CONF_RATIO,    /* double in 0…1 */
	CONF_SECRET,   /* char *; never printed; from environment or file only, never argv */
};

/* members of the struct that a table fills */
#define CONF_C_FLAG	bool
#define CONF_C_STR	char *
#define CONF_C_U64	uint64_t
#define CONF_C_SIZE	uint64_t
#define CONF_C_SIZE_MIB uint64_t
#define CONF_C_SIZE_KIB uint64_t
#define CONF_C_DURATION uint64_t
#define CONF_C_RATIO	double
#define CONF_C_SECRET	char *

#define CONF_MEMBER(member, type) CONF_C_##type member;
#define CONF_ROW(S, member, name, letter, type, dflt, env, help)                                   \
	{name, letter, CONF_##type, offsetof(S, member), dflt, env, help},

struct conf_option {
	const char *name; /* "cache-size" */
	char letter;	  /* 'p', or 0 */
	enum conf_type type;
	size_t offset;	  /* in the target struct */
	const char *dflt; /* as typed; NULL: zero */
	const char *env;  /* "STOKE_GROUP_SECRET", or NULL */
	/* One sentence, starts with a small letter; shown behind the default. NULL: taken, but not
	 * offered: JuiceFS has it, and what it asks for is always so here. */
	const char *help;
};

struct conf_table {
	const struct conf_option *options;
	size_t n;
	const char *usage;	   /* "stoke mount [options] META DIR" */
	const char *summary;	   /* one line */
	size_t min_args, max_args; /* words that are not options */
	/* an option without a variable of its own has this and its name in capitals; NULL: none */
	const char *env_prefix;
	const char *file; /* read when it is there and "config" names none; NULL: none */
};

/* Fills the options' members of *target, whatever was in them, from defaults, the file, the
 * environment and argv[1…argc). Forms: --name value, --name=value, -p value, -p=value, --flag,
 * --flag=false; -h and --help. Options may stand anywhere; "--" ends them. *args points at the
 * first word that is not an option: argv is reordered, options first.
 *
 * A table with a CONF_STR option "config" has a file: the one that it names, of lines
 * "name = value" and "#" comments; unknown names are errors there, too. "none" is no file. A line
 * with a secret is refused in a file that others can read.
 *
 * 0; 1 when --help was asked for and printed on stdout; -EINVAL, or the -errno of the file, with
 * one line in err (names the option, what was wrong, and "see --help"). conf_fini is due always. */
int conf_parse(const struct conf_table *t, void *target, int argc, char **argv, char ***args,
	       size_t *n_args, struct str *err);
/* frees the strings in target */
void conf_fini(const struct conf_table *t, void *target);
/* whether option i is the same in both */
bool conf_same(const struct conf_table *t, size_t i, const void *a, const void *b);
/* a file for "config": every option, its help and its default, commented out */
void conf_sample(const struct conf_table *t, struct str *out);
void conf_help(const struct conf_table *t, struct str *out);
/* appends `"name":value,…` without braces (sizes in bytes, durations in seconds), secrets left out:
 * for .config */
void conf_print_json(const struct conf_table *t, const void *target, struct str *out);

#endif
