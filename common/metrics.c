/* SPDX-License-Identifier: Apache-2.0 */
/* Counters that many threads raise at once. Threads: any. A thread counts in its own shard, with
 * relaxed atomics, since nothing is concluded from the order of two counters; whoever reads sums
 * the shards. Families and series are only ever added, and stay where they are until the registry
 * goes, so that printing collects their addresses under the lock and works without it. */
#include "common/metrics.h"

#include <math.h>

#include "common/list.h"
#include "common/mtx.h"

enum {
	SHARDS = 8,
	CACHE_LINE = 64,
	BUCKETS = 22, /* 50 us * 2^0 … 50 us * 2^21 = 104.9 s; one more for all above */
	FIRST_BUCKET_US = 50,
};

struct counter_shard {
	uint64_t n;
} __attribute__((aligned(CACHE_LINE)));

struct histogram_shard {
	uint64_t buckets[BUCKETS + 1];
	uint64_t sum_us;
} __attribute__((aligned(CACHE_LINE)));

struct family {
	struct list_node link;	 /* of metrics.families, sorted by name */
	struct list_node series; /* sorted by labels */
	char *name;
	const char *help;
	enum metric_type type;
};

struct metric {
	struct list_node link;
	struct family *family;
	char *labels;
	int64_t gauge;
	struct counter_shard *counter;
	struct histogram_shard *histogram;
	double (*fn)(void *arg);
	void *arg;
};

struct metrics {
	struct mtx lock;
	struct list_node families GUARDED_BY(lock);
	size_t n_series GUARDED_BY(lock);
};

static unsigned shard(void)
{
	static unsigned next;
	static _Thread_local unsigned mine; /* 0: none yet */

	if (!mine)
		mine = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED) % SHARDS + 1;
	return mine - 1;
}

/* --- the registry --- */

struct metrics *metrics_new(void)
{
	struct metrics *m = calloc(1, sizeof(*m));

	if (!m)
		return NULL;
	mtx_init(&m->lock);
	list_init(&m->families);
	return m;
}

static void metric_free(struct metric *x)
{
	if (!x)
		return;
	free(x->labels);
	free(x->counter);
	free(x->histogram);
	free(x);
}

static void family_free(struct family *f)
{
	struct list_node *n;

	if (!f)
		return;
	while ((n = list_pop(&f->series)))
		metric_free(container_of(n, struct metric, link));
	free(f->name);
	free(f);
}

void metrics_free(struct metrics *m)
{
	struct list_node *n;

	if (!m)
		return;
	while ((n = list_pop(&m->families)))
		family_free(container_of(n, struct family, link));
	mtx_fini(&m->lock);
	free(m);
}

/* shards on cache lines of their own, zeroed */
static void *shards_new(size_t size)
{
	void *p = aligned_alloc(CACHE_LINE, size * SHARDS);

	if (p)
		memset(p, 0, size * SHARDS);
	return p;
}

static struct metric *metric_new(const char *labels, enum metric_type type)
{
	struct metric *x = calloc(1, sizeof(*x));

	if (!x)
		return NULL;
	x->labels = strdup(labels);
	if (type == METRIC_HISTOGRAM)
		x->histogram = shards_new(sizeof(*x->histogram));
	else
		x->counter = shards_new(sizeof(*x->counter));
	if (!x->labels || (!x->histogram && !x->counter)) {
		metric_free(x);
		return NULL;
	}
	return x;
}

static struct family *family_new(const char *name, enum metric_type type, const char *help)
{
	struct family *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	list_init(&f->series);
	f->help = help;
	f->type = type;
	f->name = strdup(name);
	if (f->name)
		return f;
	free(f);
	return NULL;
}

static struct family *family_get_locked(struct metrics *m, const char *name, enum metric_type type,
					const char *help) REQUIRES(m->lock)
{
	struct list_node *n;
	struct family *f;

	list_for_each(n, &m->families)
	{
		int order;

		f = container_of(n, struct family, link);
		order = strcmp(f->name, name);
		if (order == 0) {
			assert(f->type == type); /* one name, one type */
			return f;
		}
		if (order > 0)
			break;
	}
	f = family_new(name, type, help);
	if (f)
		list_add_tail(n, &f->link); /* before the first that is larger */
	return f;
}

