/* SPDX-License-Identifier: Apache-2.0 */
/* Bucket URLs of S3 and its relatives. Pure (but for the environment's region); any thread. */
#include "common/object/object_s3_url.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <strings.h>

enum form {
	FORM_S3,    /* Amazon's rules, path style elsewhere */
	FORM_PATH,  /* HOST/BUCKET[/PREFIX] */
	FORM_VHOST, /* BUCKET.ENDPOINT */
};

/* label: the one of the host that names the region, counted from the bucket's (0); its text before
 * the region is cut off */
static const struct storage {
	const char *name;
	enum form form;
	int label;
	const char *cut;
} storages[] = {
	{"s3", FORM_S3, 0, ""},		{"minio", FORM_PATH, 0, ""},
	{"ceph", FORM_PATH, 0, ""},    /* its S3 gateway; JuiceFS's own ceph://POOL is refused */
	{"wasabi", FORM_VHOST, 2, ""}, /* BUCKET.s3.REGION.wasabisys.com */
	{"scw", FORM_VHOST, 2, ""},    /* BUCKET.s3.REGION.scw.cloud */
	{"space", FORM_VHOST, 1, ""},  /* BUCKET.REGION.digitaloceanspaces.com */
	{"obs", FORM_VHOST, 2, ""},    /* BUCKET.obs.REGION.myhuaweicloud.com */
	{"cos", FORM_VHOST, 2, ""},    /* BUCKET-APPID.cos.REGION.myqcloud.com */
	{"oss", FORM_VHOST, 1, ""}, /* BUCKET.oss-REGION.aliyuncs.com; the region is "oss-REGION" */
	{"ks3", FORM_VHOST, 1, "ks3-"}, /* BUCKET.ks3-REGION.ksyuncs.com */
	{"eos", FORM_VHOST, 1, "eos-"}, /* BUCKET.eos-REGION.cmecloud.cn */
};

static const struct storage *storage_find(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(storages); i++) {
		if (strcasecmp(name, storages[i].name) == 0)
			return &storages[i];
	}
	return NULL;
}

bool s3_storage_known(const char *storage)
{
	return storage_find(storage) != NULL;
}

/* the URL cut into its pieces, none of them empty but path and query */
struct pieces {
	bool https, has_scheme;
	char host[280];
	char port[8];
	char path[400]; /* without slashes around it */
	char query[200];
};

static int copy(char *to, size_t cap, const char *from, size_t n)
{
	if (n >= cap)
		return -EINVAL;
	memcpy(to, from, n);
	to[n] = '\0';
	return 0;
}

