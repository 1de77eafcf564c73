-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), mode, offset, end (8 bytes each), capacity, '' or the
--    chunks between the first and the last that are to become zeros (4 bytes each), '1' when this
--    is the first step, length of the range (text)
-- -> {record, change of length in pages (text), old length, directories as named}; {false}: more
--    chunks than allowed lie between, and none are named; {'fifo'}: it is one
local old = done()
if old then
	return old
end
local CHUNK, MOST = 67108864, 900
local KEEP, PUNCH, ZERO = 1, 2, 16
local now, ino, how = ARGV[3], ARGV[4], tonumber(ARGV[5])
local a = get(ino)
if not a then
	return fail(a == nil and ENOENT or EIO)
end
if kind(a) == 4 then
	return { 'fifo' }	-- its errno is also the network's
end
if kind(a) ~= FILE or flag(a, IMMUTABLE) or (flag(a, APPEND) and how > KEEP) then
	return fail(EPERM)
end
local before, from, to = field(a, LENGTH), ARGV[6], ARGV[7]
local length = before
if bit.band(how, KEEP) == 0 and less(before, to) then
	length = to
end
if less(before, to) then
	to = before	-- nothing but zeros lies behind it
end
local holes = bit.band(how, PUNCH + ZERO) ~= 0 and less(from, to)
local function place(len)
	local l = u32(len, 5)
	return u32(len, 1) * 64 + floor(l / CHUNK), l % CHUNK
end
local function zeros(pos, len)
	return p32(pos) .. NONE .. NONE .. p32(len)
end
local delta, keys = pages(length) - pages(before), {}
if over(delta, 0, ARGV[8], '0') then
	return fail(ENOSPC)
end
local function add(i, pos, len, always)
	local key = P .. 'c' .. ino .. '_' .. fmt('%.0f', i)
	if call('LLEN', key) > 0 or always then
		keys[#keys + 1] = { key, zeros(pos, len) }
	end
end
if holes then
	local li, lo = place(from)
	local ri, ro = place(to)
	if ARGV[9] == '' and ri - li > MOST then
		return { false }
	end
	if ARGV[10] == '1' then
		add(li, lo, li == ri and ro - lo or CHUNK - lo, true)
	end
	if ARGV[9] == '' then
		for i = li + 1, ri - 1 do
			add(i, 0, CHUNK, true)
		end
	end
	for i = 1, #ARGV[9], 4 do
		local c = u32(ARGV[9], i)
		if c > li and c < ri then
			add(c, 0, CHUNK, false)
		end
	end
	if ARGV[10] == '1' and ri > li and ro > 0 then
		add(ri, 0, ro, true)
	end
end
local dirs = named(a, ino, length)
need_counters('usedSpace')
account(delta, 0)
a = put(touch(a, now), LENGTH, length)
call('SET', P .. 'i' .. ino, a)
for i, k in ipairs(keys) do
	call('RPUSH', k[1], k[2])
end
if ARGV[10] == '1' then
	log(now, 'FALLOCATE', nil, ino, dec(from), ARGV[11], how)
end
return finish({ a, fmt('%.0f', delta), before, dirs })
