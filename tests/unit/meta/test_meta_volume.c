/* SPDX-License-Identifier: Apache-2.0 */
/* A volume that is not what it was any more, under a live mount: emptied, formatted again, loaded
 * again, gone back. What was read must be known to be of the old one, and nothing may be written
 * into the new one that was meant for the old one. */
#include <pthread.h>

#include "tests/unit/meta/volume.h"

static int told;
static void on_changed(void *arg, bool gone)
{
	(void)arg;
	__atomic_store_n(&told, gone ? 2 : 1, __ATOMIC_RELEASE);
}

/* no heartbeat while a test runs: operations find out by themselves */
static struct meta *open_quiet(bool read_only)
{
	struct meta_conf conf = test_conf();
	struct meta *m;

	conf.heartbeat_us = UINT64_C(600) * 1000000;
	conf.read_only = read_only;
	m = open_redis_conf(&conf, NULL);
	told = 0;
	meta_set_changed(m, on_changed, NULL);
	return m;
}

/* a file of one slice; *ret_slice: its number */
static uint64_t make_file(struct meta *m, const char *name, uint64_t *ret_slice)
{
	struct slice s = {.size = 10, .len = 10};
	struct hash128 volume, now = meta_volume_id(m);
	uint64_t inode;
	struct attr a;

	assert_int_equal(meta_mknod(m, &root_ctx, 1, name, INODE_FILE, 0644, 0, 0, "", &inode, &a),
			 0);
	assert_int_equal(meta_new_slice(m, &s.id, &volume), 0);
	assert_memory_equal(volume.b, now.b, 16);
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), 0);
	*ret_slice = s.id;
	return inode;
}

static void beat_now(struct meta *m)
{
	struct mark k;

	assert_int_equal(mark_take(redis_engine(m), &k), 0);
	assert_int_equal(generation_check(redis_engine(m), &k, soon()), 0);
}

static void everything_is_eio(struct meta *m, uint64_t inode)
{
	struct meta_statfs st;
	struct hash128 volume;
	struct meta_dir *d;
	struct chunk_list l;
	struct attr a;
	char *p;
	size_t n;
	uint64_t x;

	assert_int_equal(meta_open(m, &root_ctx, inode, O_RDONLY, &l), -EIO);
	assert_int_equal(meta_read(m, inode, 0, 1, &l), -EIO);
	assert_int_equal(meta_lookup(m, &root_ctx, 1, "f", &x, &a), -EIO);
	assert_int_equal(meta_getattr(m, inode, &a), -EIO);
	assert_int_equal(meta_getattr(m, 1, &a), -EIO);
	assert_int_equal(meta_readdir(m, 1, true, &d), -EIO);
	assert_int_equal(meta_readlink(m, inode, &p), -EIO);
	assert_int_equal(meta_getxattr(m, inode, "user.a", &p, &n), -EIO);
	assert_int_equal(meta_listxattr(m, inode, &p, &n), -EIO);
	assert_int_equal(meta_statfs(m, 0, &st), -EIO);
	if (!m->conf.read_only) {
		assert_int_equal(meta_new_slice(m, &x, &volume), -EIO);
		assert_int_equal(meta_mknod(m, &root_ctx, 1, "n", INODE_FILE, 0, 0, 0, "", &x, &a),
				 -EIO);
		assert_int_equal(meta_unlink(m, &root_ctx, 1, "f"), -EIO);
	}
	assert_int_equal(told, 2);
}

/* the first call after the volume went finds out, whichever it is */
enum first {
	FIRST_OPEN,
	FIRST_READ,
	FIRST_LOOKUP,
	FIRST_GETATTR,
	FIRST_READDIR,
	FIRST_NAMES,
	FIRST_READLINK,
	FIRST_MKNOD,
	FIRST_COUNT
};

