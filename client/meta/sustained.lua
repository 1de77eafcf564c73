-- SPDX-License-Identifier: Apache-2.0
-- The last close of a file without a name.
-- ARGV: token, number, now, inode (text), session
-- -> {'gone', length}, or {'kept'}: it has a name again, or is not there
local old = done()
if old then
	return old
end
local session, ino = P .. 'session' .. ARGV[5], ARGV[4]
local a = get(ino)
if a == false then
	return fail(EIO)
end
if not a or u32(a, NLINK) > 0 then
	call('SREM', session, ino)
	return { 'kept' }
end
local length = field(a, LENGTH)
need_counters('usedSpace', 'totalInodes')
call('ZCARD', P .. 'delfiles')
call('SCARD', session)
account(-pages(length), -1)
call('ZADD', P .. 'delfiles', dec(sub(ARGV[3], 1, 8)), ino .. ':' .. dec(length))
call('DEL', P .. 'i' .. ino, P .. 'x' .. ino)
call('SREM', session, ino)
log(ARGV[3], 'DELSUSTAINED', nil, ARGV[5], ino)
return finish({ 'gone', length })
