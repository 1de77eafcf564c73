/* SPDX-License-Identifier: Apache-2.0 */
/* The operations as S3 has them: what is sent for each, how an answer is received, and what it
 * means. Called on the store's loop; no state but the slot's. Sources: the S3 API reference
 * (GetObject, PutObject, DeleteObjects, ListObjectsV2, CreateBucket, error responses). */
#include "common/object/object_s3.h"

#include <stdarg.h>
#include <strings.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/object/object_s3_xml.h"
#include "common/parse.h"
#include "common/sigv4.h"

enum { MAX_ERROR_TEXT = 64 << 10, MAX_LIST_TEXT = 8 << 20 };

/* --- asking --- */

struct question {
	const char *method;
	char path[2048]; /* not encoded */
	struct str query;
	const char *sha256;
	char own_sha256[65];
	char line[6][1200]; /* headers that are signed; a tag may be long */
	size_t n_lines;
};

static int add_line(struct question *q, const char *fmt, ...) _printf_(2, 3);
static int add_line(struct question *q, const char *fmt, ...)
{
	va_list ap;
	int n;

	assert(q->n_lines < ARRAY_LEN(q->line));
	va_start(ap, fmt);
	n = vsnprintf(q->line[q->n_lines], sizeof(q->line[0]), fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= sizeof(q->line[0]))
		return -EINVAL;
	q->n_lines++;
	return 0;
}

static int set_path(const struct s3 *s, struct question *q, const char *key)
{
	const struct s3_endpoint *e = &s->endpoint;
	int n = snprintf(q->path, sizeof(q->path), "%s%s%s%s%s", e->path_style ? "/" : "",
			 e->path_style ? e->bucket : "", key || !e->path_style ? "/" : "",
			 key ? e->prefix : "", key ? key : "");

	return n > 0 && (size_t)n < sizeof(q->path) ? 0 : -EINVAL;
}

static int ask_get(struct s3_slot *slot, struct question *q)
{
	const struct object_req *req = slot->req;
	unsigned long long from = req->off + req->got;
	int r = 0;

	q->method = "GET";
	if (req->len)
		r = add_line(q, "range: bytes=%llu-%llu", from,
			     (unsigned long long)(req->off + req->len - 1));
	else if (from)
		r = add_line(q, "range: bytes=%llu-", from);
	if (r == 0 && req->got)
		r = add_line(q, "if-match: %s", slot->etag);
	return r;
}

/* "key=value" as a query's text has it */
static int add_tag(struct question *q, const char *tag)
{
	size_t n = strcspn(tag, "=");
	char *key = strndup(tag, n);
	struct str text = STR_INIT;
	int r = -ENOMEM;

	if (key) {
		sigv4_encode(&text, key, false);
		str_add(&text, "=");
		sigv4_encode(&text, tag[n] ? tag + n + 1 : "", false);
		r = str_error(&text);
	}
	if (r == 0)
		r = add_line(q, "x-amz-tagging: %s", str_c(&text));
	str_fini(&text);
	free(key);
	return r;
}

/* class and tag of the file's tier; the sum of what is stored, unless the bucket's URL says that
 * the server does not take it */
static int add_put_lines(struct s3_slot *slot, struct question *q)
{
	const struct s3 *s = slot->s3;
	const struct object_tier *t = s->n_tiers ? &s->tiers[0] : NULL;
	int r = 0;

	for (size_t i = 1; i < s->n_tiers; i++)
		if (s->tiers[i].id == slot->req->tier)
			t = &s->tiers[i];
	if (!s->endpoint.no_checksum)
		r = add_line(q, "x-amz-meta-crc32c: %u", slot->sums->crc);
	if (r == 0 && t && t->storage_class[0])
		r = add_line(q, "x-amz-storage-class: %s", t->storage_class);
	if (r == 0 && t && t->tag[0])
		r = add_tag(q, t->tag);
	return r;
}

