-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, then per directory: inode, length, space, inodes, what was above it
--    (texts; '0': not known)
-- -> {how often limits of quotas were changed (text), {inodes that have no statistics yet}, quotas
--    above them as quota_write, how many of the directories were taken: ways up may be long}
local old = done()
if old then
	return old
end
local STEPS_MOST = 900
local r, there = { call('GET', P .. '_quotas') or '0', {}, {}, 0 }, {}
local hashes = { 'dirDataLength', 'dirUsedSpace', 'dirUsedInodes' }
local sums, owes, hints = {}, {}, {}
local quotas = call('HLEN', P .. 'dirQuota') > 0
for i = 4, #ARGV - 7, 5 do
	hints[ARGV[i]] = ARGV[i + 4]
end
for i = 4, #ARGV - 7, 5 do
	if walked > STEPS_MOST then
		break
	end
	r[4] = r[4] + 1
	if call('HEXISTS', P .. 'dirUsedSpace', ARGV[i]) == 1 then
		for j, k in ipairs(hashes) do
			need_fields(k, ARGV[i])
		end
		there[#there + 1] = i
	else
		r[2][#r[2] + 1] = ARGV[i]
	end
	if quotas then
		local d, space, inodes = ARGV[i], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
		quota_plan(sums, quotas_above(d, hints), 1, space, inodes)
		while d and gone[d] do
			d = parent_of(d, hints)
		end
		if d and d ~= ARGV[i] then
			owed(d)
			owes[#owes + 1] = { d, space, inodes }
		end
	end
end
local changed = #sums + #owes > 0
for n, i in ipairs(there) do
	for j, k in ipairs(hashes) do
		if ARGV[i + j] ~= '0' then
			call('HINCRBY', P .. k, ARGV[i], ARGV[i + j])
			changed = true
		end
	end
end
r[3] = quota_write(sums)
for i, o in ipairs(owes) do
	owe(o[1], o[2], o[3])
end
return changed and finish(r) or r
