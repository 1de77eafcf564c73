-- SPDX-License-Identifier: Apache-2.0
-- Counts of slices whose objects are deleted, and counts that say nothing.
-- ARGV: token, number, now, then fields of sliceRef
local old = done()
if old then
	return old
end
need_hashes('sliceRef')
local n = 0
for i = 4, #ARGV - 3 do
	local v = call('HGET', P .. 'sliceRef', ARGV[i])
	if v and (v == '0' or sub(v, 1, 1) == '-') then
		call('HDEL', P .. 'sliceRef', ARGV[i])
		n = n + 1
		local id, size = string.match(ARGV[i], '^k(%d+)_(%d+)$')
		if v ~= '0' and id then
			log(ARGV[3], 'DELETESLICE', nil, id, size)
		end
	end
end
return finish(n)
