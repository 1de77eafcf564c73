/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed secrets against the format vector setting_secret (computed with Python's cryptography),
 * and what damage does to them. */
#include "common/object/crypt.h"

#include "tests/unit/check.h"

static const char uuid[] = "c2f3a1de-0000-4000-8000-0123456789ab";
static const char sealed[] = "AAECAwQFBgcICQoL3s/bx+8Nw3T1/02BY0ZVTmoPUyXSLwTnzsHphqTVAsgW";

static void unseals_what_others_sealed(void **state _unused_)
{
	char *plain = NULL;

	assert_int_equal(crypt_unseal(uuid, false, sealed, &plain), 0);
	assert_string_equal(plain, "minioadmin-secret");
	free(plain);
}

static void another_volume_or_a_changed_letter_is_refused(void **state _unused_)
{
	char *plain = NULL;

	assert_int_equal(
		crypt_unseal("c2f3a1de-0000-4000-8000-0123456789ac", false, sealed, &plain),
		-EBADMSG);
	for (size_t i = 0; i < strlen(sealed); i++) {
		char text[sizeof(sealed)];

		memcpy(text, sealed, sizeof(sealed));
		text[i] = text[i] == 'A' ? 'B' : 'A';
		assert_int_equal(crypt_unseal(uuid, false, text, &plain), -EBADMSG);
		text[i] = '='; /* padding inside is no base64 */
		assert_int_equal(crypt_unseal(uuid, false, text, &plain), -EBADMSG);
		text[i] = '\0';
		assert_int_equal(crypt_unseal(uuid, false, text, &plain), i ? -EBADMSG : 0);
		if (i == 0) {
			assert_string_equal(plain, "");
			free(plain);
			plain = NULL;
		}
	}
	assert_null(plain);
}

static void a_stripped_secret_is_told_apart(void **state _unused_)
{
	char *plain = NULL;

	assert_int_equal(crypt_unseal(uuid, false, "removed", &plain), -ENOENT);
	assert_null(plain);
}

static void seals_differently_each_time_and_back(void **state _unused_)
{
	static const char *const texts[] = {"x", "golden/secret+key", "two words and \xc3\xa9"};
	char *a, *b, *plain;

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		assert_int_equal(crypt_seal(uuid, false, texts[i], &a), 0);
		assert_int_equal(crypt_seal(uuid, false, texts[i], &b), 0);
		assert_string_not_equal(a, b);
		assert_int_equal(crypt_unseal(uuid, false, a, &plain), 0);
		assert_string_equal(plain, texts[i]);
		free(a);
		free(b);
		free(plain);
	}
	assert_int_equal(crypt_seal(uuid, false, "", &a), 0);
	assert_string_equal(a, "");
	free(a);
}

static void uuids_are_random_and_of_version_4(void **state _unused_)
{
	char a[37], b[37];

	crypt_uuid(a);
	crypt_uuid(b);
	assert_string_not_equal(a, b);
	assert_int_equal(strlen(a), 36);
	assert_int_equal(strspn(a, "0123456789abcdef-"), 36);
	assert_int_equal(a[14], '4');
	assert_non_null(strchr("89ab", a[19]));
	assert_true(a[8] == '-' && a[13] == '-' && a[18] == '-' && a[23] == '-');
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unseals_what_others_sealed),
		cmocka_unit_test(another_volume_or_a_changed_letter_is_refused),
		cmocka_unit_test(a_stripped_secret_is_told_apart),
		cmocka_unit_test(seals_differently_each_time_and_back),
		cmocka_unit_test(uuids_are_random_and_of_version_4),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
