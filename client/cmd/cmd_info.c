/* SPDX-License-Identifier: Apache-2.0 */
/* stoke info: what the volume knows of a file or directory. Asks the mount that it lies in. */
#include <inttypes.h>

#include "client/cmd/ask.h"
#include "client/maint/dump_text.h"
#include "client/cmd/table.h"
#include "common/parse.h"

struct info_conf {
	bool inode, recursive, strict, raw;
};

static const struct conf_option options[] = {
	{"inode", 'i', CONF_FLAG, offsetof(struct info_conf, inode), "false", NULL,
	 "the arguments are inodes of the mount that the current directory lies in"},
	{"recursive", 'r', CONF_FLAG, offsetof(struct info_conf, recursive), "false", NULL,
	 "sums of all that lies below a directory"},
	{"strict", 0, CONF_FLAG, offsetof(struct info_conf, strict), "false", NULL, NULL},
	{"raw", 0, CONF_FLAG, offsetof(struct info_conf, raw), "false", NULL,
	 "the slices of chunks as they are stored"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke info [options] PATH|INODE…",
	.summary = "show what the volume knows of a file or directory",
	.min_args = 1,
	.max_args = SIZE_MAX,
};

struct info {
	const struct info_conf *conf;
	struct table rows;
	struct str paths; /* each with its newline */
	size_t n_paths;
};

static void print_size(const char *name, const char *text)
{
	char pretty[16];
	uint64_t n = 0;

	(void)parse_u64(text, UINT64_MAX, &n);
	if (n < 1024)
		(void)printf("%7s: %" PRIu64 " Bytes", name, n);
	else
		(void)printf("%7s: %s", name, cmd_bytes(n, pretty));
	(void)printf(n < 1024 ? "\n" : " (%" PRIu64 " Bytes)\n", n);
}

static void print_text(const char *name, const char *text)
{
	(void)printf("%7s: %s\n", name, text);
}

/* as JuiceFS: one on the line, several below it */
static void print_paths(struct info *in)
{
	if (in->n_paths == 1)
		(void)printf("%7s: %s", "path", str_c(&in->paths) + 1);
	else
		(void)printf("%7s:\n%s", "paths", str_c(&in->paths));
	str_reset(&in->paths);
	in->n_paths = 0;
}

/* fields come in this order (client/meta/inspect.h) */
static void line(void *arg, char *text)
{
	struct info *in = arg;
	char *value = strchr(text, '\t');
	size_t n;

	if (!value)
		return;
	*value++ = '\0';
	if (strcmp(text, "object") == 0 || strcmp(text, "slice") == 0) {
		table_row(&in->rows, value);
	} else if (strcmp(text, "length") == 0 || strcmp(text, "size") == 0) {
		print_size(text, value);
	} else if (strcmp(text, "path") == 0) {
		n = dump_unescape(value, strlen(value));
		str_addf(&in->paths, "%s%.*s\n", "\t", (int)n, value);
		in->n_paths++;
	} else if (strcmp(text, "type") != 0) {
		if (in->n_paths)
			print_paths(in);
		print_text(text, value);
	}
}

static int show(struct maint *m, const struct info_conf *conf, int control, uint64_t inode,
		const char *what)
{
	struct info in = {.conf = conf};
	struct ask_answer answer;
	char request[64];
	int r;

	table_init(&in.rows, conf->raw ? "chunkIndex\tsliceId\tsize\toffset\tlength\tpos"
				       : "chunkIndex\tobjectName\tsize\toffset\tlength\tpos");
	(void)snprintf(request, sizeof(request), "inspect %" PRIu64 " %d %d\n", inode,
		       conf->recursive, conf->raw);
	(void)printf("%s :\n", what);
	r = ask_run(m, control, request, line, &in, &answer);
	if (r == 0 && in.rows.n) {
		(void)printf("%8s:\n", conf->raw ? "chunks" : "objects");
		table_print(&in.rows, conf->raw ? 0 : 2);
	}
	table_fini(&in.rows);
	str_fini(&in.paths);
	return r;
}

static int one(struct maint *m, const struct info_conf *conf, const char *what)
{
	struct asked_path p;
	uint64_t inode = 0;
	int r;

	if (conf->inode && parse_u64(what, UINT64_MAX, &inode) < 0) {
		(void)cmd_error("info", "%s: not an inode", what);
		return -EINVAL;
	}
	r = conf->inode ? ask_open_here(&p) : ask_open(what, true, &p);
	if (r) {
		(void)cmd_error("info", "%s: %s", conf->inode ? "current directory" : what,
				ask_error(r));
		return r;
	}
	r = show(m, conf, p.control, conf->inode ? inode : p.inode, what);
	if (r)
		(void)cmd_error("info", "%s: %s", what, ask_error(r));
	ask_close(&p);
	return r;
}

static int info_run(int argc, char **argv)
{
	struct maint m = {.name = "info"};
	struct info_conf conf;
	char **args;
	size_t n;
	int r = maint_args("info", &table, &conf, argc, argv, &args, &n), failed = 0;

	if (r == 0) {
		maint_catch(&m, "info");
		for (size_t i = 0; i < n && failed != -EINTR; i++) {
			int e = one(&m, &conf, args[i]);

			failed = e ? e : failed;
		}
	}
	conf_fini(&table, &conf);
	return r ? r - 1 : failed != 0;
}

const struct cmd cmd_info = {"info", "show what the volume knows of a file", info_run, &table};
