/* SPDX-License-Identifier: Apache-2.0 */
/* stoke summary: what takes the space in a tree. Asks the mount that it lies in. */
#include <inttypes.h>

#include "client/cmd/ask.h"
#include "client/maint/dump_text.h"
#include "client/cmd/table.h"

struct summary_conf {
	uint64_t depth, entries;
	bool strict, csv;
};

static const struct conf_option options[] = {
	{"depth", 'd', CONF_U64, offsetof(struct summary_conf, depth), "2", NULL,
	 "levels to show; 0: only the directory itself"},
	{"entries", 'e', CONF_U64, offsetof(struct summary_conf, entries), "10", NULL,
	 "how many of each directory to show, the largest"},
	{"strict", 0, CONF_FLAG, offsetof(struct summary_conf, strict), "false", NULL, NULL},
	{"csv", 0, CONF_FLAG, offsetof(struct summary_conf, csv), "false", NULL, "as CSV"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke summary [options] PATH",
	.summary = "show what takes the space below a directory",
	.min_args = 1,
	.max_args = 1,
};

struct summary {
	struct table rows;
	bool csv;
};

/* quoted when a comma, a quote or a line's end is in it (RFC 4180) */
static void print_csv(const char *name, const char *rest)
{
	if (!strpbrk(name, ",\"\r\n") && name[0] != ' ') {
		(void)printf("%s", name);
	} else {
		(void)putchar('"');
		for (; *name; name++)
			(void)printf(*name == '"' ? "\"\"" : "%c", *name);
		(void)putchar('"');
	}
	for (; *rest; rest++)
		(void)putchar(*rest == '\t' ? ',' : *rest);
	(void)putchar('\n');
}

static void line(void *arg, char *text)
{
	struct summary *s = arg;
	char *rest = strchr(text, '\t'), size[16], *row;
	uint64_t bytes, dirs, files;
	size_t n;

	if (!rest ||
	    sscanf(rest, "\t%" SCNu64 "\t%" SCNu64 "\t%" SCNu64, &bytes, &dirs, &files) != 3)
		return;
	n = dump_unescape(text, (size_t)(rest - text));
	if (s->csv) {
		char *name = strndup(text, n);

		if (name)
			print_csv(name, rest);
		free(name);
		return;
	}
	/* a name must not break the table */
	for (size_t i = 0; i < n; i++) {
		if ((unsigned char)text[i] < 32)
			text[i] = '?';
	}
	if (asprintf(&row, "%.*s\t%s\t%" PRIu64 "\t%" PRIu64, (int)n, text, cmd_bytes(bytes, size),
		     dirs, files) < 0)
		return;
	table_row(&s->rows, row);
	free(row);
}

static int show(struct maint *m, const struct summary_conf *conf, const char *path)
{
	struct summary s = {.csv = conf->csv};
	struct ask_answer answer;
	struct asked_path p;
	char request[96];
	int r = ask_open(path, true, &p);

	if (r) {
		(void)cmd_error("summary", "%s: %s", path, ask_error(r));
		return r;
	}
	table_init(&s.rows, "PATH\tSIZE\tDIRS\tFILES");
	if (s.csv)
		(void)puts("PATH,SIZE,DIRS,FILES");
	(void)snprintf(request, sizeof(request), "summary %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
		       p.inode, MIN(conf->depth, UINT64_C(10)), MIN(conf->entries, UINT64_C(100)));
	maint_begin(m, "entries", NULL);
	r = ask_run(m, p.control, request, line, &s, &answer);
	maint_end(m);
	if (r)
		(void)cmd_error("summary", "%s: %s", path, ask_error(r));
	else if (!s.csv)
		table_print(&s.rows, 1);
	table_fini(&s.rows);
	ask_close(&p);
	return r;
}

static int summary_run(int argc, char **argv)
{
	struct maint m = {.name = "summary"};
	struct summary_conf conf;
	char **args;
	size_t n;
	int r = maint_args("summary", &table, &conf, argc, argv, &args, &n);

	if (r == 0) {
		maint_catch(&m, "summary");
		r = show(&m, &conf, args[0]) ? 2 : 1;
	}
	conf_fini(&table, &conf);
	return r - 1;
}

const struct cmd cmd_summary = {"summary", "show what takes the space in a tree", summary_run,
				&table};
