/* SPDX-License-Identifier: Apache-2.0 */
/* Texts about a mount and what the kernel says of it. Start and commands only; reads /proc and
 * /sys. */
#include "client/mount_text.h"

#include <fcntl.h>
#include <limits.h>

#include "common/parse.h"

const char *mount_bytes(uint64_t n, char ret[16])
{
	static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double v = (double)n;
	unsigned u = 0;

	while (v >= 1024 && u + 1 < ARRAY_LEN(unit)) {
		v /= 1024;
		u++;
	}
	(void)snprintf(ret, 16, u ? "%.1f %s" : "%.0f %s", v, unit[u]);
	return ret;
}

const char *mount_metric_help(const char *name)
{
	static const struct {
		const char *name, *help;
	} rows[] = {
#define METRIC(name, type, help) {name, help},
#include "client/metrics.def"
#undef METRIC
	};

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (strcmp(rows[i].name, name) == 0)
			return rows[i].help;
	}
	return "";
}

static void json_string(struct str *out, const char *s)
{
	str_add(out, "\"");
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			str_addf(out, "\\%c", c);
		else if (c < 0x20)
			str_addf(out, "\\u%04x", c);
		else
			str_addn(out, s, 1);
	}
	str_add(out, "\"");
}

static void json_member(struct str *out, const char *name, const char *value)
{
	str_addf(out, "%s\"%s\":", out->len > 1 ? "," : "", name);
	if (value)
		json_string(out, value);
	else
		str_add(out, "null");
}

char *mount_config_text(const struct mount_conf *conf, const struct setting *s)
{
	struct str out = STR_INIT;

	str_add(&out, "{");
	json_member(&out, "Version", STOKE_VERSION);
	json_member(&out, "MountPoint", conf->mount_point);
	str_add(&out, ",\"Format\":");
	if (setting_redacted(s, &out) < 0)
		str_add(&out, "null");
	str_add(&out, ",\"Mount\":{");
	conf_print_json(conf->table, conf, &out);
	str_add(&out, "}}");
	return str_take(&out);
}

char *mount_info_text(const struct mount_conf *conf, const struct setting *s, const char *meta_name)
{
	struct str out = STR_INIT;

	str_add(&out, "{");
	json_member(&out, "version", STOKE_VERSION);
	str_addf(&out, ",\"pid\":%d", (int)getpid());
	json_member(&out, "meta", meta_name);
	json_member(&out, "mount_point", conf->mount_point);
	json_member(&out, "volume", s->name);
	json_member(&out, "uuid", s->uuid);
	json_member(&out, "group", conf->cache_group);
	str_addf(&out, ",\"read_only\":%s}", conf->read_only ? "true" : "false");
	return str_take(&out);
}

bool mount_has_option(const char *options, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = options; p && *p; p += strcspn(p, ","), p += *p == ',') {
		if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == 0))
			return true;
	}
	return false;
}

int mount_parse_squash(const char *text, uint32_t *ret_uid, uint32_t *ret_gid)
{
	_cleanup_(freep) char *copy = strdup(text);
	char *colon = copy ? strchr(copy, ':') : NULL;
	uint64_t uid, gid;

	if (!colon)
		return copy ? -EINVAL : -ENOMEM;
	*colon = 0;
	if (parse_u64(copy, UINT32_MAX - 1, &uid) < 0 ||
	    parse_u64(colon + 1, UINT32_MAX - 1, &gid) < 0)
		return -EINVAL;
	*ret_uid = (uint32_t)uid;
	*ret_gid = (uint32_t)gid;
	return 0;
}

int mount_parse_atime(const char *text, enum atime_mode *ret)
{
	static const char *const names[] = {[ATIME_NONE] = "noatime",
					    [ATIME_RELATIVE] = "relatime",
					    [ATIME_STRICT] = "strictatime"};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		if (strcmp(text, names[i]) == 0) {
			*ret = (enum atime_mode)i;
			return 0;
		}
	}
	return -EINVAL;
}

int mount_parse_umask(const char *text, int *ret)
{
	size_t n = strlen(text);
	int mask = 0;

	if (n == 0 || n > 4 || strspn(text, "01234567") != n)
		return -EINVAL;
	for (; *text; text++)
		mask = mask * 8 + (*text - '0');
	if (mask > 0777)
		return -EINVAL;
	*ret = mask;
	return 0;
}

