-- SPDX-License-Identifier: Apache-2.0
-- One chunk of a deleted file, of a long list its first records.
-- ARGV: token, number, now, inode (text), chunk
-- -> {1 if the file was once cut here, 1 if there are more records, id, size, id, size, …} (texts):
--    slices that nobody refers to any more
local old = done()
if old then
	return old
end
local RECORDS_MOST = 1500
local key, r, refs, fields = P .. 'c' .. ARGV[4] .. '_' .. ARGV[5], { 0, 0 }, {}, {}
if call('EXISTS', P .. 'i' .. ARGV[4]) == 1 then
	return fail(EEXIST)
end
local len = call('LLEN', key)
if len == 0 then
	return r
end
for _, s in ipairs(call('LRANGE', key, 0, RECORDS_MOST - 1)) do
	if #s == 24 and sub(s, 5, 12) == NONE then
		r[1] = 1
	elseif #s == 24 then
		local f = 'k' .. dec(sub(s, 5, 12)) .. '_' .. fmt('%.0f', u32(s, 13))
		if not refs[f] then
			refs[f] = 0
			fields[#fields + 1] = f
		end
		refs[f] = refs[f] - 1
	end
end
for i = 1, #fields, 200 do
	need_fields('sliceRef', unpack(fields, i, math.min(#fields, i + 199)))
end
if len > RECORDS_MOST then
	r[2] = 1
	call('LTRIM', key, RECORDS_MOST, -1)
else
	call('DEL', key)
end
for _, f in ipairs(fields) do
	if call('HINCRBY', P .. 'sliceRef', f, refs[f]) < 0 then
		r[#r + 1], r[#r + 2] = string.match(f, '^k(%d+)_(%d+)$')
	end
end
if r[2] == 0 then
	log(ARGV[3], 'DELCHUNK', nil, ARGV[4], ARGV[5])
end
return finish(r)
