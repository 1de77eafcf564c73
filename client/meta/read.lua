-- SPDX-License-Identifier: Apache-2.0
-- ARGV: inode (text), first chunk, number of chunks
-- -> {record, highest slice number handed out (text), list, list, …}: the lists and the attributes
--    that they belong to
local bad = stale()
if bad then
	return bad
end
local next = call('GET', P .. 'nextchunk') or '0'
if less_text(next, HIGHEST) then
	return fail(ESTALE)	-- lists of another time
end
local a = call('GET', P .. 'i' .. ARGV[1])
if not a then
	return fail(ENOENT)
end
local r = { a, next }
if #a >= 63 and kind(a) == FILE then
	for i = tonumber(ARGV[2]), tonumber(ARGV[2]) + tonumber(ARGV[3]) - 1 do
		r[#r + 1] = call('LRANGE', P .. 'c' .. ARGV[1] .. '_' .. fmt('%.0f', i), 0, -1)
	end
end
return r