static int ask_put(struct s3_slot *slot, struct question *q)
{
	const struct object_req *req = slot->req;
	int r = add_put_lines(slot, q);

	q->method = "PUT";
	q->sha256 = slot->sums->sha256;
	slot->x.body = req->buf;
	slot->x.body_len = req->cap;
	if (r == 0 && req->if_absent)
		r = add_line(q, "if-none-match: *");
	return r;
}

static void add_xml(struct str *out, const char *s)
{
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c < ' ' || strchr("<>&\"'", c))
			str_addf(out, "&#%u;", c);
		else
			str_addn(out, s, 1);
	}
}

static void set_body(struct s3_slot *slot, struct question *q)
{
	slot->x.body = (const unsigned char *)str_c(&slot->body);
	slot->x.body_len = slot->body.len;
	sha256_hex(slot->x.body, slot->x.body_len, q->own_sha256);
	q->sha256 = q->own_sha256;
}

static int ask_delete_many(struct s3_slot *slot, struct question *q)
{
	const struct object_req *req = slot->req;
	char md5[25];

	str_reset(&slot->body);
	str_add(&slot->body, "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
			     "<Quiet>true</Quiet>");
	for (size_t i = 0; i < req->n_keys; i++) {
		str_add(&slot->body, "<Object><Key>");
		add_xml(&slot->body, slot->s3->endpoint.prefix);
		add_xml(&slot->body, req->keys[i]);
		str_add(&slot->body, "</Key></Object>");
	}
	str_add(&slot->body, "</Delete>");
	if (str_error(&slot->body))
		return -ENOMEM;
	q->method = "POST";
	str_add(&q->query, "delete=");
	set_body(slot, q);
	md5_base64(slot->x.body, slot->x.body_len, md5);
	return add_line(q, "content-md5: %s", md5);
}

static int ask_list(struct s3_slot *slot, struct question *q)
{
	const struct object_req *req = slot->req;
	const char *prefix = slot->s3->endpoint.prefix;

	q->method = "GET";
	str_addf(&q->query, "encoding-type=url&list-type=2&max-keys=%d&prefix=", S3XML_MAX_KEYS);
	sigv4_encode(&q->query, prefix, false);
	sigv4_encode(&q->query, req->key, false);
	if (req->start_after && *req->start_after) {
		str_add(&q->query, "&start-after=");
		sigv4_encode(&q->query, prefix, false);
		sigv4_encode(&q->query, req->start_after, false);
	}
	return 0;
}

static int ask_create(struct s3_slot *slot, struct question *q)
{
	const char *region = slot->s3->endpoint.region;

	q->method = "PUT";
	str_reset(&slot->body);
	if (strcmp(region, "us-east-1") != 0 && !slot->no_location) {
		str_add(&slot->body, "<CreateBucketConfiguration "
				     "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
				     "<LocationConstraint>");
		add_xml(&slot->body, region);
		str_add(&slot->body, "</LocationConstraint></CreateBucketConfiguration>");
	}
	if (str_error(&slot->body))
		return -ENOMEM;
	set_body(slot, q);
	return 0;
}

static int ask_restore(struct s3_slot *slot, struct question *q)
{
	q->method = "POST";
	str_add(&q->query, "restore=");
	str_reset(&slot->body);
	str_addf(&slot->body,
		 "<RestoreRequest xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
		 "<Days>%u</Days></RestoreRequest>",
		 slot->req->days);
	if (str_error(&slot->body))
		return -ENOMEM;
	set_body(slot, q);
	return 0;
}

static int ask(struct s3_slot *slot, struct question *q)
{
	switch (slot->req->op) {
	case OBJECT_GET:
		return ask_get(slot, q);
	case OBJECT_PUT:
		return ask_put(slot, q);
	case OBJECT_HEAD:
		q->method = "HEAD";
		return 0;
	case OBJECT_DELETE:
		q->method = "DELETE";
		return 0;
	case OBJECT_DELETE_MANY:
		return ask_delete_many(slot, q);
	case OBJECT_LIST:
		return ask_list(slot, q);
	case OBJECT_CREATE_BUCKET:
		return ask_create(slot, q);
	case OBJECT_RESTORE:
		return ask_restore(slot, q);
	}
	return -EINVAL;
}

