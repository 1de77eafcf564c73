/* SPDX-License-Identifier: Apache-2.0 */
/* Where keys come from, and the conversation with the instance's metadata service. Thread: the
 * loop's (s3_keys_static: any).
 *
 *	fixed		environment or setting: for ever
 *	asking		token -> role's name -> role's keys: requests wait unless older keys still
 *			hold. s3_cred_get or s3_cred_renew begins, answered goes on
 *	role		keys of a role; asked for again EARLY seconds before they expire, or when
 *			the server calls them expired
 *	none		no service, or no role there: unsigned; asked again after PAUSE_US
 */
#include "common/object/object_s3_cred.h"

#include <time.h>

#include <jansson.h>

#include "common/clock.h"

enum {
	MAX_ANSWER = 32 << 10,
	EARLY = 300,	      /* seconds */
	PAUSE_US = 60000000,  /* between conversations that led to nothing */
	CONNECT_US = 1000000, /* the service is on this machine's hypervisor, or nowhere */
	ANSWER_US = 3000000,
};

enum state { STATE_FIXED, STATE_ASKING, STATE_ROLE, STATE_NONE };
enum question { ASK_TOKEN, ASK_NAME, ASK_KEYS };

struct s3_cred {
	enum state state;
	struct s3_keys keys;
	struct s3_exchange x;
	enum question question;
	struct str url, headers, answer;
	char base[200], token[600], role[200];
	uint64_t pause_until_us;
	void (*changed)(void *arg);
	void *arg;
};

static void wipe(char **p)
{
	if (*p)
		explicit_bzero(*p, strlen(*p));
	free(*p);
	*p = NULL;
}

void s3_keys_fini(struct s3_keys *k)
{
	free(k->access);
	k->access = NULL;
	wipe(&k->secret);
	wipe(&k->token);
	k->expires = 0;
}

static int keys_set(struct s3_keys *k, const char *access, const char *secret, const char *token)
{
	*k = (struct s3_keys){.access = strdup(access), .secret = strdup(secret)};
	if (token && *token)
		k->token = strdup(token);
	if (k->access && k->secret && (k->token || !token || !*token))
		return 0;
	s3_keys_fini(k);
	return -ENOMEM;
}

int s3_keys_static(const struct object_conf *conf, struct s3_keys *ret)
{
	const struct {
		const char *access, *secret, *token;
	} pairs[] = {
		{getenv("ACCESS_KEY"), getenv("SECRET_KEY"), getenv("SESSION_TOKEN")},
		{getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY"),
		 getenv("AWS_SESSION_TOKEN")},
		{conf->access_key, conf->secret_key, conf->session_token},
	};

	for (size_t i = 0; i < ARRAY_LEN(pairs); i++) {
		if (pairs[i].access && *pairs[i].access && pairs[i].secret && *pairs[i].secret)
			return keys_set(ret, pairs[i].access, pairs[i].secret, pairs[i].token);
	}
	return -ENOENT;
}