static struct metric *metric_get_locked(struct metrics *m, struct family *f, const char *labels,
					bool *ret_made) REQUIRES(m->lock)
{
	struct list_node *n;
	struct metric *x;

	list_for_each(n, &f->series)
	{
		int order;

		x = container_of(n, struct metric, link);
		order = strcmp(x->labels, labels);
		if (order == 0) {
			*ret_made = false;
			return x;
		}
		if (order > 0)
			break;
	}
	x = metric_new(labels, f->type);
	if (!x)
		return NULL;
	x->family = f;
	list_add_tail(n, &x->link);
	m->n_series++;
	*ret_made = true;
	return x;
}

static int metrics_find(struct metrics *m, const char *name, const char *labels,
			enum metric_type type, const char *help, double (*fn)(void *arg), void *arg,
			struct metric **ret)
{
	struct metric *x = NULL;
	struct family *f;
	bool made = false;

	mtx_lock(&m->lock);
	f = family_get_locked(m, name, type, help);
	if (f)
		x = metric_get_locked(m, f, labels, &made);
	if (made) {
		x->fn = fn;
		x->arg = arg;
	}
	mtx_unlock(&m->lock);
	if (!x)
		return -ENOMEM;
	if (!made && (fn || x->fn))
		return -EEXIST;
	*ret = x;
	return 0;
}

struct metric *metrics_get(struct metrics *m, const char *name, const char *labels,
			   enum metric_type type, const char *help)
{
	struct metric *x;
	int r = metrics_find(m, name, labels, type, help, NULL, NULL, &x);

	assert(r != -EEXIST); /* the series is somebody's callback */
	return r < 0 ? NULL : x;
}

int metrics_callback(struct metrics *m, const char *name, const char *labels, enum metric_type type,
		     const char *help, double (*fn)(void *arg), void *arg)
{
	struct metric *x;

	assert(type != METRIC_HISTOGRAM);
	return metrics_find(m, name, labels, type, help, fn, arg, &x);
}

/* --- counting --- */

void metric_add(struct metric *m, uint64_t n)
{
	if (m && m->counter)
		__atomic_fetch_add(&m->counter[shard()].n, n, __ATOMIC_RELAXED);
}

void metric_set(struct metric *m, int64_t v)
{
	if (m)
		__atomic_store_n(&m->gauge, v, __ATOMIC_RELAXED);
}

static unsigned bucket_of(uint64_t us)
{
	unsigned b = 0;

	while (b < BUCKETS && us > (uint64_t)FIRST_BUCKET_US << b)
		b++;
	return b;
}

void metric_observe_us(struct metric *m, uint64_t us)
{
	struct histogram_shard *h;

	if (!m || !m->histogram)
		return;
	h = &m->histogram[shard()];
	__atomic_fetch_add(&h->buckets[bucket_of(us)], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&h->sum_us, us, __ATOMIC_RELAXED);
}

/* --- reading --- */

struct histogram {
	uint64_t buckets[BUCKETS + 1], sum_us, count;
};

static void histogram_sum(const struct metric *m, struct histogram *ret)
{
	*ret = (struct histogram){.count = 0};
	for (unsigned s = 0; s < SHARDS; s++) {
		const struct histogram_shard *h = &m->histogram[s];

		for (unsigned b = 0; b <= BUCKETS; b++)
			ret->buckets[b] += __atomic_load_n(&h->buckets[b], __ATOMIC_RELAXED);
		ret->sum_us += __atomic_load_n(&h->sum_us, __ATOMIC_RELAXED);
	}
	for (unsigned b = 0; b <= BUCKETS; b++)
		ret->count += ret->buckets[b];
}

uint64_t metric_value(const struct metric *m)
{
	struct histogram h;
	uint64_t sum = 0;

	if (!m)
		return 0;
	if (m->histogram) {
		histogram_sum(m, &h);
		return h.count;
	}
	if (m->family->type == METRIC_GAUGE)
		return (uint64_t)__atomic_load_n(&m->gauge, __ATOMIC_RELAXED);
	for (unsigned s = 0; s < SHARDS; s++)
		sum += __atomic_load_n(&m->counter[s].n, __ATOMIC_RELAXED);
	return sum;
}

uint64_t metric_quantile_us(const struct metric *m, double q)
{
	struct histogram h;
	double rank, below = 0;

	if (!m || !m->histogram)
		return 0;
	histogram_sum(m, &h);
	rank = q * (double)h.count;
	for (unsigned b = 0; b < BUCKETS && h.count; b++) {
		double n = (double)h.buckets[b];
		double top = (double)((uint64_t)FIRST_BUCKET_US << b);
		double bottom = b ? top / 2 : 0;

		if (n > 0 && below + n >= rank)
			return (uint64_t)(bottom + (top - bottom) * MAX(rank - below, 0.0) / n);
		below += n;
	}
	return h.count ? (uint64_t)FIRST_BUCKET_US << (BUCKETS - 1) : 0;
}

