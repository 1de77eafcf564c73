/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP exchanges on a loop, over libcurl (private to object_s3*.c). All calls on the loop's thread.
 *
 * Servers' certificates are checked against the system's authorities, or those in the file
 * AWS_CA_BUNDLE names.
 *
 * An exchange is one request and its answer; it is used again for the next one. Time-outs per
 * phase: connecting, until the first byte of the answer once the request is out, and between bytes
 * in either direction. */
#ifndef STOKE_COMMON_OBJECT_OBJECT_S3_HTTP_H
#define STOKE_COMMON_OBJECT_OBJECT_S3_HTTP_H

#include "common/loop.h"
#include "common/str.h"

struct s3_http;

struct s3_exchange {
	/* asked; all of it stays the caller's and unchanged until done */
	const char *method;	   /* GET HEAD PUT POST DELETE */
	const char *url;	   /* complete, encoded as signed */
	const char *headers;	   /* lines "name: value\n" */
	const unsigned char *body; /* PUT, POST */
	size_t body_len;
	bool direct;				 /* never through a proxy of the environment */
	uint64_t connect_us, first_us, stall_us; /* time-outs of the phases; 0: S3_HTTP_…_US */
	uint64_t deadline_us;			 /* 0: none */
	/* a header of the final answer: name in any case, value without blanks around it. May be
	 * NULL */
	void (*header)(struct s3_exchange *x, const char *name, size_t name_len, const char *value);
	/* bytes of the answer's body; a negative return ends the exchange with it */
	int (*data)(struct s3_exchange *x, const unsigned char *p, size_t n);
	/* Once per start, never inside it. 0: the answer came whole (whatever its status);
	 * -ETIMEDOUT: error names the phase, or the deadline passed; -ECONNRESET: the network
	 * failed, worth a retry; -EPROTO: will not work at all (certificate, URL); or what data
	 * returned */
	void (*done)(struct s3_exchange *x, int r);

	/* answered */
	unsigned status; /* 0: none came */
	int64_t length;	 /* Content-Length, -1: none */
	char error[160];

	/* private */
	struct s3_http *http;
	void *easy, *slist;
	char detail[256]; /* curl's own words (CURL_ERROR_SIZE) */
	struct loop_timer watchdog;
	uint64_t last_us; /* bytes moved last */
	size_t sent;
	int abort;
	bool on_wire, answering;
};

enum { S3_HTTP_CONNECT_US = 5000000, S3_HTTP_FIRST_US = 30000000, S3_HTTP_STALL_US = 20000000 };

/* at most max_conns connections are kept open. 0 or -ENOMEM */
int s3_http_new(struct loop *l, unsigned max_conns, struct s3_http **ret);
/* every exchange was finished with s3_exchange_fini before */
void s3_http_free(struct s3_http *h);

void s3_exchange_init(struct s3_exchange *x, struct s3_http *h);
/* ends one under way without done */
void s3_exchange_fini(struct s3_exchange *x);
/* 0, or -ENOMEM: then done will not run */
int s3_exchange_start(struct s3_exchange *x);

#endif
