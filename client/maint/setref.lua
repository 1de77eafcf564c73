-- SPDX-License-Identifier: Apache-2.0
-- sliceRef of a slice, as gc counted it.
-- ARGV: field, what it was, what it is to be (texts)
-- -> 1: it is so, also when it was before; 0: somebody else changed it
local n = call('HGET', P .. 'sliceRef', ARGV[1]) or '0'
if n ~= ARGV[3] then
	if n ~= ARGV[2] then
		return 0
	end
	call('HSET', P .. 'sliceRef', ARGV[1], ARGV[3])
end
return 1
