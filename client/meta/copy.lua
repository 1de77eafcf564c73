-- SPDX-License-Identifier: Apache-2.0
-- A part of one file shows what a part of another, or of itself, shows: records that refer to the
-- same slices.
-- ARGV: token, number, now, source inode (text), chunk and offset in it, destination inode (text),
--    chunk and offset in it, length, capacity, how many records it may read (more are read when one
--    list has more)
-- -> {record of the destination, length copied (text), its old length, the source's length before,
--    as named of the destination}
local old = done()
if old then
	return old
end
local CHUNK = 67108864
local now, src, dst = ARGV[3], ARGV[4], ARGV[7]
local si, so, di, d_o = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8]), tonumber(ARGV[9])
local len = tonumber(ARGV[10])
local from, to = get(src), get(dst)
if not from or not to then
	return fail((from == nil or to == nil) and ENOENT or EIO)
end
if kind(from) ~= FILE or kind(to) ~= FILE then
	return fail(EINVAL)
end
if flag(to, IMMUTABLE) or flag(to, APPEND) then
	return fail(EPERM)
end
local before, end_of = field(to, LENGTH), field(from, LENGTH)
-- numbers of chunks and offsets in them are small; what is left of the source may be more than
-- Lua counts exactly, but is then more than len anyway
local left = (u32(end_of, 1) * 64 + floor(u32(end_of, 5) / CHUNK) - si) * CHUNK +
	u32(end_of, 5) % CHUNK - so
len = math.min(len, left)
if len <= 0 then
	return { to, '0', before, end_of, {} }
end

-- What a list shows of [from, to), left to right, as {pos, id, size, off, length}; id NONE: zeros.
-- A sweep over all edges; a heap holds the records that may cover the place, the latest on top.
local MANY = 1048576
local function view(list, from, to)
	local starts, stops, edges, heap, pieces = {}, {}, { from, to }, {}, {}
	for i, s in ipairs(list) do
		local a = math.max(u32(s, 1), from)
		local b = math.min(u32(s, 1) + u32(s, 21), to)
		if a < b then
			starts[#starts + 1], stops[i] = a * MANY + i, b
			edges[#edges + 1], edges[#edges + 2] = a, b
		end
	end
	table.sort(starts)
	table.sort(edges)
	local function push(v)
		local i = #heap + 1
		heap[i] = v
		while i > 1 and heap[floor(i / 2)] < v do
			heap[i], i = heap[floor(i / 2)], floor(i / 2)
			heap[i] = v
		end
	end
	local function pop()
		local v, i, c = table.remove(heap), 1, 2
		if #heap == 0 then
			return
		end
		while heap[c] do
			if heap[c + 1] and heap[c + 1] > heap[c] then
				c = c + 1
			end
			if heap[c] <= v then
				break
			end
			heap[i], i, c = heap[c], c, 2 * c
		end
		heap[i] = v
	end
	local next, last = 1, nil
	for e = 1, #edges - 1 do
		local a, b = edges[e], edges[e + 1]
		while starts[next] and starts[next] < (a + 1) * MANY do
			push(starts[next] % MANY)
			next = next + 1
		end
		while heap[1] and stops[heap[1]] <= a do
			pop()
		end
		local rec = heap[1] or 0
		if a < b and last == rec then
			local p = pieces[#pieces]
			p[5] = p[5] + b - a
		elseif a < b then
			local s = list[rec]
			pieces[#pieces + 1] = s and { a, sub(s, 5, 12), sub(s, 13, 16),
				u32(s, 17) + a - u32(s, 1), b - a } or
				{ a, NONE, '\0\0\0\0', 0, b - a }
			last = rec
		end
	end
	return pieces
end

-- reads: the source's lists, as many as may be read at once, become records of the destination
local out, order, refs, fields, room = {}, {}, {}, {}, tonumber(ARGV[12])
local function push(pos, p, skip, n)
	local i = di + floor(pos / CHUNK)
	if not out[i] then
		out[i] = {}
		order[#order + 1] = i
		call('LLEN', P .. 'c' .. dst .. '_' .. fmt('%.0f', i))
	end
	local t, hole = out[i], p[2] == NONE
	if hole and t.hole and t.stop == pos then	-- zeros behind zeros: one record
		t.hole = t.hole + n
		t[#t] = p32(t.begin) .. NONE .. NONE .. p32(t.hole)
	else
		t[#t + 1] = p32(pos % CHUNK) .. p[2] .. (hole and '\0\0\0\0' or p[3]) ..
			p32(hole and 0 or p[4] + skip) .. p32(n)
		t.hole, t.begin = hole and n or nil, pos % CHUNK
	end
	t.stop = pos + n
	if not hole then
		local f = 'k' .. dec(p[2]) .. '_' .. fmt('%.0f', u32(p[3], 1))
		if not refs[f] then
			refs[f] = 0
			fields[#fields + 1] = f
			need_fields('sliceRef', f)
		end
		refs[f] = refs[f] + 1
	end
end
local copied = 0
while copied < len and room > 0 do
	local key = P .. 'c' .. src .. '_' .. fmt('%.0f', si)
	local list = call('LRANGE', key, 0, -1)
	local n = math.min(len - copied, CHUNK - so)
	if #list >= MANY then
		return fail(EIO)
	end
	for i, s in ipairs(list) do
		if #s ~= 24 then
			return fail(EIO)
		end
	end
	for i, p in ipairs(view(list, so, so + n)) do
		local pos, skip, rest = d_o + copied + p[1] - so, 0, p[5]
		while rest > 0 do	-- the destination's chunks begin elsewhere
			local k = math.min(rest, CHUNK - pos % CHUNK)
			push(pos, p, skip, k)
			pos, skip, rest = pos + k, skip + k, rest - k
		end
	end
	copied, si, so = copied + n, si + 1, 0
	room = room - #list - 1
end
local stop = d_o + copied
local ei, eo = di + floor(stop / CHUNK), stop % CHUNK
local length = p32(floor(ei / 64)) .. p32(ei % 64 * CHUNK + eo)
if less(length, before) then
	length = before
end
local delta = pages(length) - pages(before)
if over(delta, 0, ARGV[11], '0') then
	return fail(ENOSPC)
end
local dirs = named(to, dst, length)
need_counters('usedSpace')
need_hashes('sliceRef')
account(delta, 0)
to = put(touch(to, now), LENGTH, length)
call('SET', P .. 'i' .. dst, to)
for _, i in ipairs(order) do
	local t, key = out[i], P .. 'c' .. dst .. '_' .. fmt('%.0f', i)
	for k = 1, #t, 500 do
		call('RPUSH', key, unpack(t, k, math.min(#t, k + 499)))
	end
end
for _, f in ipairs(fields) do
	call('HINCRBY', P .. 'sliceRef', f, refs[f])
end
local function place(i, o)
	return dec(p32(floor(i / 64)) .. p32(i % 64 * CHUNK + o))
end
log(now, 'COPYFILERANGE', dec(length), src, place(tonumber(ARGV[5]), tonumber(ARGV[6])), dst,
	place(di, d_o), fmt('%.0f', copied))
return finish({ to, fmt('%.0f', copied), before, end_of, dirs })
