/* SPDX-License-Identifier: Apache-2.0 */
/* A mounted volume from the metadata engine up to FUSE, in the order of mount_start; taken apart
 * from the top down in mount_stop, which also undoes a start that failed half-way (every member is
 * empty until its step was done). Main thread.
 *
 * Threads: loops (peers, object store; one for timers), meta (FUSE's metadata), data (slice lists,
 * commits: never behind a stuck look-up), local (what takes time but asks nobody), delete (objects
 * of slices that failed), codec, disk (descriptors passed by the daemon), fuse (receive), and those
 * of the metadata engine and the group. */
#include "client/mount.h"

#include <fcntl.h>

#include "client/backup.h"
#include "client/chain.h"
#include "client/compact.h"
#include "client/control.h"
#include "client/delete.h"
#include "client/ending.h"
#include "client/fuse_loop.h"
#include "client/fuse_notify.h"
#include "client/fuse_ops.h"
#include "client/group.h"
#include "client/mount_gauges.h"
#include "client/mount_text.h"
#include "client/private.h"
#include "client/vfs.h"
#include "common/clock.h"
#include "common/http.h"
#include "common/log.h"
#include "common/redis.h"

enum {
	META_THREADS = 16,
	META_QUEUE = 65536,
	DATA_THREADS = 16,
	DATA_QUEUE = 65536,
	LOCAL_THREADS = 2,
	DELETE_THREADS = 2,
	DISK_THREADS = 4,
	DISK_WAIT_US = 2000000, /* at the end, for one that hangs */
	CODEC_THREADS = 4,
	IO_LOOPS_MIN = 2,
	IO_LOOPS_MAX = 4,
	GROUP_WAIT_US = 3000000,
	WRITE_FLUSH_US = 5000000,
	LISTED_LEAST_US = 1000000,
	OPEN_CACHE_MOST = 1000000,
};

struct mount {
	struct mount_conf conf;
	struct metrics *metrics;
	uint64_t started_us;
	struct loop *io[IO_LOOPS_MAX], *timers;
	unsigned n_io;
	struct workq *metaq, *dataq, *local, *deleteq, *codecs;
	struct diskq *disk;
	struct pool *pool;
	struct meta *meta;
	struct object_store *store;
	struct crypt_block *crypt;
	struct req_env env;
	struct private *private;
	struct keys *keys; /* NULL: no group */
	struct peers *peers;
	struct cluster_view view;
	struct group *group;
	const char *socket;
	char self[MEMBER_ID_MAX]; /* the daemon on this node */
	struct source *chain;
	struct client_delete deleter;
	struct client_compact compacter;
	struct reader *reader;
	struct writer *writer;
	struct control_conf control;
	struct internal *internal;
	struct backup *backup;
	struct vfs *vfs;
	struct fuse_notify *notify;
	struct fuse_ops *ops;
	struct fuse_loop *fuse;
	struct mount_gauges gauges;
	struct http *http;
	char *config, *info;
	bool meta_started, view_made;
};

/* --- threads and memory --- */

static int start_threads(struct mount *m, struct str *err)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	int r = loop_new("timers", &m->timers);

	cores = MAX(cores, (long)IO_LOOPS_MIN);
	m->n_io = (unsigned)MIN(cores, (long)IO_LOOPS_MAX);
	for (unsigned i = 0; i < m->n_io && r == 0; i++)
		r = loop_new("io", &m->io[i]);
	if (r == 0)
		r = workq_new("meta", META_THREADS, META_QUEUE, &m->metaq);
	if (r == 0)
		r = workq_new("data", DATA_THREADS, DATA_QUEUE, &m->dataq);
	if (r == 0)
		r = workq_new("local", LOCAL_THREADS, META_QUEUE, &m->local);
	if (r == 0)
		r = workq_new("delete", DELETE_THREADS, DATA_QUEUE, &m->deleteq);
	if (r == 0)
		r = diskq_new("disk", DISK_THREADS, &m->disk);
	if (r == 0)
		r = workq_new("codec", CODEC_THREADS, DATA_QUEUE, &m->codecs);
	if (r < 0)
		str_addf(err, "cannot start threads: %s", strerror(-r));
	return r;
}