static int first_call(struct meta *m, enum first f, uint64_t inode)
{
	struct chunk_list l = {0};
	struct meta_dir *d = NULL;
	struct attr a;
	uint64_t x;
	char *p;
	int r;

	switch (f) {
	case FIRST_OPEN:
		r = meta_open(m, &root_ctx, inode, O_RDONLY, &l);
		break;
	case FIRST_READ:
		r = meta_read(m, inode, 0, 1, &l);
		break;
	case FIRST_LOOKUP:
		r = meta_lookup(m, &root_ctx, 1, "f", &x, &a);
		break;
	case FIRST_GETATTR:
		r = meta_getattr(m, inode, &a);
		break;
	case FIRST_READDIR:
	case FIRST_NAMES:
		r = meta_readdir(m, 1, f == FIRST_READDIR, &d);
		break;
	case FIRST_READLINK:
		r = meta_readlink(m, inode, &p);
		r = r == -ENOENT ? 0 : r; /* it is a file */
		break;
	default:
		r = m->conf.read_only
			    ? meta_getattr(m, inode, &a)
			    : meta_mknod(m, &root_ctx, 1, "g", INODE_FILE, 0, 0, 0, "", &x, &a);
	}
	chunk_list_fini(&l);
	meta_dir_free(d);
	return r;
}

static int64_t scans(void)
{
	return raw_int("EVAL return\tselect(2,string.gsub(redis.call('INFO','commandstats'),'stat_"
		       "hscan','')) 0");
}

static void references_of_another_volume_delete_no_object(void **state)
{
	struct deleted d = {0};
	struct meta *m, *other;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis(&d);
	fresh_volume(0);
	other = open_quiet(false);
	raw_run("HSET sliceRef k6_20 -1");
	raw_run("CONFIG RESETSTAT");
	slices_clean_later(redis_engine(m));
	for (int i = 0; i < 1000 && !scans(); i++)
		usleep(5000);
	assert_int_equal(scans(), 1);
	close_meta(m); /* ends what was begun */
	assert_int_equal(d.n, 0);
	assert_int_equal(raw_int("HLEN sliceRef"), 1);
	close_meta(other);
}

static void a_volume_made_anew_is_not_read_by_an_old_mount(void **state)
{
	(void)state;
	NEED_SERVER();
	for (int i = 0; i < 2 * FIRST_COUNT; i++) {
		bool read_only = i % 2;
		struct meta *m, *other;
		uint64_t inode, slice;

		fresh_volume(0);
		other = open_quiet(false);
		inode = make_file(other, "f", &slice);
		m = open_quiet(read_only);
		assert_int_equal(first_call(m, i / 2, inode), 0);
		fresh_volume(0); /* as another one, with the same inode, of the same slice */
		close_meta(other);
		other = open_quiet(false);
		assert_int_equal(make_file(other, "f", &slice), inode);
		told = 0;
		assert_int_equal(first_call(m, i / 2, inode), -EIO);
		everything_is_eio(m, inode);
		close_meta(m);
		assert_int_equal(raw_int("HLEN sessionInfos"), 1); /* the other's */
		assert_int_equal(raw_int("HLEN d1"), 1);
		close_meta(other);
	}
}

static void an_emptied_database_stays_empty(void **state)
{
	for (int i = 0; i < FIRST_COUNT; i++) {
		uint64_t inode, slice;
		struct meta *m;

		(void)state;
		NEED_SERVER();
		fresh_volume(1);
		m = open_quiet(false);
		inode = make_file(m, "f", &slice);
		raw_run("FLUSHDB");
		if (i == FIRST_OPEN) /* a batch of numbers, of each kind */
			redis_engine(m)->slices.next = redis_engine(m)->slices.end;
		if (i == FIRST_READ)
			redis_engine(m)->inodes.next = redis_engine(m)->inodes.end;
		assert_int_equal(first_call(m, i, inode), -EIO);
		everything_is_eio(m, inode);
		close_meta(m);
		assert_int_equal(raw_int("DBSIZE"), 0);
	}
}

