/* SPDX-License-Identifier: Apache-2.0 */
/* Who makes the next backup of the metadata (docs/format.md §7.3): the attribute lastBackup of the
 * root says when the last one was begun, as JuiceFS writes and reads it. Two clients that look at
 * the same moment both make one, which costs a second object. Any thread that may block. */
#include "client/meta/jobs.h"

#include <inttypes.h>
#include <time.h>

#include "client/meta/meta_redis.h"

enum { MANY_INODES = 1000000, HOUR = 3600 };

int backup_time(const char *text, int64_t *ret_sec)
{
	struct tm tm = {.tm_year = 0};
	const char *end = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	int64_t zone = 0;

	if (!end)
		return -EINVAL;
	if (*end == '.') /* fractions, which nobody writes but everybody reads */
		end += 1 + strspn(end + 1, "0123456789");
	if (*end == '+' || *end == '-') {
		unsigned h, m;

		if (sscanf(end + 1, "%2u:%2u", &h, &m) != 2)
			return -EINVAL;
		zone = (int64_t)(h * 60 + m) * 60 * (*end == '-' ? -1 : 1);
	} else if (strcmp(end, "Z") != 0) {
		return -EINVAL;
	}
	*ret_sec = (int64_t)timegm(&tm) - zone;
	return 0;
}

int meta_backup_due(struct meta *m, uint64_t interval_sec, int64_t now_sec)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *last = NULL, *inodes = NULL;
	const time_t now = (time_t)now_sec;
	const char *text;
	char stamp[24];
	struct tm tm;
	int64_t at;
	size_t n;
	int r = redis_once(mr->own_redis, op_deadline(mr), &last, "HGET %sx1 lastBackup",
			   mr->prefix);

	if (r == 0)
		r = redis_once(mr->own_redis, op_deadline(mr), &inodes, "GET %stotalInodes",
			       mr->prefix);
	if (r)
		return op_error(r);
	text = reply_text(last, &n);
	if (text && n && backup_time(text, &at) < 0)
		return -EBADMSG;
	if (text && n && now_sec - at < (int64_t)interval_sec)
		return 0;
	if (interval_sec <= HOUR && reply_int(inodes) > MANY_INODES)
		return -EFBIG;
	if (!gmtime_r(&now, &tm) || !strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", &tm))
		return -EINVAL;
	/* the volume's own root, whatever directory of it is mounted */
	r = m->ops->setxattr(m, INODE_ROOT, "lastBackup", stamp, strlen(stamp), 0);
	return r ? r : 1;
}
