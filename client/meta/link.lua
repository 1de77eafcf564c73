-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode, parent (both 8 bytes), name, skip, session -> {record}
local old = done()
if old then
	return old
end
local now, name = ARGV[3], ARGV[6]
local ino, parent, session = dec(ARGV[4]), dec(ARGV[5]), P .. 'session' .. ARGV[8]
local pa, a = get(parent), get(ino)
if pa == false or a == false then
	return fail(EIO)
end
if not pa or not a then
	return fail(ENOENT)
end
if kind(pa) ~= DIR then
	return fail(ENOTDIR)
end
if trashed(pa) or trashed(a) then
	return fail(ENOENT)
end
if flag(pa, IMMUTABLE) or kind(a) == DIR or flag(a, APPEND) or flag(a, IMMUTABLE) then
	return fail(EPERM)
end
if call('HEXISTS', P .. 'd' .. parent, name) == 1 then
	return fail(EEXIST)
end
if full_of_links(a) then
	return fail(EMLINK)
end
local before = field(a, PARENT)
local unnamed = u32(a, NLINK) == 0	-- an open file without a name gets one
if unnamed and call('SISMEMBER', session, ino) == 0 then
	return fail(ENOENT)
end
need_fields('p' .. ino, dec(before), parent)
a = links(put(a, CTIME, now), 1)
if unnamed then
	a = put(a, PARENT, ARGV[5])
	call('SREM', session, ino)
else
	a = put(a, PARENT, NONE)
	if before ~= NONE then
		call('HINCRBY', P .. 'p' .. ino, dec(before), 1)
	end
	call('HINCRBY', P .. 'p' .. ino, parent, 1)
end
call('HSET', P .. 'd' .. parent, name, char(kind(a)) .. ARGV[4])
local touched = touchable(pa, now, ARGV[7])
if touched then
	pa = touch(pa, now)
	call('SET', P .. 'i' .. parent, pa)
end
call('SET', P .. 'i' .. ino, a)
if LOG ~= '' then
	log(now, 'LINK', fmt('%.0f', u32(a, NLINK)), ino, parent, name, touched)
end
return finish({ a, pa })