/* the counters are asked first, too */
static void no_number_is_taken_in_an_emptied_database(void **state)
{
	struct hash128 volume;
	struct meta *m;
	struct attr a;
	uint64_t x;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_quiet(false);
	raw_run("FLUSHDB");
	assert_int_equal(meta_new_slice(m, &x, &volume), -EIO);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "f", INODE_FILE, 0, 0, 0, "", &x, &a), -EIO);
	close_meta(m);
	assert_int_equal(raw_int("DBSIZE"), 0);
}

/* the private keys are not in a dump, and numbers come again */
static void lists_of_a_loaded_volume_belong_to_another_volume_id(void **state)
{
	for (int read_only = 0; read_only < 2; read_only++) {
		struct meta *m, *other;
		struct hash128 before, after;
		struct chunk_list l;
		uint64_t inode, slice;

		(void)state;
		NEED_SERVER();
		fresh_volume(0);
		other = open_quiet(false);
		inode = make_file(other, "f", &slice);
		m = open_quiet(read_only);
		before = meta_volume_id(m);
		assert_int_equal(meta_open(m, &root_ctx, inode, O_RDONLY, &l), 0);
		assert_int_equal(l.n, 1);
		assert_memory_equal(l.volume.b, before.b, 16);
		chunk_list_fini(&l);
		raw_run("DEL _gen _ops");
		raw_run("SET nextchunk 1");
		assert_int_equal(meta_read(m, inode, 0, 1, &l), 0);
		after = meta_volume_id(m);
		assert_memory_equal(l.volume.b, after.b, 16);
		assert_memory_not_equal(after.b, before.b, 16);
		assert_int_equal(told, 1);
		assert_int_equal(meta_has_generation(m), !read_only);
		chunk_list_fini(&l);
		if (!read_only)
			assert_int_equal(raw_int("GET nextchunk"), SLICE_BATCH);
		/* a mount that can write gives the volume a generation, and all have that */
		beat_now(other);
		assert_int_equal(meta_open(m, &root_ctx, inode, O_RDONLY, &l), 0);
		before = after;
		after = meta_volume_id(other);
		assert_memory_equal(l.volume.b, after.b, 16);
		if (read_only)
			assert_memory_not_equal(after.b, before.b, 16);
		assert_true(meta_has_generation(m));
		chunk_list_fini(&l);
		close_meta(m);
		close_meta(other);
	}
}

static void lists_of_a_database_that_went_back_belong_to_another_volume_id(void **state)
{
	struct hash128 before, after;
	struct chunk_list l;
	uint64_t inode, slice;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_quiet(false);
	inode = make_file(m, "f", &slice);
	before = meta_volume_id(m);
	raw_run("SET nextchunk 7"); /* as a stale replica has it, with `_gen` */
	assert_int_equal(meta_open(m, &root_ctx, inode, O_RDONLY, &l), 0);
	after = meta_volume_id(m);
	assert_memory_not_equal(after.b, before.b, 16);
	assert_memory_equal(l.volume.b, after.b, 16);
	assert_int_equal(told, 1);
	chunk_list_fini(&l);
	close_meta(m);
}

static void a_number_reserved_before_the_database_went_back_is_refused(void **state)
{
	struct slice s = {.size = 10, .len = 10};
	struct hash128 volume, now;
	uint64_t inode, next, old;
	struct meta *m;
	struct attr a;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_quiet(false);
	inode = make_file(m, "f", &old);
	assert_int_equal(meta_new_slice(m, &s.id, &volume), 0);
	/* back; another client takes the same numbers; the heartbeat sees that some are missing */
	raw_run("SET nextchunk 4095");
	beat_now(m);
	assert_int_equal(told, 1);
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), -ESTALE);
	assert_int_equal(raw_int("LLEN c2_0"), 1);
	/* a new number is above all old ones, and of the volume as it is now */
	old = s.id;
	assert_int_equal(meta_new_slice(m, &s.id, &volume), 0);
	now = meta_volume_id(m);
	assert_true(s.id > 4096 && s.id > old);
	assert_memory_equal(volume.b, now.b, 16);
	assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), 0);
	assert_int_equal(meta_new_slice(m, &next, &volume), 0);
	assert_int_equal(next, s.id + 1);
	close_meta(m);
}

