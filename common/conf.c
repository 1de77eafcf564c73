/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of options. Thread: main, at start. */
#include "common/conf.h"

#include <ctype.h>
#include <sys/stat.h>

#include "common/conf_text.h"
#include "common/parse.h"

static void *member(const struct conf_option *o, void *target)
{
	return (char *)target + o->offset;
}

static bool is_text(const struct conf_option *o)
{
	return o->type == CONF_STR || o->type == CONF_SECRET;
}

static const char *kind_name(enum conf_type type)
{
	switch (type) {
	case CONF_FLAG:
		return "true or false";
	case CONF_U64:
		return "a number";
	case CONF_SIZE:
	case CONF_SIZE_MIB:
	case CONF_SIZE_KIB:
		return "a size";
	case CONF_DURATION:
		return "a duration";
	case CONF_RATIO:
		return "a number from 0 to 1";
	default:
		return "a text";
	}
}

static int parse_ratio(const char *s, double *ret)
{
	uint64_t billionths; /* parse_size knows decimals: so a ratio is a size in billionths */
	size_t n = strlen(s);
	int r;

	if (!n || strspn(s, "0123456789.") != n)
		return -EINVAL;
	r = parse_size(s, 1000000000, &billionths);
	if (r < 0)
		return r;
	if (billionths > 1000000000)
		return -ERANGE;
	*ret = (double)billionths / 1e9;
	return 0;
}

static int set_text(char **at, const char *value)
{
	char *copy = strdup(value);

	if (!copy)
		return -ENOMEM;
	free(*at);
	*at = copy;
	return 0;
}

static int set(const struct conf_option *o, void *target, const char *value)
{
	void *at = member(o, target);

	switch (o->type) {
	case CONF_FLAG:
		return parse_bool(value, at);
	case CONF_STR:
	case CONF_SECRET:
		return set_text(at, value);
	case CONF_U64:
		return parse_u64(value, UINT64_MAX, at);
	case CONF_SIZE:
		return parse_size(value, 1, at);
	case CONF_SIZE_MIB:
		return parse_size(value, 1 << 20, at);
	case CONF_SIZE_KIB:
		return parse_size(value, 1 << 10, at);
	case CONF_DURATION:
		return parse_duration(value, at);
	case CONF_RATIO:
		return parse_ratio(value, at);
	}
	return -EINVAL;
}

/* where: "--", a file's line, or the environment: what the user will look for */
static int set_or_tell(const struct conf_option *o, void *target, const char *value,
		       const char *where, const char *name, struct str *err)
{
	int r = set(o, target, value);

	if (r == -ENOMEM)
		str_add(err, strerror(ENOMEM));
	else if (r == -ERANGE)
		str_addf(err, "%s%s: %s is too large; see --help", where, name, value);
	else if (r < 0 && o->type == CONF_SECRET)
		str_addf(err, "%s%s: not understood; see --help", where, name);
	else if (r < 0)
		str_addf(err, "%s%s: '%s' is not %s; see --help", where, name, value,
			 kind_name(o->type));
	return r == -ERANGE ? -EINVAL : r;
}

static const struct conf_option *find(const struct conf_table *t, const char *name, size_t len)
{
	for (size_t i = 0; i < t->n; i++)
		if (!strncmp(t->options[i].name, name, len) && !t->options[i].name[len])
			return &t->options[i];
	return NULL;
}

static const struct conf_option *find_letter(const struct conf_table *t, char letter)
{
	for (size_t i = 0; i < t->n; i++)
		if (letter && t->options[i].letter == letter)
			return &t->options[i];
	return NULL;
}

/* --- defaults, file, environment --- */

static void clear(const struct conf_table *t, void *target)
{
	for (size_t i = 0; i < t->n; i++) {
		void *at = member(&t->options[i], target);

		if (is_text(&t->options[i]))
			*(char **)at = NULL;
		else if (t->options[i].type == CONF_FLAG)
			*(bool *)at = false;
		else if (t->options[i].type == CONF_RATIO)
			*(double *)at = 0;
		else
			*(uint64_t *)at = 0;
	}
}

static int set_defaults(const struct conf_table *t, void *target)
{
	for (size_t i = 0; i < t->n; i++) {
		int r = t->options[i].dflt ? set(&t->options[i], target, t->options[i].dflt) : 0;

		assert(r == 0 || r == -ENOMEM); /* a table's own default is understood */
		if (r < 0)
			return r;
	}
	return 0;
}

/* the variable's name, in room unless it is the option's own */
static const char *variable(const struct conf_table *t, const struct conf_option *o, char *room,
			    size_t n)
{
	if (o->env || !t->env_prefix)
		return o->env;
	snprintf(room, n, "%s%s", t->env_prefix, o->name);
	for (char *c = room; *c; c++)
		*c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
	return room;
}

