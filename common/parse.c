/* SPDX-License-Identifier: Apache-2.0 */
/* Strict readers of numbers, sizes and durations. Pure; any thread. */
#include "common/parse.h"

#include <strings.h>

enum { FRACTION_DIGITS = 9 };

/* whole part and up to nine decimals, "1.5"; what is behind it stays at *s */
struct decimal {
	uint64_t whole, fraction, scale; /* fraction / scale */
};

static bool digit(char c)
{
	return c >= '0' && c <= '9';
}

/* digits from *s on; at least one */
static int parse_digits(const char **s, uint64_t *ret)
{
	const char *p = *s;
	uint64_t v = 0;

	if (!digit(*p))
		return -EINVAL;
	for (; digit(*p); p++)
		if (__builtin_mul_overflow(v, 10, &v) ||
		    __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
			return -ERANGE;
	*s = p;
	*ret = v;
	return 0;
}

static int parse_decimal(const char **s, struct decimal *ret)
{
	struct decimal d = {.scale = 1};
	const char *p = *s;
	unsigned n = 0;
	int r = parse_digits(&p, &d.whole);

	if (r < 0)
		return r;
	if (*p == '.') {
		for (p++; digit(*p); p++, n++) {
			if (n == FRACTION_DIGITS)
				return -EINVAL;
			d.fraction = d.fraction * 10 + (uint64_t)(*p - '0');
			d.scale *= 10;
		}
		if (!n)
			return -EINVAL;
	}
	*s = p;
	*ret = d;
	return 0;
}

static int decimal_times(const struct decimal *d, uint64_t unit, uint64_t *ret)
{
	unsigned __int128 v = (unsigned __int128)d->whole * unit +
			      (unsigned __int128)d->fraction * unit / d->scale;

	if (v > UINT64_MAX)
		return -ERANGE;
	*ret = (uint64_t)v;
	return 0;
}

int parse_u64(const char *s, uint64_t max, uint64_t *ret)
{
	uint64_t v;
	int r = parse_digits(&s, &v);

	if (r < 0)
		return r;
	if (*s)
		return -EINVAL;
	if (v > max)
		return -ERANGE;
	*ret = v;
	return 0;
}

int parse_i64(const char *s, int64_t *ret)
{
	bool minus = *s == '-';
	uint64_t v;
	int r = parse_u64(s + minus, (uint64_t)INT64_MAX + minus, &v);

	if (r < 0)
		return r;
	*ret = minus ? (int64_t)-v : (int64_t)v;
	return 0;
}

int parse_bool(const char *s, bool *ret)
{
	static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};

	for (size_t i = 0; i < ARRAY_LEN(words); i++) {
		if (!strcasecmp(s, words[i])) {
			*ret = i % 2;
			return 0;
		}
	}
	return -EINVAL;
}

int parse_size(const char *s, uint64_t unit, uint64_t *ret)
{
	static const char letters[] = "KMGTPE";
	struct decimal d;
	const char *at;
	int r = parse_decimal(&s, &d);

	if (r < 0)
		return r;
	if (!*s)
		return decimal_times(&d, unit, ret);
	at = (*s & 0x40) ? strchr(letters, *s & ~0x20) : NULL; /* either case; no NUL */
	if (at) {
		unit = 1ULL << (10 * (at - letters + 1));
		s++;
		if ((*s | 0x20) == 'i' && (s[1] | 0x20) == 'b')
			s += 2;
		else if ((*s | 0x20) == 'b')
			s++;
	} else if ((*s | 0x20) == 'b') {
		unit = 1;
		s++;
	}
	if (*s)
		return -EINVAL;
	return decimal_times(&d, unit, ret);
}

static uint64_t duration_unit(const char **s)
{
	static const struct {
		const char *name;
		uint64_t us;
	} units[] = {
		{"us", 1},	    {"ms", 1000},	  {"s", 1000000},
		{"m", 60000000ULL}, {"h", 3600000000ULL}, {"d", 86400000000ULL},
	};

	for (size_t i = 0; i < ARRAY_LEN(units); i++) {
		size_t n = strlen(units[i].name);

		if (!strncmp(*s, units[i].name, n)) {
			*s += n;
			return units[i].us;
		}
	}
	return 0;
}

/* "90", "1.5h", and Go's "1h30m" */
int parse_duration(const char *s, uint64_t *ret_us)
{
	uint64_t sum = 0, part, unit;
	struct decimal d;
	bool first = true;
	int r;

	do {
		r = parse_decimal(&s, &d);
		if (r < 0)
			return r;
		if (!*s && first)
			return decimal_times(&d, 1000000, ret_us);
		first = false;
		unit = duration_unit(&s);
		if (!unit)
			return -EINVAL;
		r = decimal_times(&d, unit, &part);
		if (r < 0)
			return r;
		if (__builtin_add_overflow(sum, part, &sum))
			return -ERANGE;
	} while (*s);
	*ret_us = sum;
	return 0;
}

int parse_host_port(const char *s, char *host, size_t n, uint16_t *port)
{
	const char *colon = strrchr(s, ':');
	uint64_t number;
	size_t len;
	int r;

	if (!colon)
		return -EINVAL;
	len = (size_t)(colon - s);
	if (*s == '[') {
		if (len < 3 || s[len - 1] != ']')
			return -EINVAL;
		s++;
		len -= 2;
	} else if (memchr(s, ':', len)) {
		return -EINVAL; /* an IPv6 address needs its brackets */
	}
	if (!len)
		return -EINVAL;
	if (len >= n)
		return -ERANGE;
	r = parse_u64(colon + 1, UINT16_MAX, &number);
	if (r < 0)
		return r;
	memcpy(host, s, len);
	host[len] = 0;
	*port = (uint16_t)number;
	return 0;
}
