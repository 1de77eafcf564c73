-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, parent (8 bytes), name, new parent (8 bytes), new name, flags, uid,
--    skip, hour or '', session, open inodes, gid, gids, inode of the whiteout (8 bytes or ''),
--    capacity, inodes, then of the moved and of the exchanged, where it is a directory: it and all
--    directories below (8 bytes each; '': the sums are to do), sums of space and inodes below it
--    (texts; '': nobody looked)
-- -> {record of the moved, its 8 bytes, what happened: '' nothing, 'move', 'exchange', as
--    remove_write for the replaced or record and 8 bytes of the exchanged, quotas as quota_write,
--    records of both directories}; {false} when something has the whiteout's number; {'which',
--    8 bytes}: is that one open? (remove_plan); {'below'}: what is below it has to be looked at
local old = done()
if old then
	return old
end
local STEPS_MOST, ELOOP, ROOT = 900, 40, '\0\0\0\0\0\0\0\1'
local now, src, sname, dst, dname = ARGV[3], dec(ARGV[4]), ARGV[5], dec(ARGV[6]), ARGV[7]
local flags, uid = tonumber(ARGV[8]), tonumber(ARGV[9])
local noreplace, exchange = bit.band(flags, 1) ~= 0, bit.band(flags, 2) ~= 0
local whiteout, restore = bit.band(flags, 4) ~= 0, bit.band(flags, 32) ~= 0
local same = ARGV[4] == ARGV[6]
local e = call('HGET', P .. 'd' .. src, sname)
if not e then
	return fail(ENOENT)
end
local de = call('HGET', P .. 'd' .. dst, dname)
if #e ~= 9 or (de and #de ~= 9) then
	return fail(EIO)
end
local typ, ino = byte(e, 1), sub(e, 2, 9)
local text = dec(ino)
local a = get(text)
if not a then
	return fail(a == nil and ENOENT or EIO)
end
if same and sname == dname then
	return { a, ino, '' }
end
if de and noreplace then
	return fail(EEXIST)
end
local sa, da = get(src), get(dst)
if sa == false or da == false then
	return fail(EIO)
end
if not sa or not da then
	return fail(ENOENT)
end
if kind(sa) ~= DIR or kind(da) ~= DIR then
	return fail(ENOTDIR)
end
if trashed(da) and not restore or whiteout and trashed(sa) then
	return fail(ENOENT)
end
if flag(sa, APPEND) or flag(sa, IMMUTABLE) or flag(da, IMMUTABLE) or
		flag(a, APPEND) or flag(a, IMMUTABLE) or de and flag(da, APPEND) then
	return fail(EPERM)
end
if ino == ARGV[6] or ino == field(da, PARENT) then
	return fail(EPERM)
end
if de and sub(de, 2, 9) == ino then
	return { a, ino, '' }
end
if not de and exchange then
	return fail(ENOENT)
end
-- the kernel lets the owner of a sticky directory move others' directories out of it; where nobody
-- asked it, JuiceFS's rule holds
if ARGV[15] ~= '' and not same and bit.band(mode(sa), 512) ~= 0 and uid ~= 0 and
		uid ~= u32(a, UID) and (uid ~= u32(sa, UID) or typ == DIR) then
	return fail(EACCES)
end
if sticky(sa, a, uid) then
	return fail(EACCES)
end

if typ == DIR and not same and not exchange and full_of_links(da) then
	return fail(EMLINK)
end

local made, n, err
if whiteout then
	n = {
		now = now, parent = ARGV[4], ino = ARGV[16], type = CHARDEV, mode = 0, umask = 0,
		uid = uid, gid = tonumber(ARGV[14]), gids = ARGV[15], rdev = 0, target = '',
		links = 1,
	}
	if call('EXISTS', P .. 'i' .. dec(n.ino)) == 1 then
		return { false }
	end
	if over(1, 1, ARGV[17], ARGV[18]) then
		return fail(ENOSPC)
	end
	made, err = make_plan(sa, n)
	if not made then
		return fail(err)
	end
end

local plan, b, dtyp, dino
if de then
	dtyp, dino = byte(de, 1), sub(de, 2, 9)
	b = get(dec(dino))
	if b == false or (exchange and not b) then
		return fail(EIO)
	end
	if b and (flag(b, APPEND) or flag(b, IMMUTABLE)) then
		return fail(EPERM)
	end
	if b and sticky(da, b, uid) then
		return fail(EACCES)
	end
	if not exchange then
		if typ == DIR and dtyp ~= DIR then
			return fail(ENOTDIR)
		end
		if typ ~= DIR and dtyp == DIR then
			return fail(EISDIR)
		end
		if dtyp == DIR and call('HLEN', P .. 'd' .. dec(dino)) > 0 then
			return fail(ENOTEMPTY)
		end
		local ask
		plan, err, ask = remove_plan(dst, dname, de, b, ARGV[11], ARGV[12], ARGV[13])
		if not plan then
			return ask and { 'which', ask } or fail(err)
		end
	elseif dino == ARGV[4] or dino == field(sa, PARENT) then
		return fail(EPERM)
	end
