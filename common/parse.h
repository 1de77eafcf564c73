/* SPDX-License-Identifier: Apache-2.0 */
/* Strict readers of what people type. All take the whole text: anything left over is -EINVAL; too
 * large is -ERANGE. */
#ifndef STOKE_COMMON_PARSE_H
#define STOKE_COMMON_PARSE_H

#include "common/base.h"

int parse_u64(const char *s, uint64_t max, uint64_t *ret);
int parse_i64(const char *s, int64_t *ret);
int parse_bool(const char *s, bool *ret); /* true false yes no on off 1 0 */
/* bytes; "4M", "4MiB", "1.5G"; a bare number is multiplied by unit (JuiceFS: MiB for
 * --cache-size) */
int parse_size(const char *s, uint64_t unit, uint64_t *ret);
/* microseconds; "12s", "250ms", "1h", "1d", "0.5"; a bare number is seconds, as JuiceFS has it */
int parse_duration(const char *s, uint64_t *ret_us);
/* "host:port", "[v6]:port"; host is copied into host[n] */
int parse_host_port(const char *s, char *host, size_t n, uint16_t *port);

#endif
