-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), length (8 bytes), '1' through a handle, capacity, most
--    chunks, room (tight)
-- -> {record, change of length in pages (text), old length, as named}; {'room'}: quotas have to be
--    looked at; {false} when more chunks than allowed lie between
local old = done()
if old then
	return old
end
local CHUNK = 67108864
local now, ino, length = ARGV[3], ARGV[4], ARGV[5]
local a = get(ino)
if not a then
	return fail(a == nil and ENOENT or EIO)
end
if kind(a) ~= FILE or flag(a, IMMUTABLE) or flag(a, APPEND) or (ARGV[6] ~= '1' and trashed(a)) then
	return fail(EPERM)
end
local before = field(a, LENGTH)
if before == length then	-- marked all the same, as local file systems do
	a = touch(a, now)
	call('SET', P .. 'i' .. ino, a)
	log(now, 'TRUNCATE', nil, ino, dec(before), dec(length), ARGV[6])
	return finish({ a, '0', before, {} })
end
local delta = pages(length) - pages(before)
if tight(a, delta, ARGV[9]) then
	return { 'room' }
end
local left, right = before, length
if less(right, left) then
	left, right = right, left
end
-- chunk and offset of a length below 2^57
local function place(len)
	local l = u32(len, 5)
	return u32(len, 1) * 64 + floor(l / CHUNK), l % CHUNK
end
local li, lo = place(left)
local ri, ro = place(right)
if ri - li - 1 > tonumber(ARGV[8]) then
	return { false }
end
if over(delta, 0, ARGV[7], '0') then
	return fail(ENOSPC)
end
local function key(i)
	return P .. 'c' .. ino .. '_' .. fmt('%.0f', i)
end
local function zeros(pos, len)
	return p32(pos) .. NONE .. NONE .. p32(len)
end
local dirs = named(a, ino, length)
need_counters('usedSpace')
local between = {}
for i = li, ri do
	if call('LLEN', key(i)) > 0 and i > li and i < ri then
		between[#between + 1] = key(i)
	end
end
account(delta, 0)
a = put(touch(a, now), LENGTH, length)
call('SET', P .. 'i' .. ino, a)
call('RPUSH', key(li), zeros(lo, li == ri and ro - lo or CHUNK - lo))
for i, k in ipairs(between) do
	call('RPUSH', k, zeros(0, CHUNK))
end
if ri > li and ro > 0 then
	call('RPUSH', key(ri), zeros(0, ro))
end
log(now, 'TRUNCATE', nil, ino, dec(before), dec(length), ARGV[6])
return finish({ a, fmt('%.0f', delta), before, dirs })
