-- SPDX-License-Identifier: Apache-2.0
-- Slices that compaction left in the trash, and that have been there long enough.
-- ARGV: token, number, now, then fields of delSlices
-- -> {how many fields were done, id, size, id, size, …} (texts): slices that nobody refers to any
--    more
local old = done()
if old then
	return old
end
local n, records, refs, fields, taken = 0, 0, {}, {}, {}
for i = 4, #ARGV - 3 do
	local v = call('HGET', P .. 'delSlices', ARGV[i]) or ''
	if n > 0 and records + #v / 12 > 4000 then
		break
	end
	n, records = n + 1, records + #v / 12
	if v ~= '' and #v % 12 == 0 then
		taken[#taken + 1] = ARGV[i]
		for k = 1, #v, 12 do
			local f = 'k' .. dec(sub(v, k, k + 7)) .. '_' .. fmt('%.0f', u32(v, k + 8))
			if not refs[f] then
				refs[f] = 0
				fields[#fields + 1] = f
				need_fields('sliceRef', f)
			end
			refs[f] = refs[f] - 1
		end
	end
end
local r = { n }
for _, f in ipairs(taken) do
	call('HDEL', P .. 'delSlices', f)
end
for _, f in ipairs(fields) do
	if call('HINCRBY', P .. 'sliceRef', f, refs[f]) < 0 then
		r[#r + 1], r[#r + 2] = string.match(f, '^k(%d+)_(%d+)$')
	end
end
for _, f in ipairs(taken) do
	local id, at = string.match(f, '^(%d+)_(%d+)$')
	log(ARGV[3], 'CLEANUP_DELAYED_SLICES', nil, id or f, at or 0)
end
return finish(r)
