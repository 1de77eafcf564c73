/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the metadata engines share: a real redis-server, a fresh volume in it, engines
 * over it and in memory. */
#ifndef STOKE_TESTS_UNIT_META_VOLUME_H
#define STOKE_TESTS_UNIT_META_VOLUME_H

#include "tests/unit/check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "client/meta/meta_redis.h"
#include "common/clock.h"
#include "tests/unit/meta/redis_server.h"

enum { MB = 1 << 20 };

static _unused_ struct redis_server server;
static _unused_ struct redis *raw;
static _unused_ bool have_server;

static _unused_ const struct meta_ctx root_ctx = {.uid = 0}, user_ctx = {.uid = 1000, .gid = 1000},
				      other_ctx = {.uid = 1001, .gid = 1001};

/* deleted slices, added up: the order does not matter */
struct deleted {
	uint64_t n, sum;
};

static _unused_ int count_deleted(void *arg, uint64_t slice, uint32_t size)
{
	struct deleted *d = arg;

	__atomic_add_fetch(&d->n, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&d->sum, slice * 1000003 + size, __ATOMIC_RELAXED);
	return 0;
}

static _unused_ int start_server(void **state)
{
	struct str err = STR_INIT;

	(void)state;
	have_server = redis_server_start(&server) == 0;
	if (have_server)
		assert_int_equal(redis_new(server.url, NULL, &raw, &err), 0);
	str_fini(&err);
	return 0;
}

static _unused_ int stop_server(void **state)
{
	(void)state;
	if (have_server) {
		redis_free(raw);
		redis_server_stop(&server);
	}
	return 0;
}

static _unused_ uint64_t soon(void)
{
	return clock_us() + 5000000;
}

static _unused_ int64_t raw_int(const char *cmd)
{
	struct redis_reply *r = NULL;
	int64_t v;

	assert_int_equal(redis_once(raw, soon(), &r, cmd), 0);
	v = redis_reply_int(r);
	redis_reply_free(r);
	return v;
}

static _unused_ void raw_run(const char *cmd)
{
	(void)raw_int(cmd);
}

/* scripts run since CONFIG RESETSTAT: how many, and how long one took on average. One that took
 * long tells nothing where other programs have the processor. */
static _unused_ uint64_t raw_scripts(uint64_t *ret_mean_us)
{
	static const char head[] = "cmdstat_evalsha:calls=";
	unsigned long long calls = 0, us = 0;
	struct redis_reply *r = NULL;
	const char *at;
	size_t len;

	assert_int_equal(redis_once(raw, soon(), &r, "INFO commandstats"), 0);
	at = redis_reply_str(r, &len);
	assert_non_null(at);
	at = strstr(at, head);
	assert_non_null(at);
	assert_int_equal(sscanf(at + sizeof(head) - 1, "%llu,usec=%llu", &calls, &us), 2);
	redis_reply_free(r);
	assert_true(calls > 0);
	*ret_mean_us = us / calls;
	return calls;
}

static _unused_ struct meta_conf test_conf(void)
{
	return (struct meta_conf){.timeout_us = 5000000,
				  .heartbeat_us = 12000000,
				  .skip_dir_mtime_us = 0,
				  .mount_point = "/mnt/test",
				  .max_deletes = 4};
}

static _unused_ void fresh_volume(unsigned trash_days)
{
	struct format_request f = {.name = "test",
				   .storage = "file",
				   .bucket = "/nowhere",
				   .block_size = 4 * MB,
				   .trash_days = trash_days};
	struct str err = STR_INIT;
	struct setting *s = NULL;
	bool created;

	raw_run("FLUSHDB");
	assert_int_equal(meta_format(raw, soon(), &f, &s, &created, &err), 0);
	assert_true(created);
	setting_free(s);
	str_fini(&err);
}

/* a boolean of the setting, as juicefs config would turn it on */
static _unused_ void volume_enable(const char *field)
{
	const char *argv[] = {"SET", "setting", NULL};
	size_t n, len[3] = {3, 7};
	struct redis_reply *r = NULL, *set = NULL;
	struct str text = STR_INIT;
	struct redis_conn *c;
	const char *p, *at;
	char key[64];

	assert_int_equal(redis_once(raw, soon(), &r, "GET setting"), 0);
	p = redis_reply_str(r, &n);
	snprintf(key, sizeof(key), "\"%s\": false", field);
	at = strstr(p, key);
	if (at) {
		str_addn(&text, p, (size_t)(at - p));
		str_addf(&text, "\"%s\": true%s", field, at + strlen(key));
	} else {
		str_addf(&text, "{\"%s\": true,%s", field, p + 1);
	}
	argv[2] = str_c(&text);
	len[2] = text.len;
	assert_int_equal(redis_acquire(raw, soon(), &c), 0);
	assert_int_equal(redis_cmdv(c, soon(), &set, 3, argv, len), 0);
	redis_release(c);
	redis_reply_free(set);
	redis_reply_free(r);
	str_fini(&text);
}

static _unused_ struct meta *open_redis_conf(const struct meta_conf *conf, struct deleted *d)
{
	struct str err = STR_INIT;
	struct meta *m = NULL;
	int r = meta_redis_new(server.url, conf, &m, &err);

	if (r)
		fail_msg("meta_redis_new: %d %s", r, str_c(&err));
	meta_set_delete(m, d ? count_deleted : NULL, d);
	assert_int_equal(meta_start(m, &err), 0);
	str_fini(&err);
	return m;
}

static _unused_ struct meta *open_redis(struct deleted *d)
{
	struct meta_conf conf = test_conf();

	return open_redis_conf(&conf, d);
}

static _unused_ struct meta *open_mem(unsigned trash_days, struct deleted *d)
{
	struct meta_conf conf = test_conf();
	struct str err = STR_INIT;
	struct meta *m = NULL;

	assert_int_equal(meta_mem_new(&conf, 4 * MB, trash_days, &m), 0);
	meta_set_delete(m, count_deleted, d);
	assert_int_equal(meta_start(m, &err), 0);
	return m;
}

static _unused_ void close_meta(struct meta *m)
{
	meta_stop(m);
	meta_free(m);
}

static _unused_ uint64_t make_mode(struct meta *m, const struct meta_ctx *c, uint64_t dir,
				   const char *name, uint8_t type, uint32_t mode)
{
	uint64_t inode = 0;
	struct attr a;

	assert_int_equal(meta_mknod(m, c, dir, name, type, mode, 0, 0, "t", &inode, &a), 0);
	return inode;
}

/* a command on a key that ends with an inode's number, or on a member */
static _unused_ int64_t raw_of(const char *words, uint64_t inode)
{
	char cmd[128];

	snprintf(cmd, sizeof(cmd), "%s%llu", words, (unsigned long long)inode);
	return raw_int(cmd);
}

static _unused_ struct attr attr_of(struct meta *m, uint64_t inode)
{
	struct attr a;

	assert_int_equal(meta_getattr(m, inode, &a), 0);
	return a;
}

/* user 1000 gets perm; everybody else as 0640 */
static _unused_ struct acl rule_for(struct acl_entry *e, uint16_t perm)
{
	*e = (struct acl_entry){1000, perm};
	return (struct acl){
		.owner = 6, .group = 4, .mask = 7, .other = 0, .n_users = 1, .users = e};
}

static _unused_ void acl_volume(void)
{
	fresh_volume(1);
	volume_enable("EnableACL");
}

#define NEED_SERVER()                                                                              \
	do {                                                                                       \
		if (!have_server)                                                                  \
			skip();                                                                    \
	} while (0)

#endif
