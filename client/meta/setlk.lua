-- SPDX-License-Identifier: Apache-2.0
-- A record lock (POSIX, OFD), or the end of one. An owner's records are 24 bytes each (type, pid,
-- start, end, which is inclusive), sorted, without overlaps, neighbours of one kind joined.
-- ARGV: token, number, now, inode (text), session, owner (16 hexadecimal digits), owner (text),
--    'R', 'W' or 'U', pid, start, end (8 bytes both)
-- -> {1}; {0}: another owner is in the way
local old = done()
if old then
	return old
end
local ENOLCK, MOST = 37, 16384
local key, locked = P .. 'lockp' .. ARGV[4], P .. 'locked' .. ARGV[5]
local field, prefix, typ = ARGV[5] .. '_' .. ARGV[6], ARGV[5] .. '_', ARGV[8]
local from, to = ARGV[10], ARGV[11]

local function step(b, by)
	local h, l = u32(b, 1), u32(b, 5) + by
	if l < 0 then
		h, l = h - 1, 4294967295
	elseif l > 4294967295 then
		h, l = h + 1, 0
	end
	return p32(h) .. p32(l)
end

-- the record at i of s lies in the range
local function overlaps(s, i)
	return not less(to, sub(s, i + 8, i + 15)) and not less(sub(s, i + 16, i + 23), from)
end

local mine, more, others = '', false, {}
local all = call('HGETALL', key)
for i = 1, #all, 2 do
	if #all[i + 1] % 24 ~= 0 then
		return fail(EIO)
	end
	if all[i] == field then
		mine = all[i + 1]
	else
		others[#others + 1] = all[i + 1]
		more = more or sub(all[i], 1, #prefix) == prefix
	end
end
call('SCARD', locked)
if typ == 'U' and mine == '' then
	return { 1 }
end
if typ ~= 'U' then
	for _, s in ipairs(others) do
		for i = 1, #s, 24 do
			if (typ == 'W' or u32(s, i) == 1) and overlaps(s, i) then
				return { 0 }
			end
		end
	end
end

local rest = {}
for i = 1, #mine, 24 do
	local head, a, b = sub(mine, i, i + 7), sub(mine, i + 8, i + 15), sub(mine, i + 16, i + 23)
	if overlaps(mine, i) then
		if less(a, from) then
			rest[#rest + 1] = { head, a, step(from, -1) }
		end
		if less(to, b) then
			rest[#rest + 1] = { head, step(to, 1), b }
		end
	else
		rest[#rest + 1] = { head, a, b }
	end
end
if typ ~= 'U' then
	rest[#rest + 1] = { p32(typ == 'W' and 1 or 0) .. p32(tonumber(ARGV[9])), from, to }
end
table.sort(rest, function(x, y)
	return less(x[2], y[2])
end)
local out = {}
for _, r in ipairs(rest) do
	local last = out[#out]
	if last and last[1] == r[1] and step(last[3], 1) == r[2] then
		last[3] = r[3]
	else
		out[#out + 1] = r
	end
end
if #out > MOST and #out * 24 > #mine then
	return fail(ENOLCK)
end
for i, r in ipairs(out) do
	out[i] = r[1] .. r[2] .. r[3]
end

if #out > 0 then
	call('HSET', key, field, table.concat(out))
	call('SADD', locked, key)
else
	call('HDEL', key, field)
	if not more then
		call('SREM', locked, key)
	end
end
log(ARGV[3], 'SETLK', nil, ARGV[4], ARGV[7], typ, dec(from), dec(to), ARGV[9])
return finish({ 1 })
