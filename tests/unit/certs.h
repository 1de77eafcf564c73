/* SPDX-License-Identifier: Apache-2.0 */
/* Certificates for tests, made by the openssl command in a folder of /tmp. */
#ifndef STOKE_TESTS_UNIT_CERTS_H
#define STOKE_TESTS_UNIT_CERTS_H

#include "common/tls.h"

struct certs {
	char dir[32], cert[64], key[64], ca[64];
	struct tls_files files;
};

/* name: of the certificate; a new CA signs it */
static inline void certs_make(struct certs *c, const char *name)
{
	char cmd[1024];
	const char *new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 "
			  "-nodes -days 2";

	snprintf(c->dir, sizeof(c->dir), "/tmp/stoke-certs-XXXXXX");
	assert_non_null(mkdtemp(c->dir));
	snprintf(c->cert, sizeof(c->cert), "%s/cert", c->dir);
	snprintf(c->key, sizeof(c->key), "%s/key", c->dir);
	snprintf(c->ca, sizeof(c->ca), "%s/ca", c->dir);
	snprintf(cmd, sizeof(cmd),
		 "umask 077; cd %s && (%s -subj /CN=ca -keyout cakey -out ca && %s -subj /CN=%s "
		 "-addext subjectAltName=DNS:%s -addext basicConstraints=critical,CA:FALSE "
		 "-CA ca -CAkey cakey -keyout key -out cert) 2>log || { cat log; exit 1; }",
		 c->dir, new, new, name, name);
	assert_int_equal(system(cmd), 0);
	c->files = (struct tls_files){.cert = c->cert, .key = c->key, .ca = c->ca};
}

static inline void certs_drop(struct certs *c)
{
	char cmd[64];

	snprintf(cmd, sizeof(cmd), "rm -r %s", c->dir);
	assert_int_equal(system(cmd), 0);
}

#endif