end

-- Why directory d (8 bytes, text) must not go into the one with record r: it would lie in itself,
-- as when another client moved the other of the two meanwhile (the kernel knows one mount's moves).
-- What is empty has nobody in it.
local steps = 0
local function in_itself(d, dtext, r)
	if call('HLEN', P .. 'd' .. dtext) == 0 then
		return nil
	end
	local up = field(r, PARENT)
	while up ~= NONE and up ~= ROOT and not is_trash(up) do
		steps = steps + 1
		if up == d then
			return EINVAL
		end
		if steps > STEPS_MOST then
			return ELOOP
		end
		r = get(dec(up))
		if not r then	-- nil: it hangs in the air, as what a clone builds does
			return r == false and EIO or nil
		end
		up = field(r, PARENT)
	end
	return nil
end

if not same and typ == DIR then
	err = in_itself(ino, text, da)
end
if not same and exchange and dtyp == DIR then
	err = err or in_itself(dino, dec(dino), sa)
end
if err then
	return fail(err)
end

-- r has several links, and one of them moves
local function many(r)
	return not same and field(r, PARENT) == NONE and kind(r) ~= DIR
end

-- moves the one link of record r from directory text f to t (8 bytes tb)
local function reparent(r, rtext, f, t, tb)
	if not many(r) then
		return put(r, PARENT, tb)
	end
	call('HINCRBY', P .. 'p' .. rtext, t, 1)
	call('HINCRBY', P .. 'p' .. rtext, f, -1)
	return r
end

-- Usage of quotas that are above only one of the two places.
local sums = {}
if not same and (typ == DIR or exchange and dtyp == DIR) and call('HLEN', P .. 'dirQuota') > 0 then
	local function but(list, other)
		local r, common = {}, {}
		for _, id in ipairs(other) do
			common[id] = true
		end
		for _, id in ipairs(list) do
			r[#r + 1] = not common[id] and id or nil
		end
		return r
	end
	local from, to = quotas_above(src, {}), quotas_above(dst, {})
	from, to = but(from, to), but(to, from)
	if #from + #to > 0 then
		local function carry(d, r, at, n)
			local space, inodes = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
			if ARGV[at] ~= '' then
				space, inodes = below(d, r, ARGV[at])
			end
			if not space or not inodes then
				return false
			end
			quota_plan(sums, from, -n, space, inodes)
			quota_plan(sums, to, n, space, inodes)
			return true
		end
		if typ == DIR and not carry(text, a, 19, 1) or
				exchange and dtyp == DIR and not carry(dec(dino), b, 22, -1) then
			return { 'below' }
		end
	end
end

if many(a) then
	need_fields('p' .. text, src, dst)
end
if exchange and many(b) then
	need_fields('p' .. dec(dino), src, dst)
end

local result = { a, ino, 'move' }
local removed = plan and remove_write(plan, now, ARGV[12])
local sdelta, ddelta = 0, 0	-- sub-directories
a = put(a, CTIME, now)
if not same then
	a = reparent(a, text, src, dst, ARGV[6])
	if typ == DIR then
		sdelta, ddelta = -1, 1
	end
end
if exchange then
	b = put(b, CTIME, now)
	if not same then
		b = reparent(b, dec(dino), dst, src, ARGV[4])
		if dtyp == DIR then
			sdelta, ddelta = sdelta + 1, ddelta - 1
		end
	end
	call('SET', P .. 'i' .. dec(dino), b)
	call('HSET', P .. 'd' .. src, sname, de)
	result = { a, ino, 'exchange', b, dino }
else
	if not made then
		call('HDEL', P .. 'd' .. src, sname)
	end
	if dtyp == DIR then
		ddelta = ddelta - 1
	end
end
call('SET', P .. 'i' .. text, a)
call('HSET', P .. 'd' .. dst, dname, e)
local dirs = not same and (typ == DIR or (exchange and dtyp == DIR))
if not same and not is_trash(ARGV[4]) and (dirs or touchable(sa, now, ARGV[10])) then
	sa = links(touch(sa, now), sdelta)
	call('SET', P .. 'i' .. src, sa)
end
if dirs or ddelta ~= 0 or touchable(da, now, ARGV[10]) then
	da = links(touch(da, now), ddelta)
	call('SET', P .. 'i' .. dst, da)
end
if LOG ~= '' then
	log(now, 'MOVE', text, src, sname, dst, dname, flags - (whiteout and 4 or 0),
		dino and dec(dino) or 0, hour_text(plan))
end
if made then
	make_write(made, n)
	call('HSET', P .. 'd' .. src, sname, char(CHARDEV) .. n.ino)
	make_log(n, src, sname, false)
end
result[1] = a
if removed then
	for i = 1, #removed do
		result[3 + i] = removed[i]
	end
end
result[#result + 1] = quota_write(sums)
result[#result + 1] = same and da or sa
result[#result + 1] = da
return finish(result)