/* a record that names a number which nobody handed out says nothing about the database's age */
static void one_damaged_record_does_not_move_the_volume(void **state)
{
	struct slice s = {.id = UINT64_C(1) << 61, .size = 10, .len = 10};
	struct hash128 before, after;
	uint8_t record[SLICE_LEN];
	struct redis_reply *r = NULL;
	struct chunk_list l;
	uint64_t inode, slice;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_quiet(false);
	inode = make_file(m, "f", &slice);
	before = meta_volume_id(m);
	slice_encode(&s, record);
	assert_int_equal(redis_once(raw, soon(), &r, "RPUSH c2_0 %b", record, sizeof(record)), 0);
	redis_reply_free(r);
	assert_int_equal(meta_read(m, inode, 0, 1, &l), 0);
	assert_int_equal(l.n, 2);
	chunk_list_fini(&l);
	beat_now(m);
	assert_int_equal(meta_read(m, inode, 0, 1, &l), 0);
	chunk_list_fini(&l);
	after = meta_volume_id(m);
	assert_memory_equal(after.b, before.b, 16);
	assert_int_equal(raw_int("GET nextchunk"), SLICE_BATCH);
	assert_int_equal(told, 0);
	close_meta(m);
}

/* what others take counts, too: a reader knows when the database went behind it */
static void numbers_that_others_took_are_known_from_reading(void **state)
{
	struct hash128 before, after;
	struct chunk_list l;
	uint64_t inode, slice;
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_quiet(false);
	inode = make_file(m, "f", &slice);
	raw_run("SET nextchunk 100000");
	assert_int_equal(meta_read(m, inode, 0, 1, &l), 0);
	chunk_list_fini(&l);
	before = meta_volume_id(m);
	raw_run("SET nextchunk 50000");
	assert_int_equal(meta_read(m, inode, 0, 1, &l), 0);
	chunk_list_fini(&l);
	after = meta_volume_id(m);
	assert_memory_not_equal(after.b, before.b, 16);
	assert_int_equal(raw_int("GET nextchunk"), 100000);
	close_meta(m);
}

static void inode_numbers_that_came_twice_make_no_second_file(void **state)
{
	struct meta *m;
	struct attr a;
	uint64_t inode, other;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_quiet(false);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "f", INODE_FILE, 0644, 0, 0, "", &inode, &a),
			 0);
	raw_run("COPY i2 i3"); /* another client was handed out the same batch */
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "g", INODE_FILE, 0600, 0, 0, "", &other, &a),
			 0);
	assert_true(other > INODE_BATCH);
	assert_int_equal(meta_getattr(m, 3, &a), 0);
	assert_int_equal(a.mode, 0644);
	close_meta(m);
}

static void *go_on_later(void *arg)
{
	(void)arg;
	usleep(900000);
	kill(server.pid, SIGCONT);
	return NULL;
}

