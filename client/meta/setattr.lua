-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), set, mode, uid, gid, atime, mtime (12 bytes each), flags,
--    caller's uid, gids ('': the kernel checked the permissions), '1': the caller may write,
--    '1': it is open in this client
-- -> {record, the owner's uid and gid before (8 bytes)}
local old = done()
if old then
	return old
end
local MODE, SUID, SGID, AT, MT, AT_NOW, MT_NOW, FLAGS = 1, 2, 4, 16, 32, 128, 256, 32768
local ATTRS = IMMUTABLE + APPEND + SKIP_TRASH
local now, set, uid, gids = ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[12]), ARGV[13]
local want, wuid, wgid = bit.band(tonumber(ARGV[6]), 4095), tonumber(ARGV[7]), tonumber(ARGV[8])
local check = gids ~= '' and uid ~= 0
local function wants(b)
	return bit.band(set, b) ~= 0
end
local cur = get(ARGV[4])
if not cur then
	return fail(cur == nil and ENOENT or EIO)
end
-- an open file stays what it is when its name goes
if trashed(cur) and ARGV[15] ~= '1' then
	return fail(EPERM)
end
local a, m = cur, mode(cur)
local owner = uid == 0 or uid == u32(cur, UID)

-- The kernel takes suid and sgid off before a write by somebody else; that much an append-only file
-- lets happen. Both flags refuse the rest, but for both times now, which only immutable ones do.
local cleared = wants(MODE) and (want == bit.band(m, 1023) or want == bit.band(m, 2047)) and
	not wants(SUID + SGID)
if flag(cur, IMMUTABLE) and wants(MODE + SUID + SGID + AT + MT + AT_NOW + MT_NOW) or
		flag(cur, APPEND) and (wants(MODE) and not cleared or wants(SUID + SGID) or
			wants(AT + MT + AT_NOW + MT_NOW) and
			not (wants(AT_NOW) and wants(MT_NOW))) then
	return fail(EPERM)
end
if wants(FLAGS) then
	local new = bit.band(tonumber(ARGV[11]), ATTRS)
	local before = bit.band(byte(cur, 1), ATTRS)
	if not owner or uid ~= 0 and
			bit.band(bit.bxor(new, before), IMMUTABLE + APPEND) ~= 0 then
		return fail(EPERM)
	end
	a = put(a, 1, char(byte(cur, 1) - before + new))
end
if wants(SUID + SGID) then
	if wants(MODE) then
		want = bit.bor(want, bit.band(m, 3072))
	end
	if bit.band(m, 3072) ~= 0 and kind(cur) ~= DIR then
		local keep = (uid ~= 0 or bit.band(m, 8) ~= 0) and 1023 or 2047
		a = put_mode(a, bit.band(m, keep))
		want = bit.band(want, keep)
	end
end
if wants(SGID) then
	if not owner then
		return fail(EPERM)
	end
	if wgid ~= u32(cur, GID) then
		if check and not has_gid(gids, wgid) then
			return fail(EPERM)
		end
		a = put(a, GID, p32(wgid))
	end
end
if wants(SUID) and wuid ~= u32(cur, UID) then
	if check then
		return fail(EPERM)
	end
	a = put(a, UID, p32(wuid))
end
local access, default, tier = tail(cur)
local rule
if wants(MODE) then
	if check and not has_gid(gids, u32(cur, GID)) then
		want = bit.band(want, 3071)	-- 05777
	end
	if not owner and want ~= m and (bit.band(m, 1023) ~= bit.band(want, 1023) or
			bit.band(want, 1024) > bit.band(m, 1024) or
			bit.band(want, 2048) > bit.band(m, 2048)) then
		return fail(EPERM)
	end
	if access ~= 0 then
		local r = rule_get(access)
		if not r then
			return fail(EIO)
		end
		if rule_chmod(r, want) ~= r then
			rule = rule_plan(rule_chmod(r, want))
			if not rule then
				return fail(EIO)
			end
		end
	end
	a = put_mode(a, want)
end
for i, t in ipairs({ { AT, AT_NOW, ATIME, ARGV[9] }, { MT, MT_NOW, MTIME, ARGV[10] } }) do
	local to_now = wants(t[2])
	if to_now or wants(t[1]) and sub(cur, t[3], t[3] + 11) ~= t[4] then
		if not to_now and (u32(cur, UID) == 0 and uid ~= 0 or check and not owner) then
			return fail(EPERM)
		end
		if check and not owner and ARGV[14] ~= '1' then
			return fail(EACCES)
		end
		a = put(a, t[3], to_now and now or t[4])
	end
end
-- What changes nothing is a change all the same: its time is told (POSIX; JuiceFS writes nothing).
if set == 0 then
	return { cur, field(cur, UID) }
end
if rule then
	access = rule_number(rule, now)
	a = put_tail(a, access, default, tier)
end
a = put(a, CTIME, now)
call('SET', P .. 'i' .. ARGV[4], a)
if LOG ~= '' then
	log(now, 'SETATTR', nil, ARGV[4], ARGV[5], 0, fmt('%.0f', u32(a, UID)),
		fmt('%.0f', u32(a, GID)), mode(a), byte(a, 1), seconds_text(a, ATIME),
		seconds_text(a, MTIME), nanoseconds_text(a, ATIME), nanoseconds_text(a, MTIME),
		seconds_text(a, CTIME), nanoseconds_text(a, CTIME), fmt('%.0f', access))
end
return finish({ a, field(cur, UID) })
