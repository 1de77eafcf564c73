/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of options as text: --help, .config, and the name that was probably meant. Pure; any
 * thread. */
#include "common/conf_text.h"

enum { HELP_COLUMN = 28, NAME_BYTES = 48, NEAR = 3 };

/* --- --help --- */

static const char *value_name(enum conf_type type)
{
	switch (type) {
	case CONF_FLAG:
		return "";
	case CONF_U64:
		return " N";
	case CONF_SIZE:
	case CONF_SIZE_MIB:
	case CONF_SIZE_KIB:
		return " SIZE";
	case CONF_DURATION:
		return " TIME";
	case CONF_RATIO:
		return " 0…1";
	default:
		return " TEXT";
	}
}

static void help_name(const struct conf_option *o, struct str *out)
{
	str_add(out, "  ");
	if (o->letter)
		str_addf(out, "-%c, ", o->letter);
	else
		str_add(out, "    ");
	/* a secret has no flag: its variable, or its name in the file */
	if (o->type == CONF_SECRET)
		str_add(out, o->env ? o->env : o->name);
	else
		str_addf(out, "--%s%s", o->name, value_name(o->type));
}

static void help_option(const struct conf_option *o, struct str *out)
{
	size_t start = out->len, width;
	bool shown = o->dflt && *o->dflt && o->type != CONF_SECRET &&
		     !(o->type == CONF_FLAG && !strcmp(o->dflt, "false"));

	help_name(o, out);
	width = out->len - start;
	if (width + 2 > HELP_COLUMN) {
		str_add(out, "\n");
		width = 0;
	}
	str_addf(out, "%*s%s", (int)(HELP_COLUMN - width), "", o->help);
	if (shown)
		str_addf(out, " (default: %s)", o->dflt);
	if (o->type == CONF_SECRET)
		str_add(out, o->env ? " (environment)" : " (configuration file)");
	else if (o->env)
		str_addf(out, " [$%s]", o->env);
	str_add(out, "\n");
}

void conf_help(const struct conf_table *t, struct str *out)
{
	str_addf(out, "usage: %s\n\n%s\n", t->usage, t->summary);
	if (t->n)
		str_add(out, "\noptions:\n");
	for (size_t i = 0; i < t->n; i++) {
		if (t->options[i].help)
			help_option(&t->options[i], out);
	}
	str_addf(out, "  -h, --help%*sshow this text\n", HELP_COLUMN - 12, "");
}

/* --- the sample --- */

void conf_sample(const struct conf_table *t, struct str *out)
{
	str_addf(out,
		 "# %s\n# name = value; a line that begins with # is a comment. The command line "
		 "and the environment\n# come before this file.\n",
		 t->summary);
	for (size_t i = 0; i < t->n; i++) {
		const struct conf_option *o = &t->options[i];

		if (!o->help || !strcmp(o->name, "config"))
			continue;
		str_addf(out, "\n# %s\n#%s =%s%s\n", o->help, o->name, o->dflt ? " " : "",
			 o->dflt ? o->dflt : "");
	}
}

/* --- JSON --- */

static void json_text(struct str *out, const char *s)
{
	if (!s) {
		str_add(out, "null");
		return;
	}
	str_add(out, "\"");
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			str_addf(out, "\\%c", *s);
		else if ((unsigned char)*s < 0x20)
			str_addf(out, "\\u%04x", (unsigned char)*s);
		else
			str_addn(out, s, 1);
	}
	str_add(out, "\"");
}

static void json_value(const struct conf_option *o, const void *target, struct str *out)
{
	const void *at = (const char *)target + o->offset;

	switch (o->type) {
	case CONF_FLAG:
		str_add(out, *(const bool *)at ? "true" : "false");
		break;
	case CONF_RATIO:
		str_addf(out, "%.9g", *(const double *)at);
		break;
	case CONF_DURATION:
		str_addf(out, "%.15g", (double)*(const uint64_t *)at / 1e6);
		break;
	case CONF_STR:
		json_text(out, *(char *const *)at);
		break;
	default:
		str_addf(out, "%llu", (unsigned long long)*(const uint64_t *)at);
	}
}

void conf_print_json(const struct conf_table *t, const void *target, struct str *out)
{
	bool first = true;

	for (size_t i = 0; i < t->n; i++) {
		if (t->options[i].type == CONF_SECRET)
			continue;
		if (!first)
			str_add(out, ",");
		first = false;
		json_text(out, t->options[i].name);
		str_add(out, ":");
		json_value(&t->options[i], target, out);
	}
}

/* --- the name that was meant --- */

/* letters to add, remove or change (Levenshtein), row by row */
static unsigned distance(const char *a, size_t n, const char *b, size_t m)
{
	unsigned row[NAME_BYTES + 1];

	for (size_t j = 0; j <= m; j++)
		row[j] = (unsigned)j;
	for (size_t i = 1; i <= n; i++) {
		unsigned diagonal = row[0];

		row[0] = (unsigned)i;
		for (size_t j = 1; j <= m; j++) {
			unsigned change = diagonal + (a[i - 1] != b[j - 1]);
			unsigned other = MIN(row[j], row[j - 1]) + 1;

			diagonal = row[j];
			row[j] = MIN(change, other);
		}
	}
	return row[m];
}

const char *conf_nearest(const struct conf_table *t, const char *name, size_t len)
{
	const char *best = NULL;
	unsigned nearest = NEAR;

	if (len > NAME_BYTES || len < 2)
		return NULL;
	for (size_t i = 0; i < t->n; i++) {
		size_t n = strlen(t->options[i].name);
		unsigned d;

		if (n > NAME_BYTES || t->options[i].type == CONF_SECRET)
			continue;
		d = distance(name, len, t->options[i].name, n);
		if (d < nearest && d < n) {
			nearest = d;
			best = t->options[i].name;
		}
	}
	return best;
}