static const char *of_environment(const char *name)
{
	const char *v = name ? getenv(name) : NULL;

	return v && *v ? v : NULL;
}

static int set_environment(const struct conf_table *t, void *target, struct str *err)
{
	for (size_t i = 0; i < t->n; i++) {
		const struct conf_option *o = &t->options[i];
		char room[96];
		const char *name = variable(t, o, room, sizeof(room));
		const char *v = of_environment(name);
		int r = v ? set_or_tell(o, target, v, "$", name, err) : 0;

		if (r < 0)
			return r;
	}
	return 0;
}

static char *trim(char *s)
{
	size_t n;

	s += strspn(s, " \t");
	n = strlen(s);
	while (n && strchr(" \t\r\n", s[n - 1]))
		s[--n] = 0;
	return s;
}

/* shared: others can read the file */
static int set_line(const struct conf_table *t, void *target, char *line, const char *where,
		    bool shared, struct str *err)
{
	const struct conf_option *o;
	char *eq, *name;

	line = trim(line);
	if (!*line || *line == '#')
		return 0;
	eq = strchr(line, '=');
	if (!eq) {
		str_addf(err, "%sname = value expected", where);
		return -EINVAL;
	}
	*eq = 0;
	name = trim(line);
	o = find(t, name, strlen(name));
	if (!o) {
		str_addf(err, "%sunknown option '%s'; see --help", where, name);
		return -EINVAL;
	}
	if (o->type == CONF_SECRET && shared) {
		str_addf(err,
			 "%s%s does not belong in a file that others can read: chmod o=", where,
			 name);
		return -EINVAL;
	}
	return set_or_tell(o, target, trim(eq + 1), where, name, err);
}

static int set_file(const struct conf_table *t, void *target, const char *path, struct str *err)
{
	_cleanup_(freep) char *line = NULL;
	FILE *f = fopen(path, "re");
	size_t cap = 0;
	unsigned number = 0;
	struct stat st;
	int r = 0;

	if (!f || fstat(fileno(f), &st) < 0) {
		r = -errno;
		str_addf(err, "--config: %s: %s", path, strerror(-r));
		if (f)
			fclose(f);
		return r;
	}
	while (r == 0 && getline(&line, &cap, f) >= 0) {
		char where[300];

		snprintf(where, sizeof(where), "%.250s:%u: ", path, ++number);
		r = set_line(t, target, line, where, st.st_mode & S_IRWXO, err);
	}
	if (r == 0 && ferror(f)) {
		r = -EIO;
		str_addf(err, "--config: %s: cannot be read", path);
	}
	fclose(f);
	return r;
}

/* --- argv --- */

/* one option as it stands in argv */
struct word {
	const struct conf_option *option;
	const char *value; /* behind "=", else NULL */
	bool help;
};

static int unknown(const struct conf_table *t, const char *arg, struct str *err)
{
	size_t len = strcspn(arg, "=");
	const char *name = arg + strspn(arg, "-");
	const char *near = conf_nearest(t, name, len - (size_t)(name - arg));

	str_addf(err, "unknown option %.*s", (int)MIN(len, (size_t)64), arg);
	if (near)
		str_addf(err, " (did you mean --%s?)", near);
	str_add(err, "; see --help");
	return -EINVAL;
}

static int read_word(const struct conf_table *t, const char *arg, struct word *w, struct str *err)
{
	const char *eq = strchr(arg, '=');
	size_t len = eq ? (size_t)(eq - arg) : strlen(arg);

	*w = (struct word){.value = eq ? eq + 1 : NULL};
	if (arg[1] == '-')
		w->option = find(t, arg + 2, len - 2);
	else if (len == 2)
		w->option = find_letter(t, arg[1]);
	if (w->option)
		return 0;
	w->help = !strcmp(arg, "--help") || !strcmp(arg, "-h");
	return w->help ? 0 : unknown(t, arg, err);
}

static int refuse_secret(const struct conf_option *o, struct str *err)
{
	str_addf(err, "--%s is not taken from the command line, where everybody can read it; ",
		 o->name);
	if (o->env)
		str_addf(err, "use the environment variable %s", o->env);
	else
		str_add(err, "use the configuration file");
	str_add(err, "; see --help");
	return -EINVAL;
}

/* takes argv[*i], and its value, too, when that is the next word */
static int take_option(const struct conf_table *t, void *target, int argc, char **argv, int *i,
		       bool *ret_help, struct str *err)
{
	const struct conf_option *o;
	struct word w;
	int r = read_word(t, argv[*i], &w, err);

	if (r < 0)
		return r;
	if (w.help) {
		*ret_help = true;
		return 0;
	}
	o = w.option;
	assert(o);
	if (o->type == CONF_SECRET)
		return refuse_secret(o, err);
	if (!w.value && o->type == CONF_FLAG)
		w.value = "true";
	if (!w.value && *i + 1 == argc) {
		str_addf(err, "--%s needs a value; see --help", o->name);
		return -EINVAL;
	}
	if (!w.value)
		w.value = argv[++*i];
	return set_or_tell(o, target, w.value, "--", o->name, err);
}

