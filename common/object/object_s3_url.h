/* SPDX-License-Identifier: Apache-2.0 */
/* Storage names that speak S3, and what their bucket URLs mean. Pure; private to common/object.
 * URLs are read as JuiceFS reads them:
 *
 *	s3		https://BUCKET.s3.REGION.amazonaws.com[.cn]
 *			https://s3.REGION.amazonaws.com/BUCKET
 *			BUCKET
 *			http://HOST[:PORT]/BUCKET	not Amazon: path style
 *			http://BUCKET.HOST		the same; *.aliyuncs.com: virtual host
 *	minio, ceph	http://HOST[:PORT]/BUCKET[/PREFIX]
 *	others		https://BUCKET.ENDPOINT		virtual host, the region from a label of the
 *							endpoint
 *
 * The region: what the URL says (also ?region=), else AWS_REGION, else AWS_DEFAULT_REGION (minio:
 * MINIO_REGION before them), else us-east-1. */
#ifndef STOKE_COMMON_OBJECT_OBJECT_S3_URL_H
#define STOKE_COMMON_OBJECT_OBJECT_S3_URL_H

#include "common/str.h"

struct s3_endpoint {
	bool https;
	bool path_style;  /* /BUCKET/KEY at host; else /KEY, and host is BUCKET.… */
	bool no_checksum; /* ?disable-checksum=true: a PUT carries no Crc32c */
	char host[300];	  /* as in the Host header: with the port when it is not the scheme's */
	char bucket[128];
	char region[64];
	char prefix[256]; /* put in front of every key: "" or "a/b/" */
};

bool s3_storage_known(const char *storage);
/* 0; -EINVAL with one line in err */
int s3_endpoint_parse(const char *storage, const char *url, struct s3_endpoint *ret,
		      struct str *err);

#endif