static int64_t now_seconds(void)
{
	int64_t sec;
	uint32_t nsec;

	clock_real(&sec, &nsec);
	return sec;
}

/* all headers of the request into slot->headers, signed when there are keys */
static int sign(struct s3_slot *slot, struct question *q, const struct s3_keys *k)
{
	const char *lines[ARRAY_LEN(q->line)];
	struct sigv4_request r = {
		.method = q->method,
		.host = slot->s3->endpoint.host,
		.path = q->path,
		.query = str_c(&q->query),
		.payload_sha256 = q->sha256,
		.region = slot->s3->endpoint.region,
		.service = "s3",
		.access_key = k->access,
		.secret_key = k->secret,
		.session_token = k->token,
		.when = now_seconds(),
		.headers = lines,
		.n_headers = q->n_lines,
	};

	str_reset(&slot->headers);
	for (size_t i = 0; i < q->n_lines; i++) {
		lines[i] = q->line[i];
		str_addf(&slot->headers, "%s\n", q->line[i]);
	}
	return k->access ? sigv4_sign(&r, &slot->headers) : str_error(&slot->headers);
}

static bool has_no_key(enum object_op op)
{
	return op == OBJECT_LIST || op == OBJECT_DELETE_MANY || op == OBJECT_CREATE_BUCKET;
}

int s3_op_build(struct s3_slot *slot, const struct s3_keys *k)
{
	static const char empty[] =
		"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
	const struct s3_endpoint *e = &slot->s3->endpoint;
	struct question q = {.sha256 = empty};
	int r;

	slot->x.body = NULL;
	slot->x.body_len = 0;
	r = set_path(slot->s3, &q, has_no_key(slot->req->op) ? NULL : slot->req->key);
	if (r == 0)
		r = ask(slot, &q);
	if (r == 0)
		r = str_error(&q.query);
	if (r == 0)
		r = sign(slot, &q, k);
	if (r == 0) {
		str_reset(&slot->url);
		str_addf(&slot->url, "%s://%s", e->https ? "https" : "http", e->host);
		sigv4_encode(&slot->url, q.path, true);
		if (q.query.len)
			str_addf(&slot->url, "?%s", str_c(&q.query));
		r = str_error(&slot->url);
	}
	str_fini(&q.query);
	slot->x.method = q.method;
	slot->x.url = str_c(&slot->url);
	slot->x.headers = str_c(&slot->headers);
	return r;
}

/* --- receiving --- */

static bool is(const char *name, size_t n, const char *what)
{
	return strlen(what) == n && strncasecmp(name, what, n) == 0;
}

static void keep(char *to, size_t cap, const char *value)
{
	if (strlen(value) < cap)
		(void)snprintf(to, cap, "%s", value);
}

void s3_op_header(struct s3_exchange *x, const char *name, size_t n, const char *value)
{
	struct s3_slot *slot = container_of(x, struct s3_slot, x);
	struct s3_answer *a = &slot->answer;
	uint64_t v;

	if (is(name, n, "etag") && value[0] == '"') {
		keep(a->etag, sizeof(a->etag), value);
	} else if (is(name, n, "x-amz-bucket-region")) {
		keep(a->region, sizeof(a->region), value);
	} else if (is(name, n, "x-amz-meta-crc32c")) {
		a->has_crc = parse_u64(value, UINT32_MAX, &v) == 0;
		if (a->has_crc)
			a->crc = (uint32_t)v;
	} else if (is(name, n, "content-range")) {
		unsigned long long from;

		a->has_range = sscanf(value, "bytes %llu-", &from) == 1;
		if (a->has_range)
			a->range_off = from;
	}
}

static uint64_t wanted(const struct object_req *req)
{
	return req->len ? req->len : req->cap;
}

