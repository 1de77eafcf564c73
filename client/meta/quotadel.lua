-- SPDX-License-Identifier: Apache-2.0
-- The end of a quota. Users and groups keep their usage.
-- ARGV: token, number, now, kind (0 directory, 1 user, 2 group), id -> {1}
local old = done()
if old then
	return old
end
local kinds = { [0] = 'dirQuota', 'userQuota', 'groupQuota' }
local k, id = kinds[tonumber(ARGV[4])], ARGV[5]
if call('HEXISTS', P .. k, id) == 0 and call('HEXISTS', P .. k .. 'UsedInodes', id) == 0 then
	return fail(ENOENT)
end
need_hashes(k .. 'UsedSpace')
need_counters('_quotas')
if k == 'dirQuota' then
	call('HDEL', P .. k, id)
	call('HDEL', P .. k .. 'UsedSpace', id)
	call('HDEL', P .. k .. 'UsedInodes', id)
else
	call('HSET', P .. k, id, string.rep('\255', 16))
end
call('INCR', P .. '_quotas')
log(ARGV[3], 'DELQUOTA', nil, ARGV[4], id)
return finish({ 1 })
