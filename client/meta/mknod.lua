-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, parent, name, inode (both 8 bytes), type, mode, umask, uid, gid, rdev,
--    target, skip, capacity, inodes
-- -> {record}; {false} when something has this inode number already
local old = done()
if old then
	return old
end
local now, name, ino, typ = ARGV[3], ARGV[5], ARGV[6], tonumber(ARGV[7])
local parent, text = dec(ARGV[4]), dec(ino)
local pa = get(parent)
if not pa then
	return fail(pa == nil and ENOENT or EIO)
end
if kind(pa) ~= DIR then
	return fail(ENOTDIR)
end
if trashed(pa) then
	return fail(ENOENT)
end
if flag(pa, IMMUTABLE) then
	return fail(EPERM)
end
if call('HEXISTS', P .. 'd' .. parent, name) == 1 then
	return fail(EEXIST)
end
if call('EXISTS', P .. 'i' .. text) == 1 then
	return { false }	-- numbers were handed out twice: the database went back
end
if over(1, 1, ARGV[15], ARGV[16]) then
	return fail(ENOSPC)
end
local m = bit.band(tonumber(ARGV[8]), bit.bnot(tonumber(ARGV[9])), 4095)
local gid = p32(tonumber(ARGV[11]))
if bit.band(mode(pa), 1024) ~= 0 then
	gid = sub(pa, GID, GID + 3)
	if typ == DIR then
		m = bit.bor(m, 1024)
	end
end
local length = typ == DIR and 4096 or #ARGV[13]
local tier = byte(pa, #pa - TAIL + 1 >= 8 and TAIL + 8 or TAIL) or 0
local a = char(bit.band(byte(pa, 1), SKIP_TRASH)) .. p16(typ * 4096 + m) ..
	p32(tonumber(ARGV[10])) .. gid .. now .. now .. now .. p32(typ == DIR and 2 or 1) ..
	p64(length) .. p32(tonumber(ARGV[12])) .. ARGV[4] ..
	(tier ~= 0 and char(tier) or '') .. '\0'

need_counters('usedSpace', 'totalInodes')
if typ == DIR then
	need_hashes('dirUsedInodes', 'dirDataLength', 'dirUsedSpace')
end
account(1, 1)
call('SET', P .. 'i' .. text, a)
if typ == DIR then
	call('SET', P .. 'i' .. parent, links(touch(pa, now), 1))
elseif touchable(pa, now, ARGV[14]) then
	call('SET', P .. 'i' .. parent, touch(pa, now))
end
if typ == SYMLINK then
	call('SET', P .. 's' .. text, ARGV[13])
end
call('HSET', P .. 'd' .. parent, name, char(typ) .. ino)
if typ == DIR then
	call('HSET', P .. 'dirUsedInodes', text, '0')
	call('HSET', P .. 'dirDataLength', text, '0')
	call('HSET', P .. 'dirUsedSpace', text, '0')
end
return finish({ a })
