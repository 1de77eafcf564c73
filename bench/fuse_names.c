/* SPDX-License-Identifier: Apache-2.0 */
/* The ceiling of FUSE itself for metadata: a file system of names in memory, without bytes, that
 * answers everything at once and lets the kernel keep it for a second, as stoke mount does.
 *
 *	fuse_names DIR THREADS [SECONDS]	serves until it is unmounted or killed
 *
 * SECONDS: how long the kernel may keep names and attributes, 1 unless given. Nodes are never
 * freed: their address is their inode number. */
#include <fuse_lowlevel.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>

#include "common/base.h"
#include "common/hash.h"
#include "common/hashmap.h"
#include "common/list.h"
#include "common/parse.h"

struct node {
	struct hash_node in_map;
	struct list_node in_dir;
	struct list_node names; /* of a directory */
	struct node *parent;
	size_t n_names;
	mode_t mode;
	char name[256];
};

struct listing {
	size_t n;
	struct node *v[];
};

static struct node root = {.mode = S_IFDIR | 0755};
static struct hashmap names;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fuse_session *session;
static uint64_t keep = 1;

static struct node *node_of(fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? &root : (struct node *)(uintptr_t)ino;
}

static fuse_ino_t number_of(const struct node *n)
{
	return n == &root ? FUSE_ROOT_ID : (uintptr_t)n;
}

struct place {
	struct node *parent;
	const char *name;
};

static uint64_t place_hash(const struct place *p)
{
	return hash64(p->name, strlen(p->name)) ^ (uintptr_t)p->parent;
}

static bool place_eq(const struct hash_node *h, const void *key)
{
	const struct node *n = container_of(h, const struct node, in_map);
	const struct place *p = key;

	return n->parent == p->parent && strcmp(n->name, p->name) == 0;
}

static struct node *find_locked(struct place p)
{
	struct hash_node *h = hashmap_find(&names, place_hash(&p), place_eq, &p);

	return h ? container_of(h, struct node, in_map) : NULL;
}

static void add_locked(struct node *n, struct place p)
{
	n->parent = p.parent;
	snprintf(n->name, sizeof(n->name), "%s", p.name);
	hashmap_add(&names, &n->in_map, place_hash(&p));
	list_add_tail(&p.parent->names, &n->in_dir);
	p.parent->n_names++;
}

static void del_locked(struct node *n)
{
	hashmap_del(&names, &n->in_map);
	list_del(&n->in_dir);
	n->parent->n_names--;
}

static void fill(const struct node *n, struct fuse_entry_param *e)
{
	*e = (struct fuse_entry_param){
		.ino = number_of(n),
		.attr_timeout = (double)keep,
		.entry_timeout = (double)keep,
		.attr = {.st_ino = number_of(n), .st_mode = n->mode, .st_nlink = 1},
	};
}

static void null_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fuse_entry_param e;

	(void)fi;
	fill(node_of(ino), &e);
	(void)fuse_reply_attr(req, &e.attr, e.attr_timeout);
}

static void null_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param e;
	struct node *n;

	pthread_mutex_lock(&lock);
	n = find_locked((struct place){node_of(parent), name});
	if (n)
		fill(n, &e);
	pthread_mutex_unlock(&lock);
	if (n)
		(void)fuse_reply_entry(req, &e);
	else
		(void)fuse_reply_err(req, ENOENT);
}

/* answered already when it is NULL */
static struct node *make(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct place p = {node_of(parent), name};
	struct node *n = calloc(1, sizeof(*n));
	bool there = true;

	if (n) {
		n->mode = mode;
		list_init(&n->names);
		pthread_mutex_lock(&lock);
		there = find_locked(p) != NULL;
		if (!there)
			add_locked(n, p);
		pthread_mutex_unlock(&lock);
	}
	if (there) {
		(void)fuse_reply_err(req, n ? EEXIST : ENOMEM);
		free(n);
		n = NULL;
	}
	return n;
}

static void null_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	struct node *n = make(req, parent, name, S_IFDIR | mode);
	struct fuse_entry_param e;

	if (n) {
		fill(n, &e);
		(void)fuse_reply_entry(req, &e);
	}
}

static void null_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
			struct fuse_file_info *fi)
{
	struct node *n = make(req, parent, name, S_IFREG | mode);
	struct fuse_entry_param e;

	if (n) {
		fill(n, &e);
		(void)fuse_reply_create(req, &e, fi);
	}
}

static void null_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct node *n;

	pthread_mutex_lock(&lock);
	n = find_locked((struct place){node_of(parent), name});
	if (n)
		del_locked(n);
	pthread_mutex_unlock(&lock);
	(void)fuse_reply_err(req, n ? 0 : ENOENT);
}

