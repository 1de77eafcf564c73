-- SPDX-License-Identifier: Apache-2.0
-- A detached directory goes: first it is made sure that it never becomes one of the tree, then,
-- when it is empty, its record goes.
-- ARGV: token, number, now, inode (text), 'begin' or 'end' -> {'', 'detached' or 'none'};
--    {its uid and gid (8 bytes); '' when it had no record}
local old = done()
if old then
	return old
end
local ino = ARGV[4]
if not call('ZSCORE', P .. 'detachedNodes', ino) then
	return { '', 'none' }
end
if ARGV[5] == 'begin' then
	call('ZADD', P .. 'detachedNodes', 0, ino)	-- see attach.lua
	return finish({ '', 'detached' })
end
if call('HLEN', P .. 'd' .. ino) > 0 then
	return fail(ENOTEMPTY)
end
need_counters('usedSpace', 'totalInodes')
need_hashes('dirDataLength', 'dirUsedSpace', 'dirUsedInodes')
local a = get(ino)
if call('DEL', P .. 'i' .. ino) == 1 then
	account(-1, -1)
end
call('DEL', P .. 'x' .. ino)
call('ZREM', P .. 'detachedNodes', ino)
for _, k in ipairs({ 'dirDataLength', 'dirUsedSpace', 'dirUsedInodes' }) do
	call('HDEL', P .. k, ino)
end
log(ARGV[3], 'CLEANUP', nil, ino)
return finish({ a and field(a, UID) or '' })
