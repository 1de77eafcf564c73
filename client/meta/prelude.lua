-- SPDX-License-Identifier: Apache-2.0
-- In front of every script. KEYS[1] is the prefix and "setting". Inodes and lengths come as 8
-- bytes, big-endian, and stay strings: Lua's numbers lose what is above 2^53. Strings are never
-- compared with < (strcoll). A script reads and checks all it needs before its first write: what it
-- wrote stays when it fails.
-- Behind all other arguments come three: who writes the change log ("session,number"; '' when the
-- volume keeps none), the highest slice number that the caller knows to be handed out (text), and
-- what it knows the database by: the generation (8 bytes) or, where there was none, the volume's
-- UUID.
local P = string.sub(KEYS[1], 1, -8)
local LOG, HIGHEST, MARK = ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]
local call, sub, byte, char = redis.call, string.sub, string.byte, string.char
local floor, fmt = math.floor, string.format
local FILE, DIR, SYMLINK, CHARDEV = 1, 2, 3, 6
local IMMUTABLE, APPEND, SKIP_TRASH = 1, 2, 32
local EPERM, ENOENT, EIO, EACCES, EEXIST, ENOTDIR, EISDIR = 1, 2, 5, 13, 17, 20, 21
local EINVAL, ENOSPC, EMLINK, ENOTEMPTY, ENODATA, ESTALE = 22, 28, 31, 39, 61, 116
-- where the fields of an attribute record begin
local UID, GID, ATIME, MTIME, CTIME, NLINK = 4, 8, 12, 24, 36, 48
local LENGTH, RDEV, PARENT, TAIL = 52, 60, 64, 72
local TRASH = '\127\255\255\255\16\0\0\0'
local TRASH_TEXT = '9223372032828243968'
local NONE = '\0\0\0\0\0\0\0\0'

-- In a cluster whose slot is on its way to another node, asking for a key that is never there is an
-- error: the script ends before it takes keys that have left for keys that do not exist.
if P ~= '' then
	call('EXISTS', P .. '_absent')
end

local function fail(n)
	return redis.error_reply('ERRNO ' .. n)
end

local function u16(s, i)
	local a, b = byte(s, i, i + 1)
	return a * 256 + b
end

local function u32(s, i)
	local a, b, c, d = byte(s, i, i + 3)
	return ((a * 256 + b) * 256 + c) * 256 + d
end

local function p16(v)
	return char(floor(v / 256) % 256, v % 256)
end

local function p32(v)
	return char(floor(v / 16777216) % 256, floor(v / 65536) % 256, floor(v / 256) % 256,
		v % 256)
end

-- a number below 2^53 as 8 bytes
local function p64(v)
	return p32(floor(v / 4294967296)) .. p32(v % 4294967296)
end

-- 8 bytes as decimal text, exactly: above 2^53 in two parts around 10^6 (2^32 = 4294 * 10^6 +
-- 967296)
local function dec(b)
	local h, l = u32(b, 1), u32(b, 5)
	if h < 2097152 then
		return fmt('%.0f', h * 4294967296 + l)
	end
	local low = h * 967296 + l
	return fmt('%.0f%06.0f', h * 4294 + floor(low / 1000000), low % 1000000)
end

-- a < b, both 8 bytes
local function less(a, b)
	local x, y = u32(a, 1), u32(b, 1)
	if x ~= y then
		return x < y
	end
	return u32(a, 5) < u32(b, 5)
end

-- a < b, both decimal texts
local function less_text(a, b)
	if #a ~= #b then
		return #a < #b
	end
	for i = 1, #a do
		local x, y = byte(a, i), byte(b, i)
		if x ~= y then
			return x < y
		end
	end
	return false
end

-- pages of 4096 that a length costs: exact up to 2^57, and so is their product with 4096 as text
local function pages(len)
	local l = u32(len, 5)
	local n = u32(len, 1) * 1048576 + floor((l + 4095) / 4096)
	return n > 0 and n or 1
end

-- What will be added to or put into, looked at before the first write: these stop the script when a
-- key is of another type, or holds no number (or one with no room above it) where one is needed.
-- (Lists, sets and sorted sets: by a call of LLEN, SCARD, ZCARD.)
local function need_hashes(...)
	for i, k in ipairs({ ... }) do
		call('HLEN', P .. k)
	end
end

local function need_number(v)
	if v and ((not string.find(v, '^%-?[1-9]%d*$') and v ~= '0') or
			less_text('8999999999999999999', (string.gsub(v, '-', '')))) then
		error('damaged counter')
	end
end

