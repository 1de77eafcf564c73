/* SPDX-License-Identifier: Apache-2.0 */
/* Counters, gauges and latency histograms, printed as Prometheus text. A family is described by one
 * row of a table (cached/metrics.def, client/metrics.def, …): name, type, help. Counting is
 * lock-free (relaxed atomics in per-thread shards); reading sums the shards. Names follow
 * Prometheus: stoke_<thing>_total, _bytes, _seconds. */
#ifndef STOKE_COMMON_METRICS_H
#define STOKE_COMMON_METRICS_H

#include "common/str.h"

enum metric_type { METRIC_COUNTER, METRIC_GAUGE, METRIC_HISTOGRAM };

struct metrics; /* a registry: one per process */
struct metric;	/* one time series */

struct metrics *metrics_new(void); /* NULL: no memory */
void metrics_free(struct metrics *m);
/* The series name{labels} is found or made. labels: "" or `source="ram",result="hit"`. help is kept
 * by pointer. NULL: no memory. Never freed before the registry. */
struct metric *metrics_get(struct metrics *m, const char *name, const char *labels,
			   enum metric_type type, const char *help);
/* appends name="value" to labels, escaped, behind a comma if something is there already: for values
 * that come from outside */
void metrics_label(struct str *labels, const char *name, const char *value);
/* as metrics_get for a gauge or counter whose value is asked for when it is printed (no lock is
 * held). 0, -ENOMEM, or -EEXIST */
int metrics_callback(struct metrics *m, const char *name, const char *labels, enum metric_type type,
		     const char *help, double (*fn)(void *arg), void *arg);

/* counter; harmless on NULL, as the next two, so that tests need no registry */
void metric_add(struct metric *m, uint64_t n);
/* gauge */
void metric_set(struct metric *m, int64_t v);
/* histogram in seconds, buckets doubling from 50 us to 105 s */
void metric_observe_us(struct metric *m, uint64_t us);
/* counter's sum, gauge's value, or histogram's count */
uint64_t metric_value(const struct metric *m);
/* q in 0…1, from the histogram's buckets; 0 when nothing was observed */
uint64_t metric_quantile_us(const struct metric *m, double q);
/* appends everything in exposition format (# HELP, # TYPE, sorted by name) */
void metrics_print(struct metrics *m, struct str *out);

#endif
