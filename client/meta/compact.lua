-- SPDX-License-Identifier: Apache-2.0
-- The first records of a list become others that show the same bytes.
-- ARGV: token, number, now, inode (text), chunk, the first records as they were read, how many of
--    them stay in front, the records that take the place of the others (24 bytes each), a new
--    number of a slice (text), '1' when what nobody shows any more waits in the trash
-- -> {'changed'}: the list is not what was read; {'done', id, size, id, size, …} (texts): slices
--    that nobody refers to any more; {'done'} too when it happened before and its token is gone
local old = done()
if old then
	return old
end
if went_back() then
	return fail(ESTALE)
end
local ino, index, seen, skip, new = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local key, n = P .. 'c' .. ino .. '_' .. index, #seen / 24
local list = call('LRANGE', key, 0, -1)
local same = {}
for i = 1, math.min(n, #list) do
	local s = list[i]
	-- copies of holes carry any size and offset, which nobody looks at
	same[i] = sub(s, 5, 12) == NONE and sub(s, 1, 12) .. NONE .. sub(s, 21) or s
end
local function name(id)
	return 'k' .. dec(sub(id, 1, 8)) .. '_' .. fmt('%.0f', u32(id, 9))
end
if #list < n or table.concat(same) ~= seen then
	-- A slice that was written for this and that the list shows, or somebody counted since,
	-- tells that it happened: whoever hears 'changed' deletes what he wrote.
	local mine, known = {}, {}
	for i = 1, #seen, 24 do
		known[sub(seen, i + 4, i + 15)] = true
	end
	for i = 1, #new, 24 do
		local id = sub(new, i + 4, i + 15)
		if sub(id, 1, 8) ~= NONE and not known[id] then
			mine[id] = true
		end
	end
	for i, s in ipairs(list) do
		if mine[sub(s, 5, 16)] then
			return { 'done' }
		end
	end
	for id in pairs(mine) do
		if call('HEXISTS', P .. 'sliceRef', name(id)) == 1 then
			return { 'done' }
		end
	end
	return { 'changed' }
end
-- how many records more or less refer to each slice; those that are new have their first for
-- nothing
local change, order = {}, {}
for i = skip + 1, n do
	local id = sub(list[i], 5, 16)
	if sub(id, 1, 8) ~= NONE then
		if not change[id] then
			change[id] = 0
			order[#order + 1] = id
		end
		change[id] = change[id] - 1
	end
end
local push = {}
for i = #new - 23, 1, -24 do
	local id = sub(new, i + 4, i + 15)
	push[#push + 1] = sub(new, i, i + 23)
	if change[id] then
		change[id] = change[id] + 1
	end
end
for i = skip, 1, -1 do
	push[#push + 1] = list[i]
end
for i, id in ipairs(order) do
	need_fields('sliceRef', name(id))
end
-- A record may stand twice in a list and be counted once (a write that was committed twice): what
-- the list still shows keeps at least the references that it shows.
local shown = {}
for i, s in ipairs(push) do
	local id = sub(s, 5, 16)
	shown[id] = (shown[id] or 0) + 1
end
for i = n + 1, #list do
	local id = sub(list[i], 5, 16)
	shown[id] = (shown[id] or 0) + 1
end
for i, id in ipairs(order) do
	if shown[id] and change[id] < 0 then
		local count = tonumber(call('HGET', P .. 'sliceRef', name(id)) or '0')
		change[id] = math.min(0, math.max(change[id], shown[id] - 1 - count))
	end
end
need_hashes('delSlices')
local r, waits = { 'done' }, {}
call('LTRIM', key, n, -1)
for i = 1, #push, 500 do
	call('LPUSH', key, unpack(push, i, math.min(#push, i + 499)))
end
for i, id in ipairs(order) do
	local by = change[id]
	if by < 0 and ARGV[10] == '1' then
		waits[#waits + 1] = string.rep(id, -by)
	elseif by ~= 0 and call('HINCRBY', P .. 'sliceRef', name(id), by) < 0 then
		r[#r + 1], r[#r + 2] = dec(sub(id, 1, 8)), fmt('%.0f', u32(id, 9))
	end
end
if #waits > 0 then
	call('HSET', P .. 'delSlices', ARGV[9] .. '_' .. dec(sub(ARGV[3], 1, 8)),
		table.concat(waits))
end
for i = 1, #new, 24 do
	if sub(new, i + 4, i + 11) ~= NONE and not change[sub(new, i + 4, i + 15)] then
		log(ARGV[3], 'COMPACTCHUNK', nil, ino, index, skip, n - skip, u32(new, i),
			dec(sub(new, i + 4, i + 11)), u32(new, i + 12))
	end
end
return finish(r)
