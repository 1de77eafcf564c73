-- SPDX-License-Identifier: Apache-2.0
-- A detached directory becomes one of the tree.
-- ARGV: token, number, now, directory, parent (8 bytes each), name, space and inodes below the
--    directory (texts)
-- -> {record of the parent, quotas above as quota_write}
local old = done()
if old then
	return old
end
local now, ino, parent, name = ARGV[3], dec(ARGV[4]), dec(ARGV[5]), ARGV[6]
local pa = get(parent)
if not pa then
	return fail(pa == nil and ENOENT or EIO)
end
if kind(pa) ~= DIR then
	return fail(ENOTDIR)
end
-- 0: somebody is about to remove it (detached.lua)
local since = call('ZSCORE', P .. 'detachedNodes', ino)
if trashed(pa) or is_trash(ARGV[5]) or not since or tonumber(since) == 0 then
	return fail(ENOENT)
end
if flag(pa, IMMUTABLE) then
	return fail(EPERM)
end
if call('HEXISTS', P .. 'd' .. parent, name) == 1 then
	return fail(EEXIST)
end
if full_of_links(pa) then
	return fail(EMLINK)
end
local sums = {}
quota_plan(sums, quotas_above(parent, {}), 1, tonumber(ARGV[7]), tonumber(ARGV[8]))
pa = links(touch(pa, now), 1)
call('SET', P .. 'i' .. parent, pa)
call('HSET', P .. 'd' .. parent, name, char(DIR) .. ARGV[4])
call('ZREM', P .. 'detachedNodes', ino)
log(now, 'ATTACH', nil, ino, parent, name)
return finish({ pa, quota_write(sums) })
