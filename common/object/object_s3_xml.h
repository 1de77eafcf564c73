/* SPDX-License-Identifier: Apache-2.0 */
/* Readers of the XML that an S3 server answers with. Strict and bounded: what is not well-formed,
 * too deep or too much is -EPROTO; nothing of it decides how much memory is taken. Pure; private to
 * common/object. */
#ifndef STOKE_COMMON_OBJECT_OBJECT_S3_XML_H
#define STOKE_COMMON_OBJECT_OBJECT_S3_XML_H

#include "common/object/object.h"

enum { S3XML_MAX_KEYS = 1000, S3XML_MAX_KEY = 1024 };

struct s3xml_listing {
	struct object_info *info;
	size_t n;
	bool more;
};

/* ListObjectsV2's answer, keys decoded when it says encoding-type url, sorted. 0, -EPROTO, -ENOMEM;
 * freed by s3xml_listing_fini */
int s3xml_list(const void *p, size_t n, struct s3xml_listing *ret);
void s3xml_listing_fini(struct s3xml_listing *l);

/* texts are cut where they are longer */
struct s3xml_error {
	char code[64], message[160], key[160];
};
/* <Error>: 0 or -EPROTO, then with whatever was read so far */
int s3xml_error(const void *p, size_t n, struct s3xml_error *ret);
/* DeleteObjects' answer: how many keys it reports as not deleted, NoSuchKey left out (the first is
 * in ret); -EPROTO */
int s3xml_delete(const void *p, size_t n, struct s3xml_error *ret);

#endif
