-- SPDX-License-Identifier: Apache-2.0
-- Copies of files, or one of a directory (without what lies in it), that refer to the same slices.
-- ARGV: token, number, now, where: 'in' a directory of a clone that nobody sees yet, 'file' into
--    any directory, 'dir' into none (detached), directory (8 bytes), '1' keeps owner, mode and
--    times, uid, gid, umask, capacity, inodes, '1' with lists, then each one's new number
--    (8 bytes), entry (9 bytes) and name
-- -> for each: what happened ('done', 'skip': it is gone, or was done before, 'big': it has too
--    many chunks for one script), its length, and the copy's uid and gid (8 bytes); fewer than
--    asked for when they are too many
local old = done()
if old then
	return old
end
local CHUNK, KEYS_MOST, RECORDS_MOST, CHUNKS_MOST = 67108864, 900, 4000, 200
local now, where, dir, keep = ARGV[3], ARGV[4], ARGV[5], ARGV[6] == '1'
local dtext = dec(dir)
local d = P .. 'd' .. dtext
local pa = get(dtext)
if not pa then
	return fail(pa == nil and ENOENT or EIO)
end
if kind(pa) ~= DIR then
	return fail(ENOTDIR)
end
if where ~= 'in' then
	if trashed(pa) or is_trash(dir) then
		return fail(ENOENT)
	end
	if flag(pa, IMMUTABLE) then
		return fail(EPERM)
	end
	if call('HEXISTS', d, sub(ARGV[13], 18)) == 1 then
		return fail(EEXIST)
	end
end
local r, items, keys, records, refs, fields = {}, {}, 0, 0, {}, {}
local sum = { pages = 0, inodes = 0, length = 0, dirs = 0 }