static struct coding coding(const struct mount *m)
{
	return (struct coding){meta_setting(m->meta)->codec, m->crypt};
}

static int make_pool(struct mount *m, struct str *err)
{
	const struct setting *s = meta_setting(m->meta);
	size_t block = s->block_size + msg_sums_len(s->block_size);
	char size[16];
	int r;

	if (!coding_is_plain(coding(m))) /* block and object are reserved in one step */
		block += coding_bound(coding(m), s->block_size);
	/* RING's answer is taken from it, too */
	r = pool_new(m->conf.buffer_size, MAX((size_t)FRAME_RING_MAX, block), &m->pool);

	if (r == -EINVAL)
		str_addf(err, "--buffer-size is too small for blocks of %s: at least four must fit",
			 mount_bytes(s->block_size, size));
	else if (r < 0)
		str_addf(err, "cannot make the buffer pool: %s", strerror(-r));
	return r;
}

/* --- metadata and object store --- */

/* The engine has said so, in any thread that uses it, from start_meta on. Connections to the group
 * greet with the new id from now on; what was known of the old volume is forgotten. */
static void volume_moved(void *arg, bool gone)
{
	struct mount *m = arg;
	struct hash128 id = meta_volume_id(m->meta);

	if (!gone && m->peers)
		peers_set_volume(m->peers, &id);
	vfs_volume_moved(m->vfs);
}

static void setting_changed(void *arg, const struct setting *old, const struct setting *s)
{
	struct mount *m = arg;

	volume_change_store(old, s, m->store);
}

static int open_meta(struct mount *m, struct str *err)
{
	struct meta_conf conf = {
		.read_only = m->conf.read_only,
		.timeout_us = m->conf.meta_timeout,
		.heartbeat_us = m->conf.heartbeat,
		.skip_dir_mtime_us = m->conf.skip_dir_mtime,
		.mount_point = m->conf.mount_point,
		.subdir = m->conf.subdir && m->conf.subdir[0] ? m->conf.subdir : NULL,
		.no_bgjob = m->conf.no_bgjob,
		.max_deletes = (unsigned)m->conf.max_deletes,
		.metrics = m->metrics,
	};

	(void)mount_parse_atime(m->conf.atime_mode, &conf.atime); /* checked when it was typed */
	return meta_redis_new(m->conf.meta, &conf, &m->meta, err);
}

static int open_crypt(struct mount *m, struct str *err)
{
	const struct setting *s = meta_setting(m->meta);

	if (s->encrypted && m->conf.cache_group && !m->conf.group_tls_cert &&
	    !m->conf.allow_plain_peers) {
		str_addf(err,
			 "volume %s is encrypted, and blocks would go to the other nodes of group "
			 "%s "
			 "in plain: give --group-tls-cert, or --allow-plain-peers if that network "
			 "is trusted",
			 s->name, m->conf.cache_group);
		return -EPERM;
	}
	volume_log_not_enforced(s);
	return volume_open_crypt(s, &m->crypt, err);
}

static int open_store(struct mount *m, struct str *err)
{
	const struct setting *s = meta_setting(m->meta);

	return volume_open_store_retrying(s, m->io[0], (unsigned)m->conf.max_downloads,
					  MAX((unsigned)m->conf.io_retries, 1U), m->metrics,
					  &m->store, err);
}

/* --- the group --- */

static bool wants_group(const struct mount *m)
{
	return m->conf.cache_group || m->conf.cache_dir || m->conf.socket;
}

static int start_private(struct mount *m, struct str *err)
{
	const struct private_conf conf = {
		.meta = m->conf.meta,
		.cache_dir = m->conf.cache_dir,
		.cache_bytes = m->conf.cache_size,
		.free_space_ratio = m->conf.free_space_ratio,
		.log = m->conf.log,
	};
	int r = private_new(&conf, &m->private, err);

	if (r == 0)
		m->socket = private_socket(m->private);
	return r;
}

/* why the daemon of this node is of no use */
static const char *daemon_error(int r)
{
	switch (r) {
	case -ENOENT:
	case -ECONNREFUSED:
		return "no stoke-cached listens there (start it with the same --socket)";
	case -ESTALE:
		return "that stoke-cached serves another volume";
	case -EACCES:
		return "that stoke-cached is in another group, or this user may not use its socket";
	default:
		return strerror(-r);
	}
}