/* options of argv go into target and to the front of argv, the other words behind them */
static int take_argv(const struct conf_table *t, void *target, int argc, char **argv,
		     int *ret_first, bool *ret_help, struct str *err)
{
	_cleanup_(freep) char **words = calloc((size_t)argc + 1, sizeof(*words));
	int n_words = 0, front = 1;
	bool ended = false;
	int r = words ? 0 : -ENOMEM;

	for (int i = 1; i < argc && r == 0 && !*ret_help; i++) {
		int from = i;

		if (ended || argv[i][0] != '-' || !argv[i][1]) {
			words[n_words++] = argv[i];
			continue;
		}
		ended = !strcmp(argv[i], "--");
		if (!ended)
			r = take_option(t, target, argc, argv, &i, ret_help, err);
		while (r == 0 && from <= i)
			argv[front++] = argv[from++];
	}
	if (r < 0 || *ret_help)
		return r;
	*ret_first = front;
	for (int i = 0; i < n_words; i++)
		argv[front++] = words[i];
	return 0;
}

static int check_count(const struct conf_table *t, size_t n, struct str *err)
{
	if (n >= t->min_args && n <= t->max_args)
		return 0;
	str_addf(err, "too %s arguments: usage: %s; see --help", n < t->min_args ? "few" : "many",
		 t->usage);
	return -EINVAL;
}

static int print_help(const struct conf_table *t)
{
	_cleanup_(str_fini) struct str out = STR_INIT;

	conf_help(t, &out);
	fputs(str_c(&out), stdout);
	fflush(stdout);
	return 1;
}

/* argv twice: the first time only to learn which file is meant */
static int parse(const struct conf_table *t, void *target, int argc, char **argv, int *ret_first,
		 struct str *err)
{
	const struct conf_option *file = find(t, "config", 6);
	_cleanup_(freep) char *path = NULL;
	bool help = false;
	int r = set_defaults(t, target);

	if (r == 0 && file) {
		r = set_environment(t, target, err);
		if (r == 0)
			r = take_argv(t, target, argc, argv, ret_first, &help, err);
		if (r < 0)
			return r;
		if (help)
			return print_help(t);
		path = TAKE_PTR(*(char **)member(file, target));
		conf_fini(t, target);
		r = set_defaults(t, target);
		if (r == 0 && !path && t->file && access(t->file, F_OK) == 0)
			r = set_text(&path, t->file);
		if (r == 0 && path && strcmp(path, "none") != 0)
			r = set_file(t, target, path, err);
	}
	if (r == 0)
		r = set_environment(t, target, err);
	if (r == 0)
		r = take_argv(t, target, argc, argv, ret_first, &help, err);
	if (r == 0 && help)
		return print_help(t);
	return r;
}

int conf_parse(const struct conf_table *t, void *target, int argc, char **argv, char ***args,
	       size_t *n_args, struct str *err)
{
	int first = argc;
	int r;

	clear(t, target);
	r = parse(t, target, argc, argv, &first, err);
	if (r == 0)
		r = check_count(t, (size_t)(argc - first), err);
	if (r == -ENOMEM && !err->len)
		str_add(err, strerror(ENOMEM));
	if (r)
		return r;
	*args = argv + first;
	*n_args = (size_t)(argc - first);
	return 0;
}

void conf_fini(const struct conf_table *t, void *target)
{
	for (size_t i = 0; i < t->n; i++) {
		char **at;

		if (!is_text(&t->options[i]))
			continue;
		at = member(&t->options[i], target);
		if (*at && t->options[i].type == CONF_SECRET)
			explicit_bzero(*at, strlen(*at));
		free(*at);
	}
	clear(t, target);
}

bool conf_same(const struct conf_table *t, size_t i, const void *a, const void *b)
{
	const struct conf_option *o = &t->options[i];
	const void *x = (const char *)a + o->offset, *y = (const char *)b + o->offset;
	const char *s, *u;

	if (o->type == CONF_FLAG)
		return *(const bool *)x == *(const bool *)y;
	if (o->type == CONF_RATIO)
		return memcmp(x, y, sizeof(double)) == 0;
	if (!is_text(o))
		return *(const uint64_t *)x == *(const uint64_t *)y;
	s = *(char *const *)x;
	u = *(char *const *)y;
	return s && u ? strcmp(s, u) == 0 : s == u;
}