-- the lists of a file; nil: they are too many
local function lists(item)
	local l = field(item.a, LENGTH)
	local n = u32(l, 1) * 64 + floor(u32(l, 5) / CHUNK)
	if n > CHUNKS_MOST then
		return nil
	end
	local found, count = {}, 0
	for i = 0, l ~= NONE and n or -1 do
		local list = call('LRANGE', P .. 'c' .. item.src .. '_' .. i, 0, -1)
		if #list > 0 then
			found[#found + 1] = { i, list }
			count = count + #list
		end
	end
	item.keys, item.records = 2 * n + 2, count
	return count <= RECORDS_MOST and found or nil
end

local function count_refs(item)
	for _, c in ipairs(item.lists) do
		for _, s in ipairs(c[2]) do
			if #s ~= 24 then
				return false
			end
			if sub(s, 5, 12) ~= NONE then
				local f = 'k' .. dec(sub(s, 5, 12)) .. '_' ..
					fmt('%.0f', u32(s, 13))
				if not refs[f] then
					refs[f] = 0
					fields[#fields + 1] = f
				end
				refs[f] = refs[f] + 1
			end
		end
	end
	return true
end

for i = 13, #ARGV - 3 do
	local new, e, name = sub(ARGV[i], 1, 8), sub(ARGV[i], 9, 17), sub(ARGV[i], 18)
	local item = { new = dec(new), ino = new, e = e, name = name, src = dec(sub(e, 2, 9)),
		keys = 0, records = 0, lists = {} }
	local a = get(item.src)
	if a == false or call('EXISTS', P .. 'i' .. item.new) == 1 then
		return fail(EIO)
	end
	local what = 'done'
	if not a or kind(a) ~= byte(e, 1) or (where == 'in' and call('HEXISTS', d, name) == 1) then
		if where ~= 'in' then
			return fail(ENOENT)
		end
		what = 'skip'
	else
		item.a = a
		if kind(a) == FILE and ARGV[12] == '1' then
			item.lists = lists(item)
		elseif kind(a) == SYMLINK then
			item.target = call('GET', P .. 's' .. item.src)
		end
		item.xattrs = call('HGETALL', P .. 'x' .. item.src)
		if not item.lists then
			what = 'big'
		elseif kind(a) == SYMLINK and not item.target then
			return fail(EIO)
		end
	end
	if what == 'done' then
		keys, records = keys + item.keys + 6, records + item.records
		if #items > 0 and (keys > KEYS_MOST or records > RECORDS_MOST) then
			break
		end
		if not count_refs(item) then
			return fail(EIO)
		end
		items[#items + 1] = item
		sum.inodes = sum.inodes + 1
		sum.pages = sum.pages + (kind(a) == FILE and pages(field(a, LENGTH)) or 1)
	end
	local n = #r
	r[n + 1] = what
	r[n + 2] = what == 'done' and kind(a) == FILE and field(a, LENGTH) or NONE
	r[n + 3] = a and keep and field(a, UID) or p32(tonumber(ARGV[7])) .. p32(tonumber(ARGV[8]))
end
if over(sum.pages, sum.inodes, ARGV[10], ARGV[11]) then
	return fail(ENOSPC)
end
need_counters('usedSpace', 'totalInodes')
need_hashes('sliceRef', 'd' .. dtext, 'dirDataLength', 'dirUsedSpace', 'dirUsedInodes')
need_fields('dirDataLength', dtext)
need_fields('dirUsedSpace', dtext)
need_fields('dirUsedInodes', dtext)
for _, f in ipairs(fields) do
	need_fields('sliceRef', f)
end
call('ZCARD', P .. 'detachedNodes')

local function pushed(key, list)
	for i = 1, #list, 500 do
		call('RPUSH', key, unpack(list, i, math.min(#list, i + 499)))
	end
end
account(sum.pages, sum.inodes)
for _, item in ipairs(items) do
	local a, typ = put(item.a, PARENT, dir), kind(item.a)
	if not keep then
		a = put_mode(a, bit.band(mode(a), bit.bnot(tonumber(ARGV[9]))))
		a = put(a, UID, p32(tonumber(ARGV[7])) .. p32(tonumber(ARGV[8])) ..
			now .. now .. now)
	end
	a = put(a, NLINK, p32(typ == DIR and 2 or 1))	-- links are not kept
	call('SET', P .. 'i' .. item.new, a)
	for i = 1, #item.xattrs, 2 do
		call('HSET', P .. 'x' .. item.new, item.xattrs[i], item.xattrs[i + 1])
	end
	for _, c in ipairs(item.lists) do
		pushed(P .. 'c' .. item.new .. '_' .. c[1], c[2])
	end
	if item.target then
		call('SET', P .. 's' .. item.new, item.target)
	end
	if typ == DIR then
		sum.dirs = sum.dirs + 1
		call('HSET', P .. 'dirUsedInodes', item.new, '0')
		call('HSET', P .. 'dirDataLength', item.new, '0')
		call('HSET', P .. 'dirUsedSpace', item.new, '0')
	end
	if where == 'dir' then
		call('ZADD', P .. 'detachedNodes', dec(sub(now, 1, 8)), item.new)
	else
		call('HSET', d, item.name, sub(item.e, 1, 1) .. item.ino)
	end
	if where == 'in' then	-- its statistics are nobody else's yet
		if typ == FILE then
			call('HINCRBY', P .. 'dirDataLength', dtext, dec(field(a, LENGTH)))
		end
		call('HINCRBY', P .. 'dirUsedSpace', dtext,
			fmt('%.0f', (typ == FILE and pages(field(a, LENGTH)) or 1) * 4096))
		call('HINCRBY', P .. 'dirUsedInodes', dtext, 1)
	end
end
for _, f in ipairs(fields) do
	call('HINCRBY', P .. 'sliceRef', f, refs[f])
end
if where == 'file' and #items > 0 then
	call('SET', P .. 'i' .. dtext, touch(pa, now))
elseif where == 'in' and sum.dirs > 0 then
	call('SET', P .. 'i' .. dtext, links(pa, sum.dirs))
end
for _, item in ipairs(items) do
	log(now, 'CLONE', item.new, item.src, dtext, item.name, item.new, keep and 2 or 0, ARGV[9],
		where ~= 'in')
end
return finish(r)