static int open_keys(struct mount *m, struct str *err)
{
	const struct keys_conf conf = {
		.secret_file = m->conf.group_secret_file,
		.tls = {.cert = m->conf.group_tls_cert,
			.key = m->conf.group_tls_key,
			.ca = m->conf.group_tls_ca,
			.name = m->conf.group_tls_name},
	};

	return keys_new(&conf, &m->keys, err);
}

static int make_peers(struct mount *m, struct str *err)
{
	struct peers_conf conf = {
		.id = {.role = ROLE_MOUNT,
		       .volume = meta_volume_id(m->meta),
		       .group = m->conf.cache_group,
		       .node = ""},
		.loops = m->io,
		.n_loops = m->n_io,
		.metrics = m->metrics,
	};
	int r;

	if (!conf.id.group)
		conf.id.group = "";
	if (m->conf.cache_group) {
		r = open_keys(m, err);
		if (r < 0)
			return r;
		conf.keys = m->keys;
	}
	if (m->conf.socket) {
		r = group_ask_self(m->conf.socket, &conf.id, m->self);
		if (r < 0) {
			str_addf(err, "--socket %s: %s", m->conf.socket, daemon_error(r));
			return r;
		}
	}
	r = peers_new(&conf, &m->peers);
	if (r < 0)
		str_addf(err, "cannot make connections to the group: %s", strerror(-r));
	return r;
}

static int join_group(struct mount *m, struct str *err)
{
	struct group_conf conf;
	int r;

	cluster_view_init(&m->view);
	m->view_made = true;
	if (!wants_group(m))
		return 0;
	if (!meta_has_generation(m->meta)) {
		log_warn("this volume has no generation yet, and a read-only mount cannot give it "
			 "one: reading without the group");
		return 0;
	}
	m->socket = m->conf.socket;
	r = m->conf.cache_dir ? start_private(m, err) : 0;
	if (r == 0)
		r = make_peers(m, err);
	if (r < 0)
		return r;
	conf = (struct group_conf){
		.view = &m->view,
		.peers = m->peers,
		.keys = m->keys,
		.pool = m->pool,
		.socket = m->socket,
		.redis = meta_redis(m->meta),
		.name = m->conf.cache_group,
	};
	r = group_new(&conf, GROUP_WAIT_US, &m->group);
	if (r < 0)
		str_addf(err, "cannot follow the group: %s", strerror(-r));
	return r;
}

/* --- the data path --- */

static int make_chain(struct mount *m, struct str *err)
{
	const struct setting *s = meta_setting(m->meta);
	struct client_chain_conf conf = {
		.env = &m->env,
		/* what is not in use; given up when a request needs it */
		.ram_bytes = m->conf.buffer_size / 4 * 3,
		.store = m->store,
		.volume_name = s->name,
		.hash_prefix = s->hash_prefix,
		.codecs = coding_is_plain(coding(m)) ? NULL : m->codecs,
		.peers = m->group ? m->peers : NULL,
		.view = &m->view,
		.self = m->self[0] ? m->self : NULL,
		.socket = m->socket,
		.sub_group = m->conf.sub_group,
		.disk = m->disk,
		.remote_us = m->conf.remote_timeout,
	};
	int r = client_chain_new(&conf, &m->chain);

	if (r < 0)
		str_addf(err, "cannot make the data path: %s", strerror(-r));
	return r;
}

static int make_reader_writer(struct mount *m)
{
	const struct reader_conf reader = {
		.meta = m->meta,
		.metaq = m->dataq,
		.env = &m->env,
		.chain = m->chain,
		.max_readahead = m->conf.max_readahead,
		.io_retries = (unsigned)m->conf.io_retries,
		.metrics = m->metrics,
	};
	const struct writer_conf writer = {
		.meta = m->meta,
		.metaq = m->dataq,
		.env = &m->env,
		.chain = m->chain,
		.max_uploads = (unsigned)m->conf.max_uploads,
		.flush_us = WRITE_FLUSH_US,
		.committed = vfs_committed,
		.arg = m->vfs,
		.deleteq = m->deleteq,
		.delete_slice = client_delete_slice,
		.delete_arg = &m->deleter,
		.metrics = m->metrics,
	};
	int r = reader_new(&reader, &m->reader);

	if (r == 0 && !m->conf.read_only)
		r = writer_new(&writer, &m->writer);
	if (r == 0)
		vfs_attach(m->vfs, m->reader, m->writer);
	return r;
}

