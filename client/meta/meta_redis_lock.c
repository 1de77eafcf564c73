/* SPDX-License-Identifier: Apache-2.0 */
/* Locks, as JuiceFS keeps them: lockf{inode} and lockp{inode} by session and owner, and in
 * locked{sid} the keys in which a session has any, for whoever cleans up behind it. Nothing waits
 * here (client/locks.h does). Any thread that may block. */
#include "client/meta/meta_redis.h"

#include <fcntl.h>
#include <inttypes.h>

#include "client/meta/plock.h"

static const char *type_text(uint32_t type)
{
	return type == F_WRLCK ? "W" : type == F_RDLCK ? "R" : "U";
}

/* all that both scripts begin with; hex has room for 17 */
static void args_owner(struct meta_redis *mr, struct args *a, uint64_t inode, uint64_t owner,
		       char *hex)
{
	args_u64(a, inode);
	args_u64(a, session_now(&mr->base));
	snprintf(hex, 17, "%016" PRIX64, owner);
	args_text(a, hex);
	args_u64(a, owner);
}

static int lock_reply(int r, const struct redis_reply *reply)
{
	if (r)
		return r;
	return reply_int(reply_at(reply, 0)) == 1 ? 0 : -EAGAIN;
}

int redis_flock(struct meta *m, uint64_t inode, uint64_t owner, uint32_t type)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	char hex[17];
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_owner(mr, &args, inode, owner, hex);
	args_text(&args, type_text(type));
	r = op_eval(mr, SC_FLOCK, &args, &reply);
	op_end(mr, &args);
	return lock_reply(r, reply);
}

int redis_setlk(struct meta *m, uint64_t inode, uint64_t owner, const struct meta_lock *l)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct args args;
	char hex[17];
	int r;

	args_init(&args, mr);
	op_begin(mr, &args);
	args_owner(mr, &args, inode, owner, hex);
	args_text(&args, type_text(l->type));
	args_u64(&args, l->pid);
	args_be64(&args, l->start);
	args_be64(&args, l->end);
	r = op_eval(mr, SC_SETLK, &args, &reply);
	op_end(mr, &args);
	return lock_reply(r, reply);
}

/* of a field that is not our owner's: the first lock in the way, kept when it lies before *ret */
static int look(const struct meta_redis *mr, const char *field, const char *value, size_t n,
		const struct meta_lock *want, struct meta_lock *ret, bool *ret_any)
{
	const struct meta_lock *found;
	struct plock p = {0};
	char own[24];
	int r = plock_decode((const uint8_t *)value, n, &p);

	if (r)
		return r == -EPROTO ? -EIO : r;
	found = plock_conflict(&p, want);
	if (found && (!*ret_any || found->start < ret->start)) {
		*ret = *found;
		*ret_any = true;
		snprintf(own, sizeof(own), "%" PRIu64 "_", session_now(&mr->base));
		if (strncmp(field, own, strlen(own)) != 0)
			ret->pid = 0; /* another mount's: it may be another machine's */
	}
	plock_fini(&p);
	return 0;
}

int redis_getlk(struct meta *m, uint64_t inode, uint64_t owner, struct meta_lock *l)
{
	struct meta_redis *mr = redis_engine(m);
	_cleanup_(redis_reply_freep) struct redis_reply *reply = NULL;
	struct meta_lock found = {.type = F_UNLCK};
	bool any = false;
	char own[40];
	int r = redis_once(mr->redis, op_deadline(mr), &reply, "HGETALL %slockp%llu", mr->prefix,
			   (unsigned long long)inode);

	if (r)
		return op_error(r);
	snprintf(own, sizeof(own), "%" PRIu64 "_%016" PRIX64, session_now(m), owner);
	for (size_t i = 0; !r && i + 1 < reply_len(reply); i += 2) {
		size_t fn, vn;
		const char *field = reply_text(reply_at(reply, i), &fn);
		const char *value = reply_text(reply_at(reply, i + 1), &vn);

		if (field && value && strcmp(field, own) != 0)
			r = look(mr, field, value, vn, l, &found, &any);
	}
	if (!r)
		*l = found;
	return r;
}
