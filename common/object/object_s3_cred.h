/* SPDX-License-Identifier: Apache-2.0 */
/* The keys that S3 requests are signed with (private to object_s3*.c). The first that is there:
 *
 *	the environment's ACCESS_KEY, SECRET_KEY (, SESSION_TOKEN)
 *	its AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (, AWS_SESSION_TOKEN)
 *	the setting's
 *	the instance's role's, from the metadata service (IMDSv2), renewed before they expire
 *
 * None of them: requests go unsigned. All calls but the pure ones on the loop's thread. */
#ifndef STOKE_COMMON_OBJECT_OBJECT_S3_CRED_H
#define STOKE_COMMON_OBJECT_OBJECT_S3_CRED_H

#include "common/object/object.h"
#include "common/object/object_s3_http.h"

struct s3_keys {
	char *access, *secret, *token; /* access NULL: none, unsigned */
	int64_t expires;	       /* unix seconds; 0: never */
};
void s3_keys_fini(struct s3_keys *k);
/* pure: environment, then conf. 0, or -ENOENT when neither has a pair; -ENOMEM */
int s3_keys_static(const struct object_conf *conf, struct s3_keys *ret);
/* pure: the metadata service's JSON. 0, -EPROTO, -ENOMEM */
int s3_keys_parse_role(const char *json, size_t n, struct s3_keys *ret);

/* who keeps them fresh */
struct s3_cred;
/* changed(arg) runs after keys came, or it is sure that there are none for now. 0 or -ENOMEM */
int s3_cred_new(const struct object_conf *conf, struct s3_http *http, void (*changed)(void *arg),
		void *arg, struct s3_cred **ret);
void s3_cred_free(struct s3_cred *c);
/* The keys to sign with right now (access NULL: do not sign), good until the next call; NULL: they
 * are being asked for, changed will run. */
const struct s3_keys *s3_cred_get(struct s3_cred *c);
/* The server said that they expired: true when new ones are being asked for, so that the request is
 * worth another try. */
bool s3_cred_renew(struct s3_cred *c);

#endif
