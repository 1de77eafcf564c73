/* SPDX-License-Identifier: Apache-2.0 */
/* The volume's setting (JSON under the key "setting", docs/format.md §2.2) and the volume id. */
#ifndef STOKE_COMMON_BLOCK_SETTING_H
#define STOKE_COMMON_BLOCK_SETTING_H

#include <strings.h>

#include "common/hash.h"
#include "common/object/codec.h"
#include "common/object/crypt_block.h"
#include "common/object/object.h"
#include "common/redis.h"

struct setting {
	char *name, *uuid, *storage, *bucket;
	char *access_key, *secret_key, *session_token; /* plain (unsealed); NULL when absent */
	uint32_t block_size;			       /* bytes */
	char *compression;			       /* as stored; "" when absent */
	enum codec codec; /* CODEC_NONE too for a compression that setting_check refuses */
	bool hash_prefix, dir_stats, user_group_quota, enable_acl, change_log, kerberos, ranger;
	bool encrypted;
	char *encrypt_key;	   /* PEM, unsealed; NULL when not encrypted */
	char *encrypt_algo;	   /* as stored; "" when absent */
	bool sealed;		   /* secrets are stored sealed */
	struct object_tier *tiers; /* tier 0 first, always there */
	size_t n_tiers;
	unsigned shards, trash_days, meta_version;
	uint64_t capacity, inodes;	       /* 0: no limit */
	uint64_t log_max_age, log_max_lines;   /* of the change log: seconds; 0: any */
	uint64_t upload_limit, download_limit; /* Mbit/s, 0: none */
	char *min_client, *max_client;	       /* NULL when absent */
	char *text;			       /* as stored, secrets included: never logged */
};

/* Checks every field it reads: -EINVAL with the field in err; -EBADMSG: a secret that does not
 * unseal. */
int setting_parse(const char *json, size_t n, struct setting **ret, struct str *err);
void setting_free(struct setting *s);
void setting_freep(struct setting **s);
/* a copy for people: JSON with every secret replaced by "****" */
int setting_redacted(const struct setting *s, struct str *out);
/* What this program does not handle, named: appends "compression brotli" and returns -EOPNOTSUPP,
 * else 0. Version gates and MetaVersion are -EPROTONOSUPPORT. (An object store that is not handled,
 * or an algorithm of encryption, is refused where it is opened.) */
int setting_check(const struct setting *s, struct str *ret_why);
static inline bool setting_is_sm4(const struct setting *s)
{
	return strcasecmp(s->encrypt_algo, "sm4gcm") == 0;
}
/* JuiceFS's comparison of versions (§2.2.2): <0, 0, >0 */
int setting_version_cmp(const char *a, const char *b);
/* we judge version gates as this JuiceFS version */
#define SETTING_AS_JUICEFS "1.5.0"

/* GET setting and parse. -ENOENT: the database holds no volume (err says "stoke format"). */
int setting_load(struct redis *r, uint64_t deadline_us, struct setting **ret, struct str *err);

struct generation {
	uint8_t b[8];
};
/* The private key `_gen`; made when absent and create is set (only while `setting` exists).
 * -ENOENT: absent. */
int volume_generation(struct redis *r, uint64_t deadline_us, bool create, struct generation *ret);
/* XXH3-128 of the UUID text and the generation */
struct hash128 volume_id(const char *uuid, const struct generation *gen);
/* opens the object store that the setting names */
int volume_open_store(const struct setting *s, struct loop *l, unsigned max_conns,
		      struct metrics *m, struct object_store **ret, struct str *err);
/* the same; retries: object_conf's, 0 for its default */
int volume_open_store_retrying(const struct setting *s, struct loop *l, unsigned max_conns,
			       unsigned retries, struct metrics *m, struct object_store **ret,
			       struct str *err);
/* The key that the volume's objects are encrypted with, opened with the passphrase of the
 * environment; *ret NULL: not encrypted. Errors are those of crypt_block_new */
int volume_open_crypt(const struct setting *s, struct crypt_block **ret, struct str *err);
/* The setting changed while the volume is in use: the store takes bucket, keys and tiers; logs what
 * it could not take. */
void volume_change_store(const struct setting *old, const struct setting *s,
			 struct object_store *store);
/* logs what this program leaves to others: Kerberos, Ranger */
void volume_log_not_enforced(const struct setting *s);

#endif