static void null_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
			const char *new_name, unsigned flags)
{
	struct node *n, *over;

	(void)flags;
	pthread_mutex_lock(&lock);
	n = find_locked((struct place){node_of(parent), name});
	over = find_locked((struct place){node_of(new_parent), new_name});
	if (n) {
		if (over)
			del_locked(over);
		del_locked(n);
		add_locked(n, (struct place){node_of(new_parent), new_name});
	}
	pthread_mutex_unlock(&lock);
	(void)fuse_reply_err(req, n ? 0 : ENOENT);
}

static void null_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	(void)fuse_reply_open(req, fi);
}

static void null_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	(void)fi;
	(void)fuse_reply_err(req, 0);
}

static void null_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct node *dir = node_of(ino);
	struct listing *l;

	pthread_mutex_lock(&lock);
	l = calloc(1, sizeof(*l) + dir->n_names * sizeof(struct node *));
	for (struct list_node *n = dir->names.next; l && n != &dir->names; n = n->next)
		l->v[l->n++] = container_of(n, struct node, in_dir);
	pthread_mutex_unlock(&lock);
	fi->fh = (uintptr_t)l;
	if (l)
		(void)fuse_reply_open(req, fi);
	else
		(void)fuse_reply_err(req, ENOMEM);
}

static void null_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
			     struct fuse_file_info *fi)
{
	const struct listing *l = (const struct listing *)(uintptr_t)fi->fh;
	char *buf = malloc(size);
	size_t used = 0;

	(void)ino;
	if (!buf) {
		(void)fuse_reply_err(req, ENOMEM);
		return;
	}
	for (size_t i = (size_t)off; i < l->n; i++) {
		struct fuse_entry_param e;
		size_t n;

		fill(l->v[i], &e);
		n = fuse_add_direntry_plus(req, buf + used, size - used, l->v[i]->name, &e,
					   (off_t)i + 1);
		if (n > size - used)
			break;
		used += n;
	}
	(void)fuse_reply_buf(req, buf, used);
	free(buf);
}

static void null_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	free((void *)(uintptr_t)fi->fh);
	(void)fuse_reply_err(req, 0);
}

static void null_init(void *userdata, struct fuse_conn_info *conn)
{
	(void)userdata;
	conn->want &= ~(unsigned)(FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_READDIRPLUS_AUTO |
				  FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE);
}

static const struct fuse_lowlevel_ops ops = {
	.init = null_init,
	.lookup = null_lookup,
	.getattr = null_getattr,
	.mkdir = null_mkdir,
	.create = null_create,
	.unlink = null_unlink,
	.rmdir = null_unlink,
	.rename = null_rename,
	.open = null_open,
	.flush = null_flush,
	.release = null_flush,
	.opendir = null_opendir,
	.readdirplus = null_readdirplus,
	.releasedir = null_releasedir,
};

static void *serve(void *arg)
{
	struct fuse_buf buf = {.mem = NULL};

	(void)arg;
	while (!fuse_session_exited(session)) {
		int r = fuse_session_receive_buf(session, &buf);

		if (r == -EINTR)
			continue;
		if (r <= 0)
			break;
		fuse_session_process_buf(session, &buf);
	}
	free(buf.mem);
	(void)kill(getpid(), SIGTERM); /* unmounted from outside: main goes on */
	return NULL;
}

int main(int argc, char **argv)
{
	char *args[] = {argv[0], (char *)(uintptr_t) "-odefault_permissions,fsname=names"};
	struct fuse_args fa = FUSE_ARGS_INIT(2, args);
	uint64_t threads = 0;
	pthread_t t[16];
	sigset_t set;
	int sig;

	if (argc < 3 || argc > 4 || parse_u64(argv[2], 16, &threads) < 0 || threads == 0 ||
	    (argc == 4 && parse_u64(argv[3], 3600, &keep) < 0)) {
		(void)fprintf(stderr, "usage: fuse_names DIR THREADS [SECONDS]\n");
		return 2;
	}
	list_init(&root.names);
	if (hashmap_init(&names, 1 << 16) < 0)
		return 1;
	/* the signals that end it come to main alone */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	session = fuse_session_new(&fa, &ops, sizeof(ops), NULL);
	if (!session || fuse_session_mount(session, argv[1]) < 0)
		return 1;
	for (uint64_t i = 0; i < threads; i++)
		if (pthread_create(&t[i], NULL, serve, NULL))
			return 1;
	(void)sigwait(&set, &sig);
	fuse_session_exit(session);
	/* threads that are in read(2) return when the kernel has ended the connection */
	fuse_session_unmount(session);
	for (uint64_t i = 0; i < threads; i++)
		(void)pthread_join(t[i], NULL);
	fuse_session_destroy(session);
	hashmap_fini(&names);
	return 0;
}
