-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, then per directory: inode, length, space, inodes (texts)
-- -> {how often limits of quotas were changed (text), inodes that have no statistics yet}
local old = done()
if old then
	return old
end
local r, there = { call('GET', P .. '_quotas') or '0' }, {}
local hashes = { 'dirDataLength', 'dirUsedSpace', 'dirUsedInodes' }
for i = 4, #ARGV - 6, 4 do
	if call('HEXISTS', P .. 'dirUsedSpace', ARGV[i]) == 1 then
		for j, k in ipairs(hashes) do
			need_fields(k, ARGV[i])
		end
		there[#there + 1] = i
	else
		r[#r + 1] = ARGV[i]
	end
end
local changed = false
for n, i in ipairs(there) do
	for j, k in ipairs(hashes) do
		if ARGV[i + j] ~= '0' then
			call('HINCRBY', P .. k, ARGV[i], ARGV[i + j])
			changed = true
		end
	end
end
return changed and finish(r) or r