bool mount_checks(const struct mount_conf *conf)
{
	return conf->root_squash || conf->all_squash || conf->non_default_permission ||
	       (conf->options && mount_has_option(conf->options, "no_default_permissions"));
}

char *mount_fuse_options(const struct mount_conf *conf, const struct setting *s)
{
	const char *own = conf->options ? conf->options : "";
	struct str out = STR_INIT;

	str_addf(&out, "fsname=STOKE:%s,subtype=stoke,max_read=%u", s->name, 1u << 20);
	if (!mount_checks(conf) && !mount_has_option(own, "default_permissions"))
		str_add(&out, ",default_permissions");
	if (geteuid() == 0 && !mount_has_option(own, "allow_other") &&
	    !mount_has_option(own, "allow_root"))
		str_add(&out, ",allow_other");
	if (conf->read_only && !mount_has_option(own, "ro"))
		str_add(&out, ",ro");
	/* "no_default_permissions" is ours alone */
	for (const char *p = own; *p;) {
		size_t n = strcspn(p, ",");

		if (n > 0 && strncmp(p, "no_default_permissions", MAX(n, (size_t)22)) != 0) {
			str_add(&out, ",");
			str_addn(&out, p, n);
		}
		p += n + (p[n] == ',');
	}
	return str_take(&out);
}

/* --- what the kernel says --- */

/* mountinfo writes blanks and the like as \ooo */
static void unescape(char *s)
{
	char *to = s;

	while (*s) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] && s[3]) {
			*to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 4;
		} else {
			*to++ = *s++;
		}
	}
	*to = 0;
}

/* "36 35 98:0 /root /point options… - type source super" */
static bool parse_line(char *line, const char *path, struct mount_found *ret)
{
	unsigned major, minor;
	char point[4097], *rest;
	struct mount_found f = {0};

	if (sscanf(line, "%*d %*d %u:%u %*s %4096s", &major, &minor, point) != 3)
		return false;
	unescape(point);
	rest = strstr(line, " - ");
	if (strcmp(point, path) != 0 || !rest ||
	    sscanf(rest, " - %63s %255s", f.type, f.source) != 2)
		return false;
	unescape(f.source);
	f.major = major;
	f.minor = minor;
	*ret = f;
	return true;
}

/* where the parent of path is, and path's last part in it: a link to it is not followed */
static int resolve_parent(char *path, char *ret)
{
	char *slash, *name;
	size_t n;

	for (n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
		path[n - 1] = 0;
	slash = strrchr(path, '/');
	name = slash ? slash + 1 : path;
	if (slash)
		*slash = 0;
	if (!realpath(!slash ? "." : slash == path ? "/" : path, ret))
		return -errno;
	n = strlen(ret);
	if (n + 1 + strlen(name) >= PATH_MAX)
		return -ENAMETOOLONG;
	snprintf(ret + n, PATH_MAX - n, "%s%s", n > 1 ? "/" : "", name);
	return 0;
}

int mount_resolve(const char *path, char *ret)
{
	char *copy;
	int r;

	if (realpath(path, ret))
		return 0;
	if (errno != ENOTCONN)
		return -errno;
	copy = strdup(path);
	r = copy ? resolve_parent(copy, ret) : -ENOMEM;
	free(copy);
	return r;
}

bool mount_find(const char *path, struct mount_found *ret)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	_cleanup_(freep) char *line = NULL;
	size_t cap = 0;
	bool found = false;

	if (!f)
		return false;
	/* the last line wins: it is mounted over the others */
	while (getline(&line, &cap, f) > 0)
		found = parse_line(line, path, ret) || found;
	(void)fclose(f);
	return found;
}

void mount_read_ahead(const char *path, unsigned kib)
{
	struct mount_found at;
	char name[96], text[16];
	int fd, n;

	if (!mount_find(path, &at))
		return;
	snprintf(name, sizeof(name), "/sys/class/bdi/%u:%u/read_ahead_kb", at.major, at.minor);
	fd = open(name, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	n = snprintf(text, sizeof(text), "%u\n", kib);
	if (write(fd, text, (size_t)n) < 0)
		errno = 0;
	(void)close(fd);
}