local function need_counters(...)
	for i, k in ipairs({ ... }) do
		need_number(call('GET', P .. k))
	end
end

local function need_fields(k, ...)
	for i, v in ipairs(call('HMGET', P .. k, ...)) do
		need_number(v)
	end
end

-- One line of the change log (docs/format.md §2.17), behind the writes it tells of. result: nil
-- when the operation has none. Arguments are texts or numbers; who has to make them asks LOG first.
local function log(now, op, result, ...)
	if LOG == '' then
		return
	end
	local args = { ... }
	for i = 1, #args do
		args[i] = string.gsub(tostring(args[i]), '[%z\1-\31\127-\255,%%%(%)"\\]',
			function(c)
				return fmt('%%%02X', byte(c))
			end)
	end
	call('RPUSH', P .. 'txnLog', fmt('%s.%09.0f|%s(%s)%s|(%s)', dec(sub(now, 1, 8)),
		u32(now, 9), op, table.concat(args, ','), result and ':' .. result or '', LOG))
	call('INCR', P .. 'txnLastLog')
end

-- usedSpace and totalInodes (need_counters came before)
local function account(dpages, dinodes)
	if dpages ~= 0 then
		call('INCRBY', P .. 'usedSpace', fmt('%.0f', dpages * 4096))
	end
	if dinodes ~= 0 then
		call('INCRBY', P .. 'totalInodes', fmt('%.0f', dinodes))
	end
end

-- true when so much more goes over the volume's limits (texts, '0': none)
local function over(dpages, dinodes, capacity, inodes)
	if dpages > 0 and capacity ~= '0' then
		local used = tonumber(call('GET', P .. 'usedSpace') or '0') or 0
		if used + dpages * 4096 > tonumber(capacity) then
			return true
		end
	end
	if dinodes > 0 and inodes ~= '0' then
		local used = tonumber(call('GET', P .. 'totalInodes') or '0') or 0
		if used + dinodes > tonumber(inodes) then
			return true
		end
	end
	return false
end

-- the attribute record of an inode (text), nil when there is none, false when it is damaged
local function get(ino)
	local a = call('GET', P .. 'i' .. ino)
	if not a then
		return nil
	end
	if #a < 63 then
		return false
	end
	if #a < 71 then	-- before there was a parent
		a = sub(a, 1, 63) .. NONE .. '\0'
	end
	return a
end

