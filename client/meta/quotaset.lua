-- SPDX-License-Identifier: Apache-2.0
-- Sets limits of a quota, its usage, or both.
-- ARGV: token, number, now, kind (0 directory, 1 user, 2 group), id, limits of space and of inodes
--    (8 bytes each, or '': as it is), the same as texts (-1: as it is), space and inodes used
--    (texts, or '': as it is), 'old' when there must be one already, of a directory it and all
--    below it (8 bytes each): what is used is what was told of them; or ''
-- -> {1}: it is new; {0}; {'below'}: there are others below it, or somebody is about to take back
--    what was told of removed ones
local old = done()
if old then
	return old
end
local kinds = { [0] = 'dirQuota', 'userQuota', 'groupQuota' }
local k, id, a = kinds[tonumber(ARGV[4])], ARGV[5], nil
local space, inodes = ARGV[10], ARGV[11]
if k == 'dirQuota' then
	a = get(id)
	if not a then
		return fail(a == nil and ENOENT or EIO)
	end
	if kind(a) ~= DIR then
		return fail(ENOTDIR)
	end
end
local was = call('HGET', P .. k, id)
if was and #was ~= 16 then
	return fail(EIO)
end
if not was and ARGV[12] == 'old' then
	return fail(ENOENT)
end
if ARGV[13] ~= '' then
	local late_space, late_inodes
	space, inodes, late_space, late_inodes = below(id, a, ARGV[13])
	if not space or late_space ~= 0 or late_inodes ~= 0 then
		return { 'below' }
	end
	space, inodes = fmt('%.0f', space), fmt('%.0f', inodes)
end
need_hashes(k, k .. 'UsedSpace', k .. 'UsedInodes')
need_counters('_quotas')
local now = was or string.rep('\255', 16)
now = (ARGV[6] ~= '' and ARGV[6] or sub(now, 1, 8)) .. (ARGV[7] ~= '' and ARGV[7] or sub(now, 9))
call('HSET', P .. k, id, now)
if space ~= '' then
	call('HSET', P .. k .. 'UsedSpace', id, space)
	call('HSET', P .. k .. 'UsedInodes', id, inodes)
elseif not was then
	call('HSETNX', P .. k .. 'UsedSpace', id, '0')
	call('HSETNX', P .. k .. 'UsedInodes', id, '0')
end
call('INCR', P .. '_quotas')
log(ARGV[3], 'SETQUOTA', nil, ARGV[4], id, ARGV[8], ARGV[9])
return finish({ was and 0 or 1 })
