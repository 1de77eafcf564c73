/* SPDX-License-Identifier: Apache-2.0 */
/* A small HTTP server on a loop: /metrics, /healthz, /readyz. */
#ifndef STOKE_COMMON_HTTP_H
#define STOKE_COMMON_HTTP_H

#include "common/loop.h"
#include "common/metrics.h"

struct http;

/* addr "host:port"; when port is taken and exact is false the next free one of 100 is used (JuiceFS
 * does so). ready (may be NULL) says whether /readyz is 200 or 503. 0 or -errno. *ret_port tells
 * the port in use. */
int http_new(struct loop *l, const char *addr, bool exact, struct metrics *m,
	     bool (*ready)(void *arg), void *arg, struct http **ret, uint16_t *ret_port);
void http_free(struct http *h);

#endif
