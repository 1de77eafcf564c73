/* SPDX-License-Identifier: Apache-2.0 */
/* stoke load: a dump, ours or JuiceFS's, into an empty database. One thread; blocks. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "client/cmd/maint.h"
#include "client/cmd/probe.h"
#include "client/maint/dumpfile.h"
#include "client/maint/load.h"
#include "common/object/crypt_block.h"

enum { SEALED_MAX = 1 << 30 }; /* one message of the cipher */

struct load_options {
	char *rsa_key, *algo;
	uint64_t threads;
	bool binary;
};

static const struct conf_option options[] = {
	{"threads", 0, CONF_U64, offsetof(struct load_options, threads), "10", NULL, NULL},
	{"binary", 0, CONF_FLAG, offsetof(struct load_options, binary), "false", NULL,
	 "JuiceFS's binary format: not handled"},
	{"encrypt-rsa-key", 0, CONF_STR, offsetof(struct load_options, rsa_key), NULL, NULL,
	 "the private key that an encrypted backup is sealed with (meta/dump-… of an encrypted "
	 "volume); its passphrase in JFS_RSA_PASSPHRASE"},
	{"encrypt-algo", 0, CONF_STR, offsetof(struct load_options, algo), "aes256gcm-rsa", NULL,
	 "aes256gcm-rsa, chacha20-rsa or sm4gcm; goes with --encrypt-rsa-key"},
};

static const struct conf_table table = {
	.options = options,
	.n = ARRAY_LEN(options),
	.usage = "stoke load [options] META [FILE]",
	.summary = "load metadata that stoke dump or juicefs dump wrote into an empty database "
		   "(FILE may "
		   "be compressed with gzip; default: standard input)",
	.min_args = 1,
	.max_args = 2,
};

static ssize_t read_file(void *arg, void *p, size_t cap)
{
	return dumpfile_read(arg, p, cap);
}

static int read_whole(const char *path, unsigned char **ret, size_t *ret_n)
{
	_cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	_cleanup_(freep) unsigned char *p = NULL;
	struct stat st;
	ssize_t got = 1;
	size_t n = 0;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size <= 0 || st.st_size > SEALED_MAX)
		return -EFBIG;
	p = malloc((size_t)st.st_size);
	if (!p)
		return -ENOMEM;
	for (; got > 0 && n < (size_t)st.st_size; n += (size_t)MAX(got, (ssize_t)0))
		got = read(fd, p + n, (size_t)st.st_size - n);
	if (got < 0)
		return -errno;
	*ret_n = n;
	*ret = TAKE_PTR(p);
	return 0;
}

/* The file in plain, in memory: it is not to lie about on a disk. *ret_path names it as long as
 * *ret_fd is open. */
static int unseal(const struct load_options *o, const char *path, int *ret_fd, char ret_path[32],
		  struct str *err)
{
	_cleanup_(freep) unsigned char *sealed = NULL;
	_cleanup_(closep) int fd = -1;
	struct crypt_block *crypt = NULL;
	unsigned char *plain = NULL;
	char *pem = NULL;
	size_t n = 0, len = 0;
	int r = probe_key_file(o->rsa_key, &pem, err);

	if (r == 0) {
		r = crypt_block_new(pem, getenv(CRYPT_PASSPHRASE_ENV), o->algo, &crypt, err);
		explicit_bzero(pem, strlen(pem));
	}
	free(pem);
	if (r)
		return r;
	r = read_whole(path, &sealed, &n);
	if (r == 0)
		r = crypt_block_open(crypt, sealed, n, NULL, 0, &plain, &len);
	crypt_block_free(crypt);
	if (r == 0) {
		fd = memfd_create("load", MFD_CLOEXEC);
		if (fd < 0 || write(fd, plain, len) != (ssize_t)len)
			r = -EIO;
		explicit_bzero(plain, len);
	}
	if (r) {
		str_addf(err, "%s: %s", path,
			 r == -EBADMSG ? "not sealed with this key, or damaged" : strerror(-r));
		return r;
	}
	(void)snprintf(ret_path, 32, "/proc/self/fd/%d", fd);
	*ret_fd = TAKE_FD(fd);
	return 0;
}

static int load(struct maint *m, const struct load_options *o, const char *path,
		struct load_result *ret, struct str *err)
{
	_cleanup_(closep) int fd = -1;
	struct dumpfile *f;
	char plain[32];
	int r = o->rsa_key ? unseal(o, path, &fd, plain, err) : 0;

	if (r)
		return r;
	r = dumpfile_open(o->rsa_key ? plain : path, &f);

	if (r == -EOPNOTSUPP)
		str_addf(err,
			 "%s: zstd, or JuiceFS's binary format: decompress it first (zstd -d), or "
			 "load a dump in JSON",
			 path ? path : "standard input");
	else if (r < 0)
		str_addf(err, "%s: %s", path ? path : "standard input", strerror(-r));
	if (r < 0)
		return r;
	maint_begin(m, "inodes", "of files");
	r = meta_load(&m->scan, read_file, f, &m->progress, maint_warn, m, ret, err);
	(void)dumpfile_close(f, false);
	maint_end(m);
	return r;
}

static int load_run(int argc, char **argv)
{
	struct load_result res = {.name = NULL};
	struct maint m = {.name = "load"};
	struct load_options o;
	struct str err = STR_INIT;
	char **args;
	size_t n;
	int r = maint_args("load", &table, &o, argc, argv, &args, &n);

	if (r == 0 && o.binary) {
		(void)cmd_error("load", "--binary: JuiceFS's binary format is not handled: load it "
					"with juicefs, dump that in JSON, and load the dump");
		r = 3;
	}
	if (r == 0 && o.rsa_key && n < 2) {
		(void)cmd_error("load", "--encrypt-rsa-key: name the FILE");
		r = 3;
	}
	if (r) {
		conf_fini(&table, &o);
		return r - 1;
	}
	r = maint_open(&m, "load", args[0], true);
	if (r == 0 && m.setting) {
		(void)cmd_error("load", "%s is used by volume %s: choose an empty database",
				redis_name(m.redis), m.setting->name);
		r = 1;
	} else if (r == 0) {
		r = maint_exit(&m, load(&m, &o, n > 1 ? args[1] : NULL, &res, &err), &err);
	} else {
		r = 1;
	}
	if (r == 0)
		maint_say(&m, "loaded volume %s: %llu inodes, %llu bytes", res.name,
			  (unsigned long long)res.inodes, (unsigned long long)res.bytes);
	if (r == 0 && res.secret_removed)
		maint_warn(&m, "the secret of the object store was removed from the dump: set it "
			       "with stoke config");
	free(res.name);
	maint_close(&m);
	str_fini(&err);
	conf_fini(&table, &o);
	return r;
}

const struct cmd cmd_load = {"load", "load a dump into an empty database", load_run, &table};