static int make_texts(struct mount *m)
{
	const struct setting *s = meta_setting(m->meta);

	m->config = mount_config_text(&m->conf, s);
	m->info = mount_info_text(&m->conf, s, redis_name(meta_redis(m->meta)));
	return m->config && m->info ? 0 : -ENOMEM;
}

/* as JuiceFS: ACLs bring all extended attributes along */
static bool wants_xattr(const struct mount *m)
{
	return m->conf.enable_xattr || meta_setting(m->meta)->enable_acl;
}

static size_t open_max(const struct mount_conf *conf)
{
	uint64_t n = conf->open_cache_limit ? conf->open_cache_limit : OPEN_CACHE_MOST;

	return (size_t)MIN(n, (uint64_t)OPEN_CACHE_MOST);
}

static int make_vfs(struct mount *m)
{
	struct internal_conf in = {
		.metrics = m->metrics, .control = &m->control, .loop = m->timers};
	struct vfs_conf conf = {
		.meta = m->meta,
		.attr_us = m->conf.attr_cache,
		.entry_us = m->conf.entry_cache,
		.dir_entry_us = m->conf.dir_entry_cache,
		.readdir_cache = m->conf.readdir_cache,
		.open_us = m->conf.open_cache,
		.open_max = open_max(&m->conf),
		.no_trash = m->conf.subdir && m->conf.subdir[0],
		.read_only = m->conf.read_only,
		.xattr = wants_xattr(m),
		.acl = meta_setting(m->meta)->enable_acl,
	};
	int r = make_texts(m);

	conf.listed_us = MAX(m->conf.skip_dir_mtime, (uint64_t)LISTED_LEAST_US);
	(void)mount_parse_atime(m->conf.atime_mode, &conf.atime);
	if (r < 0)
		return r;
	m->control = (struct control_conf){
		.meta = m->meta,
		.env = &m->env,
		.chain = m->chain,
		.no_group = m->group ? NULL : "this mount has no cache group and no --cache-dir",
		.info = m->info,
	};
	in.config = m->config;
	r = internal_new(&in, &m->internal);
	if (r < 0)
		return r;
	conf.internal = m->internal;
	r = vfs_new(&conf, &m->vfs);
	m->control.vfs = m->vfs;
	return r;
}

static int make_data_path(struct mount *m, struct str *err)
{
	const struct setting *s = meta_setting(m->meta);
	int r;

	m->env = (struct req_env){
		.pool = m->pool,
		.timers = m->timers,
		.metrics = m->metrics,
		.codec = s->codec,
		.crypt = m->crypt,
		.block_size = s->block_size,
		.budget_us = req_budget_us(m->conf.io_retries),
	};
	r = make_chain(m, err);
	if (r < 0)
		return r;
	r = make_vfs(m);
	if (r == 0)
		r = make_reader_writer(m);
	if (r < 0)
		str_addf(err, "cannot make the file system: %s", strerror(-r));
	return r;
}

static int start_backup(struct mount *m, struct str *err)
{
	const struct backup_conf conf = {.meta = m->meta,
					 .store = m->store,
					 .crypt = m->crypt,
					 .interval_us = m->conf.backup_meta,
					 .skip_trash = m->conf.backup_skip_trash,
					 .metrics = m->metrics};
	int r = 0;

	if (!m->conf.read_only && !m->conf.no_bgjob && m->conf.backup_meta)
		r = backup_start(&conf, &m->backup);
	if (r < 0)
		str_addf(err, "cannot start threads: %s", strerror(-r));
	return r;
}

