-- SPDX-License-Identifier: Apache-2.0
-- ARGV: inode (text), first chunk, number of chunks
-- -> {record, list, list, …}: the lists and the attributes that they belong to
local a = call('GET', P .. 'i' .. ARGV[1])
if not a then
	return fail(ENOENT)
end
local r = { a }
if #a >= 63 and kind(a) == FILE then
	for i = tonumber(ARGV[2]), tonumber(ARGV[2]) + tonumber(ARGV[3]) - 1 do
		r[#r + 1] = call('LRANGE', P .. 'c' .. ARGV[1] .. '_' .. fmt('%.0f', i), 0, -1)
	end
end
return r
