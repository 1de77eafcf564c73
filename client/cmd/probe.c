/* SPDX-License-Identifier: Apache-2.0 */
/* An object store is tried out before anything is written to Redis. No state; blocks. */
#include "client/cmd/probe.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/object/crypt.h"

enum { TIMEOUT_US = 30000000, PROBE_LEN = 100, KEY_MAX = 256, KEY_FILE_MAX = 64 << 10 };

int probe_run(struct object_store *s, struct object_req *req, struct str *err)
{
	int r;

	req->deadline_us = clock_us() + TIMEOUT_US;
	r = object_run(s, req);
	if (r < 0 && err)
		str_addf(err, "%s", req->reason[0] ? req->reason : strerror(-r));
	return r;
}

int probe_put(struct object_store *s, const char *key, const struct crypt_block *crypt,
	      const void *data, size_t n, struct str *err)
{
	const struct coding c = {CODEC_NONE, crypt};
	size_t cap = coding_bound(c, n);
	_cleanup_(freep) unsigned char *buf = malloc(cap);
	struct object_req req = {.op = OBJECT_PUT, .key = key, .buf = buf};
	ssize_t len = buf ? coding_encode(c, data, n, buf, cap) : -ENOMEM;

	if (len < 0) {
		str_addf(err, "%s: cannot encrypt: %s", key, strerror((int)-len));
		return (int)len;
	}
	req.cap = (size_t)len;
	return probe_run(s, &req, err);
}

static int get_back(struct object_store *s, const char *key, const struct crypt_block *crypt,
		    const unsigned char *want, struct str *err)
{
	const struct coding c = {CODEC_NONE, crypt};
	size_t cap = coding_bound(c, PROBE_LEN);
	_cleanup_(freep) unsigned char *buf = malloc(cap);
	unsigned char got[PROBE_LEN];
	struct object_req req = {.op = OBJECT_GET, .key = key, .buf = buf, .cap = cap};
	int r = buf ? probe_run(s, &req, err) : -ENOMEM;

	if (r)
		return r;
	if (coding_decode(c, buf, req.got, got, sizeof(got)) == 0 &&
	    memcmp(want, got, sizeof(got)) == 0)
		return 0;
	str_addf(err, "%s: read back other bytes than were written", key);
	return -EIO;
}

int probe_store(struct object_store *s, const char *name, const struct crypt_block *crypt,
		struct str *err)
{
	unsigned char want[PROBE_LEN];
	char key[KEY_MAX], uuid[37];
	struct object_req create = {.op = OBJECT_CREATE_BUCKET, .key = ""};
	struct object_req del = {.op = OBJECT_DELETE, .key = key};
	int r = probe_run(s, &create, NULL);

	/* who may not create buckets may still use one: the write below tells */
	if (r < 0 && r != -EEXIST && r != -EACCES && create.reason[0]) {
		str_addf(err, "%s", create.reason);
		return r;
	}
	crypt_uuid(uuid);
	crypt_random(want, sizeof(want));
	(void)snprintf(key, sizeof(key), "%s/testing/%.10s", name, uuid);
	r = probe_put(s, key, crypt, want, sizeof(want), err);
	if (r < 0)
		return r;
	r = get_back(s, key, crypt, want, err);
	/* the probe goes away in any case; the first error is the one to tell */
	return probe_run(s, &del, r ? NULL : err) < 0 && r == 0 ? -EIO : r;
}

int probe_empty(struct object_store *s, const char *name, struct str *err)
{
	char prefix[KEY_MAX], testing[KEY_MAX];
	struct object_req list = {.op = OBJECT_LIST, .key = prefix};
	int r;

	(void)snprintf(prefix, sizeof(prefix), "%s/", name);
	(void)snprintf(testing, sizeof(testing), "%s/testing/", name);
	r = probe_run(s, &list, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < list.n_list; i++) {
		const char *key = list.list[i].key;

		if (strncmp(key, testing, strlen(testing)) != 0 && strcmp(key, prefix) != 0) {
			str_addf(err,
				 "the bucket already holds %s: choose another NAME, or remove what "
				 "lies below %s",
				 key, prefix);
			r = -ENOTEMPTY;
			break;
		}
	}
	object_list_free(&list);
	return r;
}

/* the directories of shards need not be there */
static int template_dir(char **bucket, struct str *err)
{
	_cleanup_(freep) char *cwd = getcwd(NULL, 0);
	const char *slash = (*bucket)[strlen(*bucket) - 1] == '/' ? "" : "/";
	char *full = NULL;

	if (!cwd || asprintf(&full, "%s%s%s%s", **bucket == '/' ? "" : cwd,
			     **bucket == '/' ? "" : "/", *bucket, slash) < 0) {
		str_addf(err, "%s: %s", *bucket, strerror(errno));
		return -EINVAL;
	}
	free(*bucket);
	*bucket = full;
	return 0;
}

int probe_dir(char **bucket, bool template, struct str *err)
{
	_cleanup_(freep) char *real = NULL;
	char *full = NULL;

	if (template && **bucket)
		return template_dir(bucket, err);
	if (mkdir(*bucket, 0755) < 0 && errno != EEXIST) {
		int r = -errno;

		str_addf(err, "%s: %s", *bucket, strerror(-r));
		return r;
	}
	real = realpath(*bucket, NULL);
	if (!real || asprintf(&full, "%s/", real) < 0) {
		str_addf(err, "%s: %s", *bucket, strerror(errno));
		return -EINVAL;
	}
	free(*bucket);
	*bucket = full;
	return 0;
}

int probe_key_file(const char *path, char **ret, struct str *err)
{
	_cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *text = calloc(1, KEY_FILE_MAX + 1);
	ssize_t n = fd >= 0 && text ? read(fd, text, KEY_FILE_MAX + 1) : -1;

	if (n >= 0 && n <= KEY_FILE_MAX && !memchr(text, 0, (size_t)n)) {
		*ret = text;
		return 0;
	}
	str_addf(err, "%s: %s", path, n < 0 ? strerror(errno) : "is not the text of a key");
	free(text);
	return -EINVAL;
}

static bool tag_part_ok(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)s[i]) && !strchr(" +-=._:/@", s[i]))
			return false;
	return true;
}

bool probe_tag_ok(const char *tag)
{
	const char *eq = strchr(tag, '=');

	return eq && eq > tag && eq - tag <= 128 && strlen(eq + 1) <= 256 && !strchr(eq + 1, '=') &&
	       tag_part_ok(tag, (size_t)(eq - tag)) && tag_part_ok(eq + 1, strlen(eq + 1));
}