/* the session: what it needs to delete objects must be there before */
static int start_meta(struct mount *m, struct str *err)
{
	const struct setting *s = meta_setting(m->meta);
	int r;

	m->deleter = (struct client_delete){m->store, s->name, s->hash_prefix, s->block_size};
	r = client_compact_init(&m->compacter, &m->env, m->chain);
	if (r < 0) {
		str_add(err, "no memory");
		return r;
	}
	meta_set_compact(m->meta, client_compact_slice, &m->compacter);
	meta_set_delete(m->meta, client_delete_slice, &m->deleter);
	meta_set_changed(m->meta, volume_moved, m);
	meta_set_configured(m->meta, setting_changed, m);
	r = meta_start(m->meta, err);
	m->meta_started = r == 0;
	return r ? r : start_backup(m, err);
}

/* --- metrics --- */

static int serve_metrics(struct mount *m, struct str *err)
{
	uint16_t port;
	int r;

	m->gauges = (struct mount_gauges){m->metrics, m->pool,	m->vfs,	      m->writer,
					  m->metaq,   &m->view, m->started_us};
	r = mount_gauges_add(&m->gauges);

	if (r == 0 && m->conf.metrics && m->conf.metrics[0]) {
		r = http_new(m->timers, m->conf.metrics, false, m->metrics, NULL, NULL, &m->http,
			     &port);
		if (r == 0)
			log_info("metrics address=%s port=%u", m->conf.metrics, port);
	}
	if (r < 0)
		str_addf(err, "cannot serve metrics on %s: %s", m->conf.metrics, strerror(-r));
	return r;
}

/* --- FUSE --- */

/* as whom callers are seen; all was checked when it was typed */
static void set_callers(const struct mount_conf *conf, struct fuse_ops_conf *ops)
{
	struct squash *root = &ops->root_squash, *all = &ops->all_squash;

	if (conf->root_squash)
		root->on = mount_parse_squash(conf->root_squash, &root->uid, &root->gid) == 0;
	if (conf->all_squash)
		all->on = mount_parse_squash(conf->all_squash, &all->uid, &all->gid) == 0;
	if (conf->umask)
		(void)mount_parse_umask(conf->umask, &ops->umask);
}

static void tell_entry(void *arg, uint64_t parent, const char *name)
{
	fuse_notify_entry(arg, parent, name);
}

static void tell_inode(void *arg, uint64_t inode)
{
	fuse_notify_inode(arg, inode);
}

static int mount_fuse(struct mount *m, struct str *err)
{
	struct fuse_ops_conf ops = {
		.vfs = m->vfs,
		.internal = m->internal,
		.meta = m->metaq,
		.local = m->local,
		.negative_us = m->conf.negative_entry_cache,
		.xattr = wants_xattr(m),
		.acl = meta_setting(m->meta)->enable_acl && !mount_checks(&m->conf),
		.check = mount_checks(&m->conf),
		.umask = -1,
		.readdir_cache = m->conf.readdir_cache,
		.ioctl = m->conf.enable_ioctl,
		.metrics = m->metrics,
		.ready = m->conf.ready,
		.arg = m->conf.arg,
	};
	struct fuse_loop_conf loop = {
		.mount_point = m->conf.mount_point,
		.ended = m->conf.ended,
		.arg = m->conf.arg,
	};
	_cleanup_(freep) char *options = mount_fuse_options(&m->conf, meta_setting(m->meta));
	int r;

	set_callers(&m->conf, &ops);
	r = options ? fuse_notify_new(&m->notify) : -ENOMEM;
	ops.notify = m->notify;
	if (r == 0)
		r = fuse_ops_new(&ops, &m->ops);
	if (r < 0) {
		str_addf(err, "no memory");
		return r;
	}
	loop.ops = fuse_ops_table(&loop.ops_size);
	loop.userdata = m->ops;
	loop.options = options;
	loop.notify = m->notify;
	vfs_set_kernel(m->vfs, &(struct vfs_kernel){tell_entry, tell_inode, m->notify});
	r = fuse_loop_new(&loop, &m->fuse, err);
	if (r < 0)
		return r;
	r = fuse_loop_start(m->fuse);
	if (r < 0)
		str_addf(err, "cannot start threads: %s", strerror(-r));
	else
		mount_read_ahead(m->conf.mount_point, FUSE_LOOP_IO_MAX / 1024);
	return r;
}