/* --- Prometheus text format 0.0.4 --- */

static void add_escaped(struct str *out, const char *s, bool quotes)
{
	for (; *s; s++) {
		if (*s == '\n')
			str_add(out, "\\n");
		else if (*s == '\\')
			str_add(out, "\\\\");
		else if (*s == '"' && quotes)
			str_add(out, "\\\"");
		else
			str_addn(out, s, 1);
	}
}

void metrics_label(struct str *labels, const char *name, const char *value)
{
	str_addf(labels, "%s%s=\"", labels->len ? "," : "", name);
	add_escaped(labels, value, true);
	str_add(labels, "\"");
}

/* microseconds as seconds, without zeros at the end */
static void add_seconds(struct str *out, uint64_t us)
{
	char text[32];
	int n = snprintf(text, sizeof(text), "%llu.%06llu", (unsigned long long)(us / 1000000),
			 (unsigned long long)(us % 1000000));

	while (text[n - 1] == '0')
		n--;
	n -= text[n - 1] == '.';
	str_addn(out, text, (size_t)n);
}

static void add_double(struct str *out, double v)
{
	if (isnan(v))
		str_add(out, "NaN");
	else if (isinf(v))
		str_add(out, v > 0 ? "+Inf" : "-Inf");
	else if (v > -9e15 && v < 9e15 && v == (double)(int64_t)v)
		str_addf(out, "%lld", (long long)v);
	else
		str_addf(out, "%.9g", v);
}

static void print_histogram(const struct metric *x, struct str *out)
{
	const char *name = x->family->name, *comma = *x->labels ? "," : "";
	const char *open = *x->labels ? "{" : "", *close = *x->labels ? "}" : "";
	struct histogram h;
	uint64_t sum = 0;

	histogram_sum(x, &h);
	for (unsigned b = 0; b < BUCKETS; b++) {
		sum += h.buckets[b];
		str_addf(out, "%s_bucket{%s%sle=\"", name, x->labels, comma);
		add_seconds(out, (uint64_t)FIRST_BUCKET_US << b);
		str_addf(out, "\"} %llu\n", (unsigned long long)sum);
	}
	str_addf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, x->labels, comma,
		 (unsigned long long)h.count);
	str_addf(out, "%s_sum%s%s%s ", name, open, x->labels, close);
	add_seconds(out, h.sum_us);
	str_addf(out, "\n%s_count%s%s%s %llu\n", name, open, x->labels, close,
		 (unsigned long long)h.count);
}

static void print_metric(const struct metric *x, struct str *out)
{
	if (x->histogram) {
		print_histogram(x, out);
		return;
	}
	str_add(out, x->family->name);
	if (*x->labels)
		str_addf(out, "{%s}", x->labels);
	str_add(out, " ");
	if (x->fn)
		add_double(out, x->fn(x->arg));
	else if (x->family->type == METRIC_GAUGE)
		str_addf(out, "%lld", (long long)metric_value(x));
	else
		str_addf(out, "%llu", (unsigned long long)metric_value(x));
	str_add(out, "\n");
}

/* all series, in order; NULL, 0 when there is no memory */
static const struct metric **metrics_collect(struct metrics *m, size_t *ret_n)
{
	const struct metric **all;
	struct list_node *f, *x;
	size_t n = 0;

	mtx_lock(&m->lock);
	all = malloc((m->n_series + 1) * sizeof(struct metric *));
	for (f = m->families.next; all && f != &m->families; f = f->next)
		list_for_each(x, &container_of(f, struct family, link)->series) all[n++] =
			container_of(x, struct metric, link);
	mtx_unlock(&m->lock);
	*ret_n = n;
	return all;
}

void metrics_print(struct metrics *m, struct str *out)
{
	static const char *const types[] = {"counter", "gauge", "histogram"};
	_cleanup_(freep) const struct metric **all = NULL;
	size_t n;

	all = metrics_collect(m, &n);
	if (!all) {
		out->err = -ENOMEM;
		return;
	}
	for (size_t i = 0; i < n; i++) {
		const struct family *f = all[i]->family;

		if (i == 0 || all[i - 1]->family != f) {
			str_addf(out, "# HELP %s ", f->name);
			add_escaped(out, f->help, false);
			str_addf(out, "\n# TYPE %s %s\n", f->name, types[f->type]);
		}
		print_metric(all[i], out);
	}
}
