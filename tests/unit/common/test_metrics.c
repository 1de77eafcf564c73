/* SPDX-License-Identifier: Apache-2.0 */
/* metrics: nothing counted is lost, and the text is what Prometheus reads. */
#include "common/metrics.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { THREADS = 4, TIMES = 20000 };

static void *count(void *arg)
{
	struct metric **m = arg;

	for (int i = 0; i < TIMES; i++) {
		metric_add(m[0], 3);
		metric_observe_us(m[1], (uint64_t)i);
	}
	return NULL;
}

static void metrics_lose_nothing(void **state)
{
	struct metrics *m = metrics_new();
	struct metric *both[2];
	pthread_t t[THREADS];

	(void)state;
	both[0] = metrics_get(m, "stoke_a_total", "", METRIC_COUNTER, "a");
	both[1] = metrics_get(m, "stoke_b_seconds", "", METRIC_HISTOGRAM, "b");
	for (int i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, count, both);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(metric_value(both[0]), 3 * THREADS * TIMES);
	assert_int_equal(metric_value(both[1]), THREADS * TIMES);
	assert_ptr_equal(both[0], metrics_get(m, "stoke_a_total", "", METRIC_COUNTER, "a"));
	metric_add(NULL, 1);
	metric_set(NULL, 1);
	metric_observe_us(NULL, 1);
	assert_int_equal(metric_value(NULL), 0);
	metrics_free(m);
	metrics_free(NULL);
}

static double answer(void *arg)
{
	return *(double *)arg;
}

static void metrics_print_is_exposition_format(void **state)
{
	struct metrics *m = metrics_new();
	double half = 0.5, big = 123456789012.0, nan_value = NAN;
	struct str out = STR_INIT, label = STR_INIT;

	(void)state;
	metrics_label(&label, "disk", "C:\\a\n\"b\"");
	metrics_label(&label, "n", "1");
	metric_add(metrics_get(m, "z_total", str_c(&label), METRIC_COUNTER, "last\nline \\ \"x\""),
		   7);
	metric_set(metrics_get(m, "m_bytes", "k=\"2\"", METRIC_GAUGE, "gauge"), -5);
	metric_add(metrics_get(m, "m_bytes", "k=\"1\"", METRIC_GAUGE, "gauge"), 0);
	assert_int_equal(metrics_callback(m, "a_ratio", "", METRIC_GAUGE, "asked", answer, &half),
			 0);
	assert_int_equal(
		metrics_callback(m, "a_ratio", "x=\"b\"", METRIC_GAUGE, "asked", answer, &big), 0);
	assert_int_equal(metrics_callback(m, "a_ratio", "x=\"c\"", METRIC_GAUGE, "asked", answer,
					  &nan_value),
			 0);
	assert_int_equal(metrics_callback(m, "a_ratio", "", METRIC_GAUGE, "asked", answer, &big),
			 -EEXIST);
	metrics_print(m, &out);
	assert_string_equal(str_c(&out), "# HELP a_ratio asked\n"
					 "# TYPE a_ratio gauge\n"
					 "a_ratio 0.5\n"
					 "a_ratio{x=\"b\"} 123456789012\n"
					 "a_ratio{x=\"c\"} NaN\n"
					 "# HELP m_bytes gauge\n"
					 "# TYPE m_bytes gauge\n"
					 "m_bytes{k=\"1\"} 0\n"
					 "m_bytes{k=\"2\"} -5\n"
					 "# HELP z_total last\\nline \\\\ \"x\"\n"
					 "# TYPE z_total counter\n"
					 "z_total{disk=\"C:\\\\a\\n\\\"b\\\"\",n=\"1\"} 7\n");
	str_fini(&out);
	str_fini(&label);
	metrics_free(m);
}

static void histogram_buckets_are_cumulative(void **state)
{
	struct metrics *m = metrics_new();
	struct metric *h = metrics_get(m, "h_seconds", "s=\"x\"", METRIC_HISTOGRAM, "h");
	struct str out = STR_INIT;

	(void)state;
	metric_observe_us(h, 0);
	metric_observe_us(h, 50); /* the bound belongs to its bucket */
	metric_observe_us(h, 51);
	metric_observe_us(h, 2000000);
	metric_observe_us(h, 1000000000); /* above all */
	metrics_print(m, &out);
	assert_non_null(strstr(str_c(&out), "h_seconds_bucket{s=\"x\",le=\"0.00005\"} 2\n"));
	assert_non_null(strstr(str_c(&out), "h_seconds_bucket{s=\"x\",le=\"0.0001\"} 3\n"));
	assert_non_null(strstr(str_c(&out), "h_seconds_bucket{s=\"x\",le=\"104.8576\"} 4\n"));
	assert_non_null(strstr(str_c(&out), "h_seconds_bucket{s=\"x\",le=\"+Inf\"} 5\n"));
	assert_non_null(strstr(str_c(&out), "h_seconds_sum{s=\"x\"} 1002.000101\n"));
	assert_non_null(strstr(str_c(&out), "h_seconds_count{s=\"x\"} 5\n"));
	str_fini(&out);
	metrics_free(m);
}

static void quantiles_are_within_their_bucket(void **state)
{
	struct metrics *m = metrics_new();
	struct metric *h = metrics_get(m, "q_seconds", "", METRIC_HISTOGRAM, "q");
	uint64_t p50, p99;

	(void)state;
	assert_int_equal(metric_quantile_us(h, 0.99), 0);
	for (uint64_t i = 0; i < 1000; i++)
		metric_observe_us(h, i < 980 ? 1000 : 90000);
	p50 = metric_quantile_us(h, 0.5);
	p99 = metric_quantile_us(h, 0.99);
	assert_true(p50 > 800 && p50 <= 1600);
	assert_true(p99 > 51200 && p99 <= 102400);
	metric_observe_us(h, UINT64_MAX / 2);
	assert_int_equal(metric_quantile_us(h, 1), 104857600);
	metrics_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(metrics_lose_nothing),
		cmocka_unit_test(metrics_print_is_exposition_format),
		cmocka_unit_test(histogram_buckets_are_cumulative),
		cmocka_unit_test(quantiles_are_within_their_bucket),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