/* The headers of a good answer to a GET: is it the object and the range that were asked for? */
static int get_begin(struct s3_slot *slot)
{
	struct object_req *req = slot->req;
	const struct s3_answer *a = &slot->answer;
	uint64_t from = req->off + req->got;
	int64_t length = slot->x.length;

	if (slot->x.status == 206 ? !a->has_range || a->range_off != from : from != 0) {
		object_reason(req, "the server sent another range than asked for");
		return -EPROTO;
	}
	if (req->got && strcmp(a->etag, slot->etag) != 0) {
		object_reason(req, "it was replaced while it was read");
		return -ESTALE;
	}
	if (length >= 0 && (uint64_t)length > wanted(req) - req->got) {
		object_reason(req, "%lld bytes came, at most %llu were expected", (long long)length,
			      (unsigned long long)(wanted(req) - req->got));
		return req->len ? -EPROTO : -EMSGSIZE;
	}
	if (req->got == 0) {
		/* without a length nobody knows whether a rest is missing: then there is nothing to
		 * go on with */
		keep(slot->etag, sizeof(slot->etag), length >= 0 ? a->etag : "");
		slot->has_crc = a->has_crc && req->off == 0 && req->len == 0;
		slot->want_crc = a->crc;
	}
	slot->growing = length >= 0 && req->got + (uint64_t)length == wanted(req);
	return 0;
}

static int get_data(struct s3_slot *slot, const unsigned char *p, size_t n)
{
	struct object_req *req = slot->req;
	int r;

	if (!slot->begun) {
		slot->begun = true;
		r = get_begin(slot);
		if (r < 0)
			return r;
	}
	if (n > wanted(req) - req->got) {
		object_reason(req, "more than %llu bytes came", (unsigned long long)wanted(req));
		return -EMSGSIZE;
	}
	memcpy(req->buf + req->got, p, n);
	if (slot->has_crc)
		slot->crc = crc32c(slot->crc, p, n);
	req->got += n;
	if (slot->growing && req->progress) {
		slot->shown = true;
		req->progress(req, req->got);
	}
	return 0;
}

int s3_op_data(struct s3_exchange *x, const unsigned char *p, size_t n)
{
	struct s3_slot *slot = container_of(x, struct s3_slot, x);
	bool good = x->status == 200 || x->status == 206;
	size_t cap = good ? MAX_LIST_TEXT : MAX_ERROR_TEXT;

	if (good && slot->req->op == OBJECT_GET)
		return get_data(slot, p, n);
	if (n > cap - slot->text.len) {
		if (!good)
			return 0; /* the start says enough */
		object_reason(slot->req, "the answer is longer than %zu bytes", cap);
		return -EPROTO;
	}
	str_addn(&slot->text, p, n);
	return str_error(&slot->text);
}

/* --- judging --- */

static enum s3_verdict ended(int status, int *ret_status)
{
	*ret_status = status;
	return S3_END;
}

static enum s3_verdict judge_get(struct s3_slot *slot, int *ret_status)
{
	struct object_req *req = slot->req;

	/* an object, or the rest of it, without bytes: its headers were not judged yet */
	if (!slot->begun) {
		int r = get_begin(slot);

		if (r < 0)
			return ended(r == -EPROTO ? -EIO : r, ret_status);
	}
	if (!slot->has_crc || slot->crc == slot->want_crc)
		return ended(0, ret_status);
	object_reason(req, "its bytes do not match their CRC-32C (%u, stored %u)", slot->crc,
		      slot->want_crc);
	if (slot->shown)
		return ended(-EIO, ret_status);
	req->got = 0;
	return S3_RETRY;
}

static enum s3_verdict judge_list(struct s3_slot *slot, int *ret_status)
{
	struct object_req *req = slot->req;
	size_t skip = strlen(slot->s3->endpoint.prefix);
	struct s3xml_listing l;
	int r = s3xml_list(str_c(&slot->text), slot->text.len, &l);

