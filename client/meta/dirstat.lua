-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, then per directory: inode, length, space, inodes (texts)
-- -> {inodes that have no statistics yet}
local old = done()
if old then
	return old
end
local r, changed = {}, false
for i = 4, #ARGV - 2, 4 do
	if call('HEXISTS', P .. 'dirUsedSpace', ARGV[i]) == 1 then
		for j, k in ipairs({ 'dirDataLength', 'dirUsedSpace', 'dirUsedInodes' }) do
			if ARGV[i + j] ~= '0' then
				call('HINCRBY', P .. k, ARGV[i], ARGV[i + j])
				changed = true
			end
		end
	else
		r[#r + 1] = ARGV[i]
	end
end
return changed and finish(r) or r
