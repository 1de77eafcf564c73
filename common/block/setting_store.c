/* SPDX-License-Identifier: Apache-2.0 */
/* From the setting to what it names: the object store and the key that objects are encrypted with.
 * No state, any thread. */
#include "common/block/setting.h"
#include "common/log.h"

/* the setting's Mbit/s are 10^6 bits */
static uint64_t bytes_of(uint64_t mbit)
{
	return mbit * 125000;
}

static struct object_conf store_conf(const struct setting *s)
{
	return (struct object_conf){
		.storage = s->storage,
		.bucket = s->bucket,
		.access_key = s->access_key,
		.secret_key = s->secret_key,
		.session_token = s->session_token,
		.shards = s->shards,
		.tiers = s->tiers,
		.n_tiers = s->n_tiers,
		.upload_limit = bytes_of(s->upload_limit),
		.download_limit = bytes_of(s->download_limit),
	};
}

int volume_open_store(const struct setting *s, struct loop *l, unsigned max_conns,
		      struct metrics *m, struct object_store **ret, struct str *err)
{
	return volume_open_store_retrying(s, l, max_conns, 0, m, ret, err);
}

int volume_open_store_retrying(const struct setting *s, struct loop *l, unsigned max_conns,
			       unsigned retries, struct metrics *m, struct object_store **ret,
			       struct str *err)
{
	struct object_conf conf = store_conf(s);

	conf.max_conns = max_conns;
	conf.retries = retries;
	conf.metrics = m;
	return object_open(&conf, l, ret, err);
}

int volume_open_crypt(const struct setting *s, struct crypt_block **ret, struct str *err)
{
	_cleanup_(str_fini) struct str why = STR_INIT;
	int r;

	*ret = NULL;
	if (!s->encrypted)
		return 0;
	r = crypt_block_new(s->encrypt_key, getenv(CRYPT_PASSPHRASE_ENV), s->encrypt_algo, ret,
			    &why);
	if (r)
		str_addf(err, "volume %s is encrypted: %s", s->name,
			 why.len ? str_c(&why) : strerror(-r));
	return r;
}

static bool same_text(const char *a, const char *b)
{
	return strcmp(a ? a : "", b ? b : "") == 0;
}

static bool same_tiers(const struct setting *a, const struct setting *b)
{
	if (a->n_tiers != b->n_tiers)
		return false;
	for (size_t i = 0; i < a->n_tiers; i++)
		if (a->tiers[i].id != b->tiers[i].id ||
		    !same_text(a->tiers[i].storage_class, b->tiers[i].storage_class) ||
		    !same_text(a->tiers[i].tag, b->tiers[i].tag))
			return false;
	return true;
}

static bool same_store(const struct setting *a, const struct setting *b)
{
	return same_text(a->storage, b->storage) && same_text(a->bucket, b->bucket) &&
	       same_text(a->access_key, b->access_key) && same_text(a->secret_key, b->secret_key) &&
	       same_text(a->session_token, b->session_token) && same_tiers(a, b);
}

void volume_change_store(const struct setting *old, const struct setting *s,
			 struct object_store *store)
{
	_cleanup_(str_fini) struct str err = STR_INIT;
	struct object_conf conf = store_conf(s);
	int r;

	if (old->upload_limit != s->upload_limit || old->download_limit != s->download_limit)
		object_change_limits(store, conf.upload_limit, conf.download_limit);
	if (same_store(old, s))
		return;
	r = same_text(old->storage, s->storage) ? object_change(store, &conf, &err) : -EOPNOTSUPP;
	if (r)
		log_warn("the volume's object store was changed, and is used as before until it is "
			 "mounted again: %s",
			 err.len ? str_c(&err) : strerror(-r));
	else
		log_info("the volume's object store was changed: its new bucket, keys and classes "
			 "are in use");
}

void volume_log_not_enforced(const struct setting *s)
{
	if (s->kerberos)
		log_info("volume=%s: Kerberos is between JuiceFS's Java clients and is not asked "
			 "for by a mount",
			 s->name);
	if (s->ranger)
		log_info(
			"volume=%s: Ranger's rules hold in JuiceFS's Java clients; a mount goes by "
			"modes and ACLs",
			s->name);
}