	if (r < 0) {
		object_reason(req, "the server's list is no valid XML");
		return ended(r == -EPROTO ? -EIO : r, ret_status);
	}
	for (size_t i = 0; i < l.n; i++) {
		char *key = l.info[i].key;

		if (strncmp(key, slot->s3->endpoint.prefix, skip) != 0) {
			object_reason(req, "the server listed a key outside of the prefix");
			s3xml_listing_fini(&l);
			return ended(-EIO, ret_status);
		}
		memmove(key, key + skip, strlen(key + skip) + 1);
	}
	req->list = l.info;
	req->n_list = l.n;
	req->more = l.more && l.n;
	return ended(0, ret_status);
}

static enum s3_verdict judge_delete_many(struct s3_slot *slot, int *ret_status)
{
	struct s3xml_error e;
	int r = s3xml_delete(str_c(&slot->text), slot->text.len, &e);

	if (r == -EPROTO)
		object_reason(slot->req, "the server's answer is no valid XML");
	if (r < 0)
		return ended(r == -EPROTO ? -EIO : r, ret_status);
	if (r == 0)
		return ended(0, ret_status);
	object_reason(slot->req, "%d keys stayed: %.60s: %s", r, e.key, e.code);
	if (strcmp(e.code, "InternalError") == 0 || strcmp(e.code, "ServiceUnavailable") == 0)
		return S3_RETRY;
	if (strcmp(e.code, "SlowDown") == 0)
		return S3_RETRY_LATER;
	return ended(strcmp(e.code, "AccessDenied") == 0 ? -EACCES : -EIO, ret_status);
}

static enum s3_verdict judge_good(struct s3_slot *slot, int *ret_status)
{
	switch (slot->req->op) {
	case OBJECT_GET:
		return judge_get(slot, ret_status);
	case OBJECT_HEAD:
		if (slot->x.length >= 0)
			slot->req->got = (size_t)slot->x.length;
		break;
	case OBJECT_LIST:
		return judge_list(slot, ret_status);
	case OBJECT_DELETE_MANY:
		return judge_delete_many(slot, ret_status);
	case OBJECT_PUT:
	case OBJECT_DELETE:
	case OBJECT_CREATE_BUCKET:
	case OBJECT_RESTORE:
		break;
	}
	return ended(0, ret_status);
}

static enum s3_verdict judge_transport(struct s3_slot *slot, int r, int *ret_status)
{
	struct object_req *req = slot->req;

	if (!slot->x.abort) /* else the hook that refused the data said why */
		object_reason(req, "%s", slot->x.error);
	if (r == -ETIMEDOUT && clock_left(req->deadline_us) == 0)
		return ended(-ETIMEDOUT, ret_status);
	if (r == -ETIMEDOUT || r == -ECONNRESET)
		return S3_RETRY;
	return ended(r == -EPROTO ? -EIO : r, ret_status);
}

static bool code_is(const struct s3xml_error *e, const char *code)
{
	return strcmp(e->code, code) == 0;
}

/* 404 and its kin: what is not there? */
static int absent(const struct s3_slot *slot, const struct s3xml_error *e)
{
	enum object_op op = slot->req->op;

	if (code_is(e, "NoSuchBucket") || op == OBJECT_LIST || op == OBJECT_DELETE_MANY ||
	    op == OBJECT_PUT)
		return -ENODATA;
	return op == OBJECT_DELETE ? 0 : -ENOENT;
}

static enum s3_verdict judge_expired(struct s3_slot *slot, int *ret_status)
{
	if (slot->renewed || !s3_cred_renew(slot->s3->cred))
		return ended(-EACCES, ret_status);
	slot->renewed = true;
	return S3_AGAIN;
}

static enum s3_verdict judge_400(struct s3_slot *slot, const struct s3xml_error *e, int *ret_status)
{
	struct s3_endpoint *ep = &slot->s3->endpoint;

