-- SPDX-License-Identifier: Apache-2.0
-- Lists of deleted files that have few, and few records in them.
-- ARGV: token, number, now, then members of delfiles ('inode:length')
-- -> {how many members were looked at, {those of them (from 1) that are to be done chunk by chunk},
--    {id, size, id, size, …} (texts): slices that nobody refers to any more}
local old = done()
if old then
	return old
end
local CHUNK, CHUNKS_MOST, KEYS_MOST, RECORDS_MOST = 67108864, 100, 900, 1500
local seen, slow, keys, records = 0, {}, 0, 0
local gone, members, refs, fields, taken = {}, {}, {}, {}, {}
for i = 4, #ARGV - 3 do
	local ino, length = string.match(ARGV[i], '^(%d+):(%d+)$')
	-- above 2^53 inexact, and far too many then
	local n = ino and floor(tonumber(length) / CHUNK) or CHUNKS_MOST + 1
	if ino and call('EXISTS', P .. 'i' .. ino) == 1 then
		-- the database went back and its number came again: the lists are the living one's
		members[#members + 1] = ARGV[i]
	elseif n > CHUNKS_MOST then
		slow[#slow + 1] = i - 3
	else
		-- a second member of the same file finds what the first leaves, in another call
		if taken[ino] or keys + n + 3 > KEYS_MOST then
			break
		end
		local lists, count, cut = {}, 0, false
		-- with the chunk in which the length lies even if it has no byte of it
		for c = 0, n do
			local len = call('LLEN', P .. 'c' .. ino .. '_' .. c)
			if len > 0 then
				lists[#lists + 1] = { ino, c }
				count = count + len
			end
		end
		if count <= RECORDS_MOST and records + count > RECORDS_MOST then
			break
		end
		keys = keys + n + 3
		if count <= RECORDS_MOST then
			records = records + count
			for _, l in ipairs(lists) do
				l[3] = call('LRANGE', P .. 'c' .. ino .. '_' .. l[2], 0, -1)
				for _, s in ipairs(l[3]) do
					cut = cut or (#s == 24 and sub(s, 5, 12) == NONE)
				end
			end
		end
		-- it was once longer: there may be lists behind its end
		if cut or count > RECORDS_MOST then
			slow[#slow + 1] = i - 3
		else
			taken[ino] = true
			members[#members + 1] = ARGV[i]
			for _, l in ipairs(lists) do
				gone[#gone + 1] = l
				for _, s in ipairs(l[3]) do
					if #s == 24 then
						local f = 'k' .. dec(sub(s, 5, 12)) .. '_' ..
							fmt('%.0f', u32(s, 13))
						if not refs[f] then
							refs[f] = 0
							fields[#fields + 1] = f
						end
						refs[f] = refs[f] - 1
					end
				end
			end
		end
	end
	seen = seen + 1
end
local free = {}
call('ZCARD', P .. 'delfiles')
for i = 1, #fields, 200 do
	need_fields('sliceRef', unpack(fields, i, math.min(#fields, i + 199)))
end
for _, l in ipairs(gone) do
	call('DEL', P .. 'c' .. l[1] .. '_' .. l[2])
end
for _, f in ipairs(fields) do
	if call('HINCRBY', P .. 'sliceRef', f, refs[f]) < 0 then
		free[#free + 1], free[#free + 2] = string.match(f, '^k(%d+)_(%d+)$')
	end
end
for i = 1, #members, 200 do
	call('ZREM', P .. 'delfiles', unpack(members, i, math.min(#members, i + 199)))
end
for _, l in ipairs(gone) do
	log(ARGV[3], 'DELCHUNK', nil, l[1], l[2])
end
return finish({ seen, slow, free })
