-- SPDX-License-Identifier: Apache-2.0
-- Lists of a file for its copy, which nobody sees yet and which has none of them.
-- ARGV: token, number, now, source, copy (inodes, texts), numbers of chunks (4 bytes each)
-- -> {how many were done}
local old = done()
if old then
	return old
end
local src, new, chunks, records = ARGV[4], ARGV[5], ARGV[6], 4000
if call('EXISTS', P .. 'i' .. src) == 0 or call('EXISTS', P .. 'i' .. new) == 0 then
	return fail(ENOENT)
end
local found, refs, fields, n = {}, {}, {}, 0
for i = 1, #chunks, 4 do
	local c = '_' .. fmt('%.0f', u32(chunks, i))
	local list = call('LRANGE', P .. 'c' .. src .. c, 0, -1)
	if n > 0 and #list > records then
		break
	end
	n, records = n + 1, records - #list
	if #list > 0 and call('LLEN', P .. 'c' .. new .. c) == 0 then
		found[#found + 1] = { P .. 'c' .. new .. c, list }
		for _, s in ipairs(list) do
			if #s ~= 24 then
				return fail(EIO)
			end
			if sub(s, 5, 12) ~= NONE then
				local f = 'k' .. dec(sub(s, 5, 12)) .. '_' ..
					fmt('%.0f', u32(s, 13))
				if not refs[f] then
					refs[f] = 0
					fields[#fields + 1] = f
					need_fields('sliceRef', f)
				end
				refs[f] = refs[f] + 1
			end
		end
	end
end
for _, c in ipairs(found) do
	for i = 1, #c[2], 500 do
		call('RPUSH', c[1], unpack(c[2], i, math.min(#c[2], i + 499)))
	end
end
for _, f in ipairs(fields) do
	call('HINCRBY', P .. 'sliceRef', f, refs[f])
end
return finish({ n })
