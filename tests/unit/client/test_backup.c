/* SPDX-License-Identifier: Apache-2.0 */
/* Backups of the metadata: which stay, and when the last one was. */
#include "tests/unit/check.h"

#include <time.h>

#include "client/backup.h"
#include "client/meta/jobs.h"

enum { NOW = 1796066230, DAY = 86400, MANY = 3000 };

static char text[MANY][BACKUP_NAME_LEN + 1];
static const char *names[MANY];

/* of age_sec ago */
static void name(size_t i, int64_t age_sec)
{
	time_t at = NOW - age_sec;
	struct tm tm;

	assert_non_null(gmtime_r(&at, &tm));
	assert_int_equal(strftime(text[i], sizeof(text[i]), "dump-%Y-%m-%d-%H%M%S.json.gz", &tm),
			 BACKUP_NAME_LEN);
	names[i] = text[i];
}

static void nothing_of_two_days_goes(void **state)
{
	size_t gone;

	(void)state;
	for (size_t i = 0; i < 48; i++)
		name(i, (int64_t)(47 - i) * 3600);
	backup_thin(names, 48, NOW, &gone);
	assert_int_equal(gone, 0);
}

static void one_of_a_day_a_week_a_month_stays(void **state)
{
	/* a backup every 12 hours for 200 days */
	size_t n = 400, gone;

	(void)state;
	for (size_t i = 0; i < n; i++)
		name(i, (int64_t)(n - i) * DAY / 2);
	backup_thin(names, n, NOW, &gone);
	/* 4 of two days, 12 days, 7 weeks, the 137 days before that in 5 months */
	assert_int_equal(n - gone, 4 + 12 + 7 + 5);
	/* the oldest of all, and of each window the first */
	for (size_t i = 0; i < gone; i++)
		assert_string_not_equal(names[i], text[0]);
	for (size_t i = 1; i < gone; i++)
		assert_true(strcmp(names[i - 1], names[i]) < 0);
	/* another look a moment later finds nothing more to do */
	for (size_t i = 0, at = 0; i < n; i++) {
		size_t j = 0;

		while (j < gone && strcmp(names[j], text[i]) != 0)
			j++;
		if (j == gone)
			memmove(text[at++], text[i], sizeof(text[i]));
	}
	for (size_t i = 0; i < n - gone; i++)
		names[i] = text[i];
	backup_thin(names, n - gone, NOW, &gone);
	assert_int_equal(gone, 0);
}

static void other_names_stay(void **state)
{
	size_t gone;

	(void)state;
	name(0, 100 * DAY);
	name(1, 100 * DAY - 60);
	names[2] = "dump-2020-01-01-000000.json.gz.old";
	names[3] = "dump-2020-01-01-00000x.json.gz";
	names[4] = "mine";
	backup_thin(names, 5, NOW, &gone);
	assert_int_equal(gone, 1);
	assert_string_equal(names[0], text[1]);
}

static void times_as_juicefs_writes_them(void **state)
{
	static const struct {
		const char *text;
		int64_t sec;
	} good[] = {
		{"2026-11-30T19:17:10Z", NOW},
		{"2026-11-30T20:17:10+01:00", NOW},
		{"2026-11-30T13:47:10-05:30", NOW},
		{"2026-11-30T19:17:10.123Z", NOW},
	};
	static const char *const bad[] = {"",
					  "yesterday",
					  "2026-11-30",
					  "2026-11-30T19:17:10",
					  "2026-11-30T19:17:10+x",
					  "2026-11-30T19:17:10Zulu"};
	int64_t sec;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_int_equal(backup_time(good[i].text, &sec), 0);
		assert_int_equal(sec, good[i].sec);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(backup_time(bad[i], &sec), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_of_two_days_goes),
		cmocka_unit_test(one_of_a_day_a_week_a_month_stays),
		cmocka_unit_test(other_names_stay),
		cmocka_unit_test(times_as_juicefs_writes_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