	if (code_is(e, "RequestTimeout") || code_is(e, "IncompleteBody") ||
	    code_is(e, "BadDigest") || code_is(e, "XAmzContentSHA256Mismatch"))
		return S3_RETRY; /* something was lost or changed on the way */
	if (code_is(e, "ExpiredToken") || code_is(e, "TokenRefreshRequired"))
		return judge_expired(slot, ret_status);
	if (slot->req->op == OBJECT_CREATE_BUCKET && !slot->no_location && slot->body.len) {
		/* a server of one's own does not know Amazon's names of regions */
		slot->no_location = true;
		return S3_AGAIN;
	}
	if (code_is(e, "AuthorizationHeaderMalformed")) {
		if (slot->relocated || !slot->answer.region[0] ||
		    strcmp(slot->answer.region, ep->region) == 0)
			return ended(-EACCES, ret_status);
		slot->relocated = true;
		keep(ep->region, sizeof(ep->region), slot->answer.region);
		return S3_AGAIN;
	}
	if (code_is(e, "InvalidBucketName") || code_is(e, "KeyTooLongError"))
		return ended(-EINVAL, ret_status);
	return ended(-EIO, ret_status);
}

static enum s3_verdict judge_409(struct s3_slot *slot, const struct s3xml_error *e, int *ret_status)
{
	if (slot->req->op == OBJECT_CREATE_BUCKET && strncmp(e->code, "BucketAlready", 13) == 0)
		return ended(-EEXIST, ret_status);
	/* it is under way already */
	if (slot->req->op == OBJECT_RESTORE && code_is(e, "RestoreAlreadyInProgress"))
		return ended(0, ret_status);
	if (code_is(e, "OperationAborted") || code_is(e, "ConditionalRequestConflict"))
		return S3_RETRY;
	return ended(-EIO, ret_status);
}

static enum s3_verdict judge_bad(struct s3_slot *slot, const struct s3xml_error *e, int *ret_status)
{
	struct object_req *req = slot->req;

	switch (slot->x.status) {
	case 400:
		return judge_400(slot, e, ret_status);
	case 401:
		return ended(-EACCES, ret_status);
	case 403:
		if (code_is(e, "ExpiredToken") || code_is(e, "ExpiredTokenException"))
			return judge_expired(slot, ret_status);
		/* it is not archived */
		if (req->op == OBJECT_RESTORE && code_is(e, "InvalidObjectState"))
			return ended(0, ret_status);
		return ended(-EACCES, ret_status);
	case 404:
		return ended(absent(slot, e), ret_status);
	case 408:
		return S3_RETRY;
	case 409:
		return judge_409(slot, e, ret_status);
	case 412:
		if (req->op == OBJECT_PUT)
			return ended(-EEXIST, ret_status);
		return ended(req->got ? -ESTALE : -EIO, ret_status);
	case 416:
		/* behind the end, where there are no bytes */
		if (req->op == OBJECT_GET && req->got == 0)
			return ended(0, ret_status);
		return ended(-EIO, ret_status);
	case 429:
	case 503:
		return S3_RETRY_LATER;
	case 501:
		return ended(-EOPNOTSUPP, ret_status);
	default:
		return slot->x.status >= 500 ? S3_RETRY : ended(-EIO, ret_status);
	}
}

enum s3_verdict s3_op_judge(struct s3_slot *slot, int r, int *ret_status)
{
	struct s3xml_error e = {.code = ""};
	unsigned status = slot->x.status;

	if (r < 0)
		return judge_transport(slot, r, ret_status);
	if (status >= 200 && status < 300)
		return judge_good(slot, ret_status);
	/* a HEAD has no body, and what stands before the gateway may write HTML: then the status
	 * alone speaks */
	if (slot->text.len)
		(void)s3xml_error(str_c(&slot->text), slot->text.len, &e);
	object_reason(slot->req, "HTTP %u%s%s%s%s%s", status, e.code[0] ? " " : "", e.code,
		      e.message[0] ? " (" : "", e.message, e.message[0] ? ")" : "");
	if ((status == 301 || status == 307) && slot->answer.region[0])
		object_reason(slot->req, "HTTP %u: the bucket is in region %s", status,
			      slot->answer.region);
	return judge_bad(slot, &e, ret_status);
}
