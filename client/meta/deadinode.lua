-- SPDX-License-Identifier: Apache-2.0
-- A record that no directory names.
-- ARGV: token, number, now, inode (text) -> {'gone', type, length, uid and gid (8 bytes)}, or
-- {'none'}
local old = done()
if old then
	return old
end
local ino = ARGV[4]
local a = get(ino)
if not a then
	return { 'none' }
end
local typ, length = kind(a), field(a, LENGTH)
if typ == DIR and call('HLEN', P .. 'd' .. ino) > 0 then
	return fail(ENOTEMPTY)
end
need_counters('usedSpace', 'totalInodes')
need_hashes('dirDataLength', 'dirUsedSpace', 'dirUsedInodes')
call('ZCARD', P .. 'delfiles')
account(typ == FILE and -pages(length) or -1, -1)
if typ == FILE then
	call('ZADD', P .. 'delfiles', dec(sub(ARGV[3], 1, 8)), ino .. ':' .. dec(length))
end
call('DEL', P .. 'i' .. ino, P .. 'x' .. ino, P .. 's' .. ino, P .. 'p' .. ino)
for _, k in ipairs({ 'dirDataLength', 'dirUsedSpace', 'dirUsedInodes' }) do
	call('HDEL', P .. k, ino)
end
return finish({ 'gone', typ, length, field(a, UID) })