static void data_waits_longer_than_metadata(void **state)
{
	struct slice s = {.size = 10, .len = 10};
	struct meta_conf conf = test_conf();
	struct hash128 volume;
	struct chunk_list l;
	uint64_t inode;
	struct meta *m;
	struct attr a;
	pthread_t t;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.timeout_us = 100000;
	conf.data_timeout_us = 20000000;
	conf.heartbeat_us = UINT64_C(600) * 1000000;
	m = open_redis_conf(&conf, NULL);
	assert_int_equal(meta_mknod(m, &root_ctx, 1, "f", INODE_FILE, 0644, 0, 0, "", &inode, &a),
			 0);
	for (int i = 0; i < 3; i++) {
		kill(server.pid, SIGSTOP);
		assert_int_equal(meta_getattr(m, inode, &a), -EIO);
		assert_int_equal(pthread_create(&t, NULL, go_on_later, NULL), 0);
		if (i == 0)
			assert_int_equal(meta_new_slice(m, &s.id, &volume), 0);
		else if (i == 1)
			assert_int_equal(meta_write(m, inode, 0, &s, time_of(1, 1), &a), 0);
		else
			assert_int_equal(meta_read(m, inode, 0, 1, &l), 0);
		pthread_join(t, NULL);
	}
	assert_int_equal(l.n, 1);
	chunk_list_fini(&l);
	close_meta(m);
}

static void data_waits_five_minutes_or_as_long_as_metadata(void **state)
{
	struct meta_conf conf = test_conf();
	struct meta *m;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	m = open_redis_conf(&conf, NULL);
	assert_int_equal(m->conf.data_timeout_us, UINT64_C(300) * 1000000);
	close_meta(m);
	conf.timeout_us = UINT64_C(400) * 1000000;
	m = open_redis_conf(&conf, NULL);
	assert_int_equal(m->conf.data_timeout_us, conf.timeout_us);
	close_meta(m);
}

/* so many operations wait for Redis that there is no room for one more */
static void an_operation_that_finds_no_room_ends_in_time(void **state)
{
	struct meta_conf conf = test_conf();
	uint64_t begin, f;
	struct meta_redis *mr;
	struct meta *m;
	struct attr a;

	(void)state;
	NEED_SERVER();
	fresh_volume(0);
	conf.timeout_us = 300000;
	m = open_redis_conf(&conf, NULL);
	mr = redis_engine(m);
	mtx_lock(&m->lock);
	while (mr->slots) { /* a heartbeat's */
		mtx_unlock(&m->lock);
		usleep(1000);
		mtx_lock(&m->lock);
	}
	mr->slots = UINT64_MAX;
	mtx_unlock(&m->lock);
	begin = clock_us();
	assert_int_equal(
		meta_mknod(m, &root_ctx, INODE_ROOT, "f", INODE_FILE, 0644, 0, 0, "t", &f, &a),
		-EIO);
	assert_in_range(clock_us() - begin, 250000, 2000000);
	mtx_lock(&m->lock);
	assert_true(mr->slots == UINT64_MAX);
	mr->slots = 0;
	mtx_unlock(&m->lock);
	assert_int_equal(
		meta_mknod(m, &root_ctx, INODE_ROOT, "f", INODE_FILE, 0644, 0, 0, "t", &f, &a), 0);
	close_meta(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_volume_made_anew_is_not_read_by_an_old_mount),
		cmocka_unit_test(an_emptied_database_stays_empty),
		cmocka_unit_test(references_of_another_volume_delete_no_object),
		cmocka_unit_test(no_number_is_taken_in_an_emptied_database),
		cmocka_unit_test(lists_of_a_loaded_volume_belong_to_another_volume_id),
		cmocka_unit_test(lists_of_a_database_that_went_back_belong_to_another_volume_id),
		cmocka_unit_test(a_number_reserved_before_the_database_went_back_is_refused),
		cmocka_unit_test(one_damaged_record_does_not_move_the_volume),
		cmocka_unit_test(numbers_that_others_took_are_known_from_reading),
		cmocka_unit_test(inode_numbers_that_came_twice_make_no_second_file),
		cmocka_unit_test(data_waits_longer_than_metadata),
		cmocka_unit_test(data_waits_five_minutes_or_as_long_as_metadata),
		cmocka_unit_test(an_operation_that_finds_no_room_ends_in_time),
	};

	return cmocka_run_group_tests(tests, start_server, stop_server);
}