int mount_start(const struct mount_conf *conf, struct mount **ret, struct str *err)
{
	static int (*const steps[])(struct mount * m, struct str * err) = {
		start_threads, open_meta,      open_crypt, make_pool,	  open_store,
		join_group,    make_data_path, start_meta, serve_metrics, mount_fuse,
	};
	struct mount *m = calloc(1, sizeof(*m));

	if (!m || !(m->metrics = metrics_new())) {
		free(m);
		str_add(err, "no memory");
		return -ENOMEM;
	}
	m->conf = *conf;
	m->started_us = clock_us();
	for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
		int r = steps[i](m, err);

		if (r < 0) {
			mount_stop(m);
			return r;
		}
	}
	*ret = m;
	return 0;
}

/* --- the end --- */

static int stop_serving(struct mount *m)
{
	int r = 0, r2 = 0;

	/* while requests are still served: closing processes find little left to wait for */
	if (m->writer && m->fuse)
		r = writer_flush_all(m->writer);
	if (m->fuse)
		fuse_loop_stop(m->fuse);
	/* Nothing new comes in. What still asks daemons is reads of processes that were killed,
	 * reading ahead, and losers of races: a daemon that hangs must keep none of them. The
	 * object store is left to those that need an answer. */
	group_stop(m->group);
	if (m->peers)
		peers_close(m->peers);
	if (m->ops)
		fuse_ops_drain(m->ops);
	if (m->writer)
		r2 = writer_flush_all(m->writer);
	if (m->http)
		http_free(m->http);
	/* handles that are open still: their closes reach the engine before its session ends */
	if (m->vfs)
		vfs_stop(m->vfs);
	internal_free(m->internal);
	return r ? r : r2;
}

static void free_data_path(struct mount *m)
{
	/* the last requests end, then the threads that use what they hang on */
	if (m->chain)
		req_env_drain(&m->env);
	workq_free(TAKE_PTR(m->metaq));
	workq_free(TAKE_PTR(m->dataq));
	workq_free(TAKE_PTR(m->deleteq));
	workq_free(TAKE_PTR(m->local));
	/* any call of the engine may say that the volume moved: no thread makes one any more */
	vfs_free(m->vfs);
	writer_free(m->writer);
	reader_free(m->reader);
	client_compact_fini(&m->compacter);
	source_free(m->chain);
	if (m->peers)
		peers_free(m->peers);
	group_free(m->group);
	private_free(m->private);
	if (m->view_made)
		cluster_view_fini(&m->view);
	keys_free(m->keys);
}

/* false: a thread hangs in a disk of this node's daemon; nothing that it uses may be freed, and the
 * process ends with it */
static bool free_disk(struct mount *m)
{
	if (m->chain)
		req_env_drain(&m->env);
	if (!diskq_free(m->disk, DISK_WAIT_US))
		return false;
	m->disk = NULL;
	return true;
}

int mount_stop(struct mount *m)
{
	struct ending *ending = NULL;
	int r;

	if (m->writer && m->fuse)
		ending = ending_start(&(struct ending_conf){.meta = m->meta,
							    .writer = m->writer,
							    .mount_point = m->conf.mount_point,
							    .again_fd = m->conf.again_fd,
							    .again = m->conf.again,
							    .arg = m->conf.arg});
	r = stop_serving(m);
	backup_stop(m->backup);
	if (m->meta_started)
		meta_stop(m->meta);
	ending_stop(ending);
	/* only now: whoever waits for the unmounting finds the session closed, and everything in
	 * its place */
	fuse_loop_free(m->fuse);
	fuse_ops_free(m->ops);
	fuse_notify_free(m->notify);
	if (!free_disk(m))
		return r;
	free_data_path(m);
	meta_free(m->meta);
	if (m->store)
		object_free(m->store);
	/* still there when the start ended before the data path was made */
	workq_free(m->metaq);
	workq_free(m->dataq);
	workq_free(m->deleteq);
	workq_free(m->local);
	workq_free(m->codecs);
	crypt_block_free(m->crypt);
	for (unsigned i = 0; i < m->n_io; i++)
		loop_free(m->io[i]);
	loop_free(m->timers);
	if (m->pool)
		pool_free(m->pool);
	metrics_free(m->metrics);
	free(m->config);
	free(m->info);
	free(m);
	return r;
}