int s3_keys_parse_role(const char *json, size_t n, struct s3_keys *ret)
{
	json_t *root = json_loadb(json, n, 0, NULL);
	const char *code = json_string_value(json_object_get(root, "Code"));
	const char *access = json_string_value(json_object_get(root, "AccessKeyId"));
	const char *secret = json_string_value(json_object_get(root, "SecretAccessKey"));
	const char *token = json_string_value(json_object_get(root, "Token"));
	const char *expires = json_string_value(json_object_get(root, "Expiration"));
	struct tm tm = {.tm_isdst = 0};
	const char *rest = expires ? strptime(expires, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
	struct s3_keys k;
	int r = -EPROTO;

	if (access && *access && secret && *secret && rest && strcmp(rest, "Z") == 0 &&
	    (!code || strcmp(code, "Success") == 0))
		r = keys_set(&k, access, secret, token);
	json_decref(root);
	if (r < 0)
		return r;
	k.expires = (int64_t)timegm(&tm);
	*ret = k;
	return 0;
}

static int64_t now_seconds(void)
{
	int64_t sec;
	uint32_t nsec;

	clock_real(&sec, &nsec);
	return sec;
}

/* the conversation led nowhere: what was there before stays in use, else nothing is signed */
static void give_up(struct s3_cred *c)
{
	c->state = c->keys.access ? STATE_ROLE : STATE_NONE;
	c->pause_until_us = clock_us() + PAUSE_US;
	c->changed(c->arg);
}

static int ask(struct s3_cred *c, enum question q)
{
	static const char path[] = "/latest/meta-data/iam/security-credentials/";

	c->question = q;
	str_reset(&c->url);
	str_reset(&c->headers);
	str_reset(&c->answer);
	if (q == ASK_TOKEN) {
		str_addf(&c->url, "%s/latest/api/token", c->base);
		str_add(&c->headers, "x-aws-ec2-metadata-token-ttl-seconds: 21600\n");
	} else {
		str_addf(&c->url, "%s%s%s", c->base, path, q == ASK_KEYS ? c->role : "");
		str_addf(&c->headers, "x-aws-ec2-metadata-token: %s\n", c->token);
	}
	if (str_error(&c->url) || str_error(&c->headers))
		return -ENOMEM;
	c->x.method = q == ASK_TOKEN ? "PUT" : "GET";
	c->x.url = str_c(&c->url);
	c->x.headers = str_c(&c->headers);
	c->x.direct = true;
	c->x.connect_us = CONNECT_US;
	c->x.deadline_us = clock_us() + ANSWER_US;
	return s3_exchange_start(&c->x);
}

static int answer_data(struct s3_exchange *x, const unsigned char *p, size_t n)
{
	struct s3_cred *c = container_of(x, struct s3_cred, x);

	if (c->answer.len + n > MAX_ANSWER)
		return -EPROTO;
	str_addn(&c->answer, p, n);
	return str_error(&c->answer);
}

/* the answer's first line goes into a header or URL of the next question: only what may stand
 * there */
static int take_line(struct s3_cred *c, char *ret, size_t cap)
{
	const char *s = str_c(&c->answer);
	size_t n = strcspn(s, "\r\n");

	if (n == 0 || n >= cap)
		return -EPROTO;
	for (size_t i = 0; i < n; i++) {
		if (s[i] <= ' ' || s[i] > '~')
			return -EPROTO;
	}
	memcpy(ret, s, n);
	ret[n] = '\0';
	return 0;
}

static int take_answer(struct s3_cred *c)
{
	struct s3_keys k;
	int r;

	switch (c->question) {
	case ASK_TOKEN:
		r = take_line(c, c->token, sizeof(c->token));
		return r < 0 ? r : ask(c, ASK_NAME);
	case ASK_NAME:
		r = take_line(c, c->role, sizeof(c->role));
		return r < 0 || strpbrk(c->role, "/?#%\\") ? -EPROTO : ask(c, ASK_KEYS);
	case ASK_KEYS:
		break;
	}
	r = s3_keys_parse_role(str_c(&c->answer), c->answer.len, &k);
	if (r < 0)
		return r;
	s3_keys_fini(&c->keys);
	c->keys = k;
	c->state = STATE_ROLE;
	/* even if the keys that came are nearly over: not asked for again at once */
	c->pause_until_us = clock_us() + PAUSE_US;
	explicit_bzero(c->answer.s, c->answer.len);
	c->changed(c->arg);
	return 0;
}

static void answered(struct s3_exchange *x, int r)
{
	struct s3_cred *c = container_of(x, struct s3_cred, x);

	if (r < 0 || x->status != 200 || take_answer(c) < 0)
		give_up(c);
}

static void start_asking(struct s3_cred *c)
{
	enum state before = c->state;

	c->state = STATE_ASKING;
	if (ask(c, ASK_TOKEN) < 0) {
		c->state = before;
		c->pause_until_us = clock_us() + PAUSE_US;
	}
}

const struct s3_keys *s3_cred_get(struct s3_cred *c)
{
	int64_t now;

	if (c->state == STATE_FIXED)
		return &c->keys;
	now = now_seconds();
	if (c->state != STATE_ASKING && clock_us() >= c->pause_until_us &&
	    (!c->keys.access || now + EARLY >= c->keys.expires))
		start_asking(c);
	if (c->state != STATE_ASKING || (c->keys.access && now < c->keys.expires))
		return &c->keys;
	return NULL;
}

bool s3_cred_renew(struct s3_cred *c)
{
	if (c->state == STATE_FIXED || clock_us() < c->pause_until_us)
		return false;
	c->keys.expires = 1; /* long ago: s3_cred_get waits for others */
	if (c->state != STATE_ASKING)
		start_asking(c);
	return c->state == STATE_ASKING;
}

int s3_cred_new(const struct object_conf *conf, struct s3_http *http, void (*changed)(void *arg),
		void *arg, struct s3_cred **ret)
{
	const char *base = getenv("AWS_EC2_METADATA_SERVICE_ENDPOINT");
	const char *off = getenv("AWS_EC2_METADATA_DISABLED");
	struct s3_cred *c = calloc(1, sizeof(*c));
	size_t n;
	int r;

	if (!c)
		return -ENOMEM;
	r = s3_keys_static(conf, &c->keys);
	if (r == -ENOMEM) {
		free(c);
		return r;
	}
	c->state = r == 0 || (off && strcmp(off, "true") == 0) ? STATE_FIXED : STATE_NONE;
	c->changed = changed;
	c->arg = arg;
	(void)snprintf(c->base, sizeof(c->base), "%s",
		       base && *base ? base : "http://169.254.169.254");
	n = strlen(c->base);
	if (c->base[n - 1] == '/')
		c->base[n - 1] = '\0';
	s3_exchange_init(&c->x, http);
	c->x.data = answer_data;
	c->x.done = answered;
	*ret = c;
	return 0;
}

void s3_cred_free(struct s3_cred *c)
{
	if (!c)
		return;
	s3_exchange_fini(&c->x);
	s3_keys_fini(&c->keys);
	explicit_bzero(c->token, sizeof(c->token));
	str_fini(&c->url);
	str_fini(&c->headers);
	str_fini(&c->answer);
	free(c);
}