static bool host_is_valid(const char *h)
{
	if (*h == '[')
		return strspn(h + 1, "0123456789abcdefABCDEF:.") == strlen(h) - 2 &&
		       h[strlen(h) - 1] == ']';
	return *h &&
	       strspn(h, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") ==
		       strlen(h);
}

static int split_authority(const char *a, size_t n, struct pieces *p)
{
	size_t host = a[0] == '[' ? strcspn(a, "]") + 1 : strcspn(a, ":");
	const char *port;
	size_t port_len;

	if (host > n)
		host = n;
	if (copy(p->host, sizeof(p->host), a, host) < 0 || !host_is_valid(p->host))
		return -EINVAL;
	if (host == n)
		return 0;
	port = a + host + 1;
	port_len = n - host - 1;
	if (a[host] != ':' || port_len == 0 || port_len > 5 ||
	    strspn(port, "0123456789") < port_len)
		return -EINVAL;
	if ((p->https && port_len == 3 && memcmp(port, "443", 3) == 0) ||
	    (!p->https && port_len == 2 && memcmp(port, "80", 2) == 0))
		return 0; /* the scheme's own is not in the Host header */
	return copy(p->port, sizeof(p->port), port, port_len);
}

static int split(const char *url, struct pieces *p)
{
	const char *scheme = strstr(url, "://");
	const char *at = scheme ? scheme + 3 : url;
	size_t authority = strcspn(at, "/?");
	const char *path = at + authority;
	size_t n = strcspn(path, "?");

	p->has_scheme = scheme != NULL;
	p->https = scheme && strncasecmp(url, "https://", 8) == 0;
	if (scheme && !p->https && strncasecmp(url, "http://", 7) != 0)
		return -EINVAL;
	if (path[n] == '?' &&
	    copy(p->query, sizeof(p->query), path + n + 1, strlen(path + n + 1)) < 0)
		return -EINVAL;
	while (n && *path == '/') {
		path++;
		n--;
	}
	while (n && path[n - 1] == '/')
		n--;
	if (copy(p->path, sizeof(p->path), path, n) < 0)
		return -EINVAL;
	return split_authority(at, authority, p);
}

static bool is_amazon(const char *host)
{
	return strstr(host, ".amazonaws.com") != NULL;
}

/* bytes of the URL's parts come from people: all that is kept was checked for length here */
static int set_host(struct s3_endpoint *e, const char *host, const char *port)
{
	int n = snprintf(e->host, sizeof(e->host), "%s%s%s", host, *port ? ":" : "", port);

	return n > 0 && (size_t)n < sizeof(e->host) ? 0 : -EINVAL;
}

static void set_region(struct s3_endpoint *e, const char *region, size_t n)
{
	if (n && n < sizeof(e->region) && !e->region[0])
		(void)copy(e->region, sizeof(e->region), region, n);
}

/* "s3.eu-west-1.amazonaws.com", "s3-eu-west-1.…", "s3.dualstack.eu-west-1.…", "s3.amazonaws.com" ->
 * the region, which the last has none of */
static void region_of_amazon(struct s3_endpoint *e, const char *host)
{
	const char *p = host;

	if (strncmp(p, "s3.", 3) == 0 || strncmp(p, "s3-", 3) == 0)
		p += 3;
	if (strncmp(p, "dualstack.", 10) == 0)
		p += 10;
	if (strncmp(p, "fips.", 5) == 0)
		p += 5;
	if (strncmp(p, "amazonaws.com", 13) == 0 || strncmp(p, "external-1", 10) == 0)
		set_region(e, "us-east-1", 9);
	else
		set_region(e, p, strcspn(p, "."));
}

static void region_of_environment(struct s3_endpoint *e, bool minio)
{
	static const char *const names[] = {"MINIO_REGION", "AWS_REGION", "AWS_DEFAULT_REGION"};

	for (size_t i = minio ? 0 : 1; i < ARRAY_LEN(names); i++) {
		const char *v = getenv(names[i]);

		if (v)
			set_region(e, v, strlen(v));
	}
	set_region(e, "us-east-1", 9);
}

static void region_of_query(struct s3_endpoint *e, const char *query)
{
	const char *p = strstr(query, "region=");

	if (p && (p == query || p[-1] == '&'))
		set_region(e, p + 7, strcspn(p + 7, "&"));
}

/* label n of host, counted from 0, without cut in front and "-internal" behind */
static void region_of_label(struct s3_endpoint *e, const char *host, int label, const char *cut)
{
	size_t n;

	while (label-- > 0) {
		host = strchr(host, '.');
		if (!host)
			return;
		host++;
	}
	if (strncmp(host, cut, strlen(cut)) == 0)
		host += strlen(cut);
	n = strcspn(host, ".");
	if (n > 9 && memcmp(host + n - 9, "-internal", 9) == 0)
		n -= 9;
	set_region(e, host, n);
}

/* a bucket whose name is one DNS label can stand before the host; with dots its certificate would
 * not match */
static bool fits_host(const char *bucket)
{
	return strlen(bucket) <= 63 &&
	       strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(bucket);
}

static bool is_address(const char *host)
{
	struct in_addr a;

	return host[0] == '[' || strcmp(host, "localhost") == 0 ||
	       inet_pton(AF_INET, host, &a) == 1;
}

static int amazon_host(struct s3_endpoint *e, const char *endpoint)
{
	char host[300];
	int n;

	e->path_style = !fits_host(e->bucket);
	if (e->path_style)
		return set_host(e, endpoint, "");
	n = snprintf(host, sizeof(host), "%s.%s", e->bucket, endpoint);
	return n < (int)sizeof(host) ? set_host(e, host, "") : -EINVAL;
}

/* a bucket's name alone: Amazon's, in the region of the environment */
static int form_name_only(struct pieces *p, struct s3_endpoint *e)
{
	char endpoint[128];

	if (copy(e->bucket, sizeof(e->bucket), p->host, strlen(p->host)) < 0)
		return -EINVAL;
	e->https = !p->has_scheme || p->https;
	region_of_environment(e, false);
	(void)snprintf(endpoint, sizeof(endpoint), "s3.%s.amazonaws.com", e->region);
	return amazon_host(e, endpoint);
}

static int form_path(const struct pieces *p, struct s3_endpoint *e, bool with_prefix)
{
	size_t n = strcspn(p->path, "/");

	e->path_style = true;
	if (n == 0 || copy(e->bucket, sizeof(e->bucket), p->path, n) < 0)
		return -EINVAL;
	if (with_prefix && p->path[n] &&
	    snprintf(e->prefix, sizeof(e->prefix), "%s/", p->path + n + 1) >=
		    (int)sizeof(e->prefix))
		return -EINVAL;
	return set_host(e, p->host, p->port);
}

static int form_vhost(const struct pieces *p, struct s3_endpoint *e, const struct storage *st)
{
	size_t n = strcspn(p->host, ".");

	if (p->path[0])
		return form_path(p, e, false);
	if (!p->host[n] || is_address(p->host) ||
	    copy(e->bucket, sizeof(e->bucket), p->host, n) < 0)
		return -EINVAL;
	region_of_label(e, p->host, st->label, st->cut);
	return set_host(e, p->host, p->port);
}

static int form_s3(struct pieces *p, struct s3_endpoint *e)
{
	const char *s3;
	size_t n;

	if (p->path[0]) {
		if (!is_amazon(p->host))
			return form_path(p, e, false);
		region_of_amazon(e, p->host);
		n = strcspn(p->path, "/");
		return copy(e->bucket, sizeof(e->bucket), p->path, n) < 0 ? -EINVAL
									  : amazon_host(e, p->host);
	}
	if (is_address(p->host))
		return -EINVAL;
	if (!strchr(p->host, '.'))
		return p->port[0] ? -EINVAL : form_name_only(p, e);
	s3 = strstr(p->host, ".s3");
	n = is_amazon(p->host) && s3 ? (size_t)(s3 - p->host) : strcspn(p->host, ".");
	if (n == 0 || copy(e->bucket, sizeof(e->bucket), p->host, n) < 0)
		return -EINVAL;
	if (is_amazon(p->host)) {
		region_of_amazon(e, s3 ? s3 + 1 : p->host + n + 1);
		if (!strstr(p->host, ".vpce.amazonaws.com"))
			return amazon_host(e, p->host + n + 1);
		/* BUCKET.vpce-….s3.REGION.vpce.amazonaws.com, an endpoint of one's own network:
		 * path style, as JuiceFS */
		n = strcspn(p->host, ".");
		e->bucket[n] = '\0';
		e->path_style = true;
		return set_host(e, p->host + n + 1, p->port);
	}
	if (strstr(p->host, ".aliyuncs.com")) {
		region_of_label(e, p->host, 1, "");
		return set_host(e, p->host, p->port);
	}
	e->path_style = true;
	return set_host(e, p->host + n + 1, p->port);
}

static int parse_form(const struct storage *st, struct pieces *p, struct s3_endpoint *e)
{
	switch (st->form) {
	case FORM_S3:
		return form_s3(p, e);
	case FORM_PATH:
		return form_path(p, e, true);
	case FORM_VHOST:
		return form_vhost(p, e, st);
	}
	return -EINVAL;
}

int s3_endpoint_parse(const char *storage, const char *url, struct s3_endpoint *ret,
		      struct str *err)
{
	const struct storage *st = storage_find(storage);
	struct pieces p = {.https = false};
	struct s3_endpoint e = {.https = false};

	if (!st || split(url, &p) < 0)
		goto bad;
	/* as JuiceFS: without a scheme, Amazon and the providers are reached by https, a machine of
	 * one's own by http */
	if (!p.has_scheme)
		p.https = st->form == FORM_VHOST || is_amazon(p.host) ||
			  (st->form == FORM_S3 && !strchr(p.host, '.') && !p.path[0]);
	e.https = p.https;
	e.no_checksum = strstr(p.query, "disable-checksum=true") != NULL;
	region_of_query(&e, p.query);
	if (parse_form(st, &p, &e) < 0 || strspn(e.bucket, ".") == strlen(e.bucket))
		goto bad;
	region_of_environment(&e, strcasecmp(st->name, "minio") == 0);
	*ret = e;
	return 0;
bad:
	str_addf(err, "bucket \"%.200s\" is no URL of a bucket for storage %s (such as %s)", url,
		 storage,
		 st && st->form == FORM_VHOST ? "https://BUCKET.ENDPOINT"
					      : "http://HOST:PORT/BUCKET");
	return -EINVAL;
}
