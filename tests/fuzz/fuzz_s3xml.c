/* SPDX-License-Identifier: Apache-2.0 */
/* The XML and JSON that strangers' servers answer with: whatever comes, bounded, and what is taken
 * keeps its promises. */
#include "common/object/object_s3_cred.h"
#include "common/object/object_s3_xml.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
	struct s3xml_listing l;
	struct s3xml_error e;
	struct s3_keys k;
	int r;

	if (s3xml_list(p, n, &l) == 0) {
		assert(l.n <= S3XML_MAX_KEYS);
		for (size_t i = 0; i < l.n; i++) {
			assert(l.info[i].key[0] && strlen(l.info[i].key) <= S3XML_MAX_KEY);
			assert(i == 0 || strcmp(l.info[i - 1].key, l.info[i].key) <= 0);
		}
		s3xml_listing_fini(&l);
	}
	(void)s3xml_error(p, n, &e);
	assert(memchr(e.code, 0, sizeof(e.code)) && memchr(e.message, 0, sizeof(e.message)));
	r = s3xml_delete(p, n, &e);
	assert(r <= S3XML_MAX_KEYS);
	if (s3_keys_parse_role((const char *)p, n, &k) == 0) {
		assert(k.access && *k.access && k.secret && *k.secret);
		s3_keys_fini(&k);
	}
	return 0;
}