local function put(a, i, bytes)
	return sub(a, 1, i - 1) .. bytes .. sub(a, i + #bytes)
end

local function flag(a, f)
	return bit.band(byte(a, 1), f) ~= 0
end

local function kind(a)
	return floor(byte(a, 2) / 16)
end

local function mode(a)
	return u16(a, 2) % 4096
end

local function put_mode(a, m)
	return put(a, 2, p16(kind(a) * 4096 + m))
end

local function field(a, i)
	return sub(a, i, i + 7)
end

local function links(a, by)
	return put(a, NLINK, p32(math.max(0, u32(a, NLINK) + by)))
end

-- The directories that name a file whose length changes, when it has several links: {directory, how
-- often, ...} (texts), for who tells each of them. What happens to links later is told from the new
-- length.
local function named(a, text, length)
	if field(a, PARENT) ~= NONE or u32(a, NLINK) == 0 or field(a, LENGTH) == length then
		return {}
	end
	return call('HGETALL', P .. 'p' .. text)
end

-- So many pages more may be too many for a quota, of those that count each link too: room (text;
-- '': there are no limits) is what the caller thinks that the tightest has left.
local function tight(a, dpages, room)
	return room ~= '' and dpages > 0 and
		dpages * 4096 * math.max(1, u32(a, NLINK)) > tonumber(room)
end

local function full_of_links(a)
	return u32(a, NLINK) >= 4294967295
end

-- what lies behind the fixed part of a record: ids of the access and the default rule, tier
local function tail(a)
	if #a - TAIL + 1 >= 8 then
		return u32(a, TAIL), u32(a, TAIL + 4), byte(a, TAIL + 8) or 0
	end
	return 0, 0, byte(a, TAIL) or 0
end

local function put_tail(a, access, default, tier)
	return sub(a, 1, TAIL - 1) ..
		((access ~= 0 or default ~= 0) and p32(access) .. p32(default) or '') ..
		(tier ~= 0 and char(tier) or '') .. '\0'
end

-- its parent lies in the trash
local function trashed(a)
	return less(TRASH, field(a, PARENT))
end

local function is_trash(ino)
	return not less(ino, TRASH)
end

local function seconds(s, i)
	local h = u32(s, i)
	if h >= 2147483648 then
		h = h - 4294967296
	end
	return h * 4294967296 + u32(s, i + 4)
end

-- of a time in a record, as texts
local function seconds_text(s, i)
	return fmt('%.0f', seconds(s, i))
end

local function nanoseconds_text(s, i)
	return fmt('%.0f', u32(s, i + 8))
end

-- the parent's mtime is old enough (nanoseconds, text) to be worth a write
local function touchable(a, now, skip)
	local d = (seconds(now, 1) - seconds(a, MTIME)) * 1000000000 +
		u32(now, 9) - u32(a, MTIME + 8)
	return d >= tonumber(skip)
end

local function touch(a, now)
	return put(put(a, MTIME, now), CTIME, now)
end

-- sticky directory pa: uid may not remove or rename the entry a
local function sticky(pa, a, uid)
	return uid ~= 0 and bit.band(mode(pa), 512) ~= 0 and
		uid ~= u32(pa, UID) and uid ~= u32(a, UID)
end

-- ESTALE when the volume is not the one that the caller works with: it is not there, another one
-- is, or it was loaded anew
local function stale()
	if LOG ~= '' then
		call('LLEN', P .. 'txnLog')
		need_counters('txnLastLog')
	end
	local gen = call('GET', P .. '_gen')
	if gen == MARK then
		return
	end
	local setting = not gen and #MARK > 8 and call('GET', P .. 'setting')
	if not setting or not string.find(setting, MARK, 1, true) then
		return fail(ESTALE)
	end
end

-- a session is not as it was seen (its expiry; '': nobody looks): it lives, or is gone
local function moved(session, seen)
	if seen == '' then
		return false
	end
	local expiry = call('ZSCORE', P .. 'allSessions', session)
	return not expiry or tonumber(expiry) ~= tonumber(seen)
end

-- slice numbers that were handed out are free again: the database went back
local function went_back()
	return less_text(call('GET', P .. 'nextchunk') or '0', HIGHEST)
end

-- Quotas of directories. Usage is told behind an operation (dirstat.lua), by the directory it was
-- in, and goes to the quotas above where that directory is then; what moves takes along what was
-- told by then (rename.lua). So it does not matter who moved what in between. Nor who removed what:
-- for those who have not told yet _late{directory} keeps, for some seconds, where it was (up), and
-- of the directory where it was the sums of what was told of it and they will take back (s, i). Who
-- was killed before he told takes nothing back, and JuiceFS tells quotas itself: so it ends.
local LATE_SECONDS, DEPTH_MOST = 10, 2000

-- Of a directory (text): the one above (text), or false. Of one that is gone, or in the trash:
-- where it was; hints has what the caller knows of it.
local above, gone, hidden = {}, {}, nil
local function parent_of(d, hints)
	if above[d] ~= nil then
		return above[d]
	end
	local p = false
	if d ~= '1' and less_text(d, TRASH_TEXT) then
		if hidden == nil then
			hidden = call('EXISTS', P .. 'detachedNodes') == 1
		end
		local a = get(d)
		if a and not trashed(a) then
			if not hidden or not call('ZSCORE', P .. 'detachedNodes', d) then
				p = dec(field(a, PARENT))
			end
		elseif a ~= false then
			p = call('HGET', P .. '_late' .. d, 'up')
			gone[d] = p
			p = p or hints[d] or '0'
		end
	end
	above[d] = p ~= '0' and p
	return above[d]
end

local function owed(d)
	local v = call('HMGET', P .. '_late' .. d, 's', 'i')
	need_number(v[1])
	need_number(v[2])
	return tonumber(v[1] or '0'), tonumber(v[2] or '0')
end

local function owe(d, space, inodes)
	local key = P .. '_late' .. d
	for k, v in pairs({ s = space, i = inodes }) do
		if v ~= 0 and call('HINCRBY', key, k, fmt('%.0f', v)) == 0 then
			call('HDEL', key, k)
		end
	end
	call('EXPIRE', key, LATE_SECONDS)
end

-- Those that have a quota, from d (text) up; walked: so many directories were looked at.
local quotas_of, walked = {}, 0
local function quotas_above(d, hints)
	local way, seen = {}, {}	-- a damaged volume may go in circles
	while d and not quotas_of[d] and not seen[d] and #way < DEPTH_MOST do
		seen[d] = true
		way[#way + 1] = d
		d = parent_of(d, hints)
	end
	walked = walked + #way
	local list = quotas_of[d or ''] or {}
	local has = #way > 0 and call('HMGET', P .. 'dirQuota', unpack(way))
	for i = #way, 1, -1 do
		if has[i] then
			list = { way[i], unpack(list) }
		end
		quotas_of[way[i]] = list
	end
	return list
end

-- What was told of all below directory d (text) with record r, and how much of it will be taken
-- back; nil: list does not have all of them, as the numbers of links tell.
local function below(d, r, list)
	local there, kids = {}, {}
	local space, inodes, late_space, late_inodes = 0, 0, 0, 0
	for i = 1, #list, 8 do
		local t = dec(sub(list, i, i + 7))
		local rec = i == 1 and r or get(t)
		if i == 1 and t ~= d or there[t] or not rec or kind(rec) ~= DIR then
			return nil
		end
		local s = call('HGET', P .. 'dirUsedSpace', t)
		local n = call('HGET', P .. 'dirUsedInodes', t)
		if not tonumber(s) or not tonumber(n) then
			return nil
		end
		local ls, li = owed(t)
		late_space, late_inodes = late_space + ls, late_inodes + li
		space, inodes = space + tonumber(s) + ls, inodes + tonumber(n) + li
		there[t] = u32(rec, NLINK) - 2
		if i > 1 then
			local p = dec(field(rec, PARENT))
			kids[p] = (kids[p] or 0) + 1
		end
	end
	for t, n in pairs(there) do
		if n ~= (kids[t] or 0) then
			return nil
		end
		kids[t] = nil
	end
	if next(kids) then
		return nil
	end
	return space, inodes, late_space, late_inodes
end

-- sums: {id, space, inodes, ...} of quotas, to be written; n times so much more for those in list
local function quota_plan(sums, list, n, space, inodes)
	for _, id in ipairs(list) do
		local i = sums[id]
		if not i then
			i = #sums + 1
			sums[id], sums[i], sums[i + 1], sums[i + 2] = i, id, 0, 0
			need_fields('dirQuotaUsedSpace', id)
			need_fields('dirQuotaUsedInodes', id)
		end
		sums[i + 1], sums[i + 2] = sums[i + 1] + n * space, sums[i + 2] + n * inodes
	end
end

-- returns {id, space, inodes, ...} (texts) of what it wrote
local function quota_write(sums)
	local r = {}
	for i = 1, #sums, 3 do
		if sums[i + 1] ~= 0 or sums[i + 2] ~= 0 then
			local space, inodes = fmt('%.0f', sums[i + 1]), fmt('%.0f', sums[i + 2])
			call('HINCRBY', P .. 'dirQuotaUsedSpace', sums[i], space)
			call('HINCRBY', P .. 'dirQuotaUsedInodes', sums[i], inodes)
			r[#r + 1], r[#r + 2], r[#r + 3] = sums[i], space, inodes
		end
	end
	return r
end

-- A changing script begins with ARGV[1] = {sid}_{slot}, ARGV[2] = its number (24 bytes), ARGV[3] =
-- now (12 bytes). What it answered lies in _ops until the slot is used again, so that asking again,
-- because the answer was lost, does it once; when it was asked (seconds) lies behind it, for
-- sweep.lua. done() is what is to be answered at once, if anything.
local function done()
	local r = call('HGET', P .. '_ops', ARGV[1])
	if r and sub(r, 1, #ARGV[2]) == ARGV[2] then
		return (cmsgpack.unpack(sub(r, #ARGV[2] + 1)))
	end
	return stale()
end

local function finish(result)
	call('HSET', P .. '_ops', ARGV[1], ARGV[2] ..
		cmsgpack.pack(result, seconds(ARGV[3], 1)))
	return result
end

-- ACL rules (docs/format.md §2.13), in their encoded form. They are never changed, and shared: _acl
-- tells which number one has.
local RULE_NONE = '\255\255\255\255\255\255\255\255\0\0\0\0\0\0\0\0'

-- nil: damaged, or not there
local function rule_get(id)
	local rule = call('HGET', P .. 'acl', fmt('%.0f', id))
	return rule and #rule >= 16 and rule or nil
end

-- only owner, group and other
local function rule_minimal(rule)
	return sub(rule, 5, 6) == '\255\255' and sub(rule, 9) == NONE
end

-- permissions of a mode: what the mask (or the group of a minimal rule) lets through is the group's
local function rule_mode(rule)
	local group = rule_minimal(rule) and 3 or 5
	return (u16(rule, 1) % 8) * 64 + (u16(rule, group) % 8) * 8 + u16(rule, 7) % 8
end

-- of the rule, with a mode's permissions put where rule_mode finds them
local function rule_chmod(rule, m)
	local group = rule_minimal(rule) and 3 or 5
	rule = put(rule, 1, p16(floor(u16(rule, 1) / 8) * 8 + floor(m / 64) % 8))
	rule = put(rule, group, p16(floor(u16(rule, group) / 8) * 8 + floor(m / 8) % 8))
	return put(rule, 7, p16(floor(u16(rule, 7) / 8) * 8 + m % 8))
end

-- what a new file gets from its directory's default rule
local function rule_child(rule, m)
	return p16(bit.band(u16(rule, 1), floor(m / 64) % 8)) .. sub(rule, 3, 4) ..
		p16(bit.band(u16(rule, 5), floor(m / 8) % 8)) ..
		p16(bit.band(u16(rule, 7), m % 8)) .. sub(rule, 9)
end

-- Before the first write: {rule, its number if it has one}; nil: numbers are used up
local function rule_plan(rule)
	need_hashes('acl', '_acl')
	need_counters('aclMaxId')
	local id = call('HGET', P .. '_acl', rule)
	if id and call('HGET', P .. 'acl', id) == rule then
		return { rule, tonumber(id) }
	end
	local last = tonumber(call('GET', P .. 'aclMaxId') or '0')
	if last < 0 or last >= 4294967295 or
			call('HEXISTS', P .. 'acl', fmt('%.0f', last + 1)) == 1 then
		return nil
	end
	return { rule }
end

-- the number of a planned rule, made when it is new
local function rule_number(plan, now)
	if plan[2] then
		return plan[2]
	end
	local id = call('INCRBY', P .. 'aclMaxId', 1)
	local text = fmt('%.0f', id)
	log(now, 'INCR_COUNTER', nil, 'aclMaxId', 1)
	call('HSET', P .. 'acl', text, plan[1])
	call('HSET', P .. '_acl', plan[1], text)
	return id
end

-- gid is one of 4 bytes each
local function has_gid(gids, gid)
	for i = 1, #gids, 4 do
		if u32(gids, i) == gid then
			return true
		end
	end
	return false
end

-- An inode that is to be made in the directory with record pa. n: parent, ino (8 bytes), type,
-- mode, umask, uid, gid, rdev, target (''), links, now, gids ('': the kernel checked the caller's
-- permissions). Returns {record without rule, planned rule}, or nil and an errno.
local function make_plan(pa, n)
	local m, rule, access, default = n.mode % 4096, nil, 0, 0
	local _, inherited, tier = tail(pa)
	if inherited ~= 0 and n.type ~= SYMLINK then
		local r = rule_get(inherited)
		if not r then
			return nil, EIO
		end
		if n.type == DIR then
			default = inherited
		end
		if rule_minimal(r) then
			m = bit.band(m, 3584 + rule_mode(r))
		else
			r = rule_child(r, m)
			rule = rule_plan(r)
			if not rule then
				return nil, EIO
			end
			m = floor(m / 512) * 512 + rule_mode(r)
		end
	else
		m = bit.band(m, bit.bnot(n.umask))
	end
	local gid = n.gid
	if bit.band(mode(pa), 1024) ~= 0 then
		gid = u32(pa, GID)
		if n.type == DIR then
			m = bit.bor(m, 1024)
		elseif n.gids ~= '' and n.uid ~= 0 and bit.band(m, 1032) == 1032 and
				not has_gid(n.gids, gid) then
			m = m - 1024
		end
	end
	local a = char(bit.band(byte(pa, 1), SKIP_TRASH)) .. p16(n.type * 4096 + m) ..
		p32(n.uid) .. p32(gid) .. n.now .. n.now .. n.now .. p32(n.links) ..
		p64(n.type == DIR and 4096 or #n.target) .. p32(n.rdev) .. n.parent
	need_counters('usedSpace', 'totalInodes')
	return { put_tail(a .. '\0', access, default, tier), rule }
end

-- writes the record, its share of the volume, and a symlink's target; returns the record
local function make_write(plan, n)
	local a, text = plan[1], dec(n.ino)
	if plan[2] then
		local _, default, tier = tail(a)
		a = put_tail(a, rule_number(plan[2], n.now), default, tier)
	end
	account(1, 1)
	call('SET', P .. 'i' .. text, a)
	if n.type == SYMLINK then
		call('SET', P .. 's' .. text, n.target)
	end
	return a
end

local function make_log(n, parent, name, touched)
	if LOG == '' then
		return
	end
	log(n.now, 'CREATE', dec(n.ino), parent, name, fmt('%.0f', n.uid), fmt('%.0f', n.gid),
		n.type, n.mode, n.umask, n.target, 'linux', touched)
end
