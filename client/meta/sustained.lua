-- SPDX-License-Identifier: Apache-2.0
-- The last close of a file without a name.
-- ARGV: token, number, now, inode (text), session, '' or its expiry as it was seen: only if that
--    did not move
-- -> {'gone', length, uid and gid (8 bytes)}, {'nothing', the same}: it had no data, or {'kept'}:
--    it has a name again, or is not there; {'lives'}: the session does, or is gone already
local old = done()
if old then
	return old
end
if moved(ARGV[5], ARGV[6]) then
	return { 'lives' }
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
local empty = length == NONE and call('EXISTS', P .. 'c' .. ino .. '_0') == 0
need_counters('usedSpace', 'totalInodes')
if not empty then
	call('ZCARD', P .. 'delfiles')
end
call('SCARD', session)
account(-pages(length), -1)
if not empty then
	call('ZADD', P .. 'delfiles', dec(sub(ARGV[3], 1, 8)), ino .. ':' .. dec(length))
end
call('DEL', P .. 'i' .. ino, P .. 'x' .. ino)
call('SREM', session, ino)
log(ARGV[3], 'DELSUSTAINED', nil, ARGV[5], ino)
return finish({ empty and 'nothing' or 'gone', length, field(a, UID) })
