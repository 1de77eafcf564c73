-- SPDX-License-Identifier: Apache-2.0
-- One chunk of a deleted file.
-- ARGV: token, number, now, inode (text), chunk
-- -> {1 if the file was once cut here, id, size, id, size, …} (texts): slices that nobody refers to
--    any more
local old = done()
if old then
	return old
end
local key, r, t = P .. 'c' .. ARGV[4] .. '_' .. ARGV[5], { 0 }, {}
if call('EXISTS', P .. 'i' .. ARGV[4]) == 1 then
	return fail(EEXIST)
end
local list = call('LRANGE', key, 0, -1)
if #list == 0 then
	return r
end
for i, s in ipairs(list) do
	if #s == 24 and sub(s, 5, 12) == NONE then
		r[1] = 1
	elseif #s == 24 then
		t[#t + 1] = { dec(sub(s, 5, 12)), fmt('%.0f', u32(s, 13)) }
	end
end
for i, s in ipairs(t) do
	need_fields('sliceRef', 'k' .. s[1] .. '_' .. s[2])
end
call('DEL', key)
for i, s in ipairs(t) do
	if call('HINCRBY', P .. 'sliceRef', 'k' .. s[1] .. '_' .. s[2], -1) < 0 then
		r[#r + 1], r[#r + 2] = s[1], s[2]
	end
end
log(ARGV[3], 'DELCHUNK', nil, ARGV[4], ARGV[5])
return finish(r)
