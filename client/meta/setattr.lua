-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), set, mode, uid, gid, atime, mtime (12 bytes each),
--    caller's uid
-- -> {record}
local old = done()
if old then
	return old
end
local MODE, SUID, SGID, AT, MT, AT_NOW, MT_NOW = 1, 2, 4, 16, 32, 128, 256
local now, set, uid = ARGV[3], tonumber(ARGV[5]), tonumber(ARGV[11])
local want, wuid, wgid = bit.band(tonumber(ARGV[6]), 4095), tonumber(ARGV[7]), tonumber(ARGV[8])
local function wants(b)
	return bit.band(set, b) ~= 0
end
local cur = get(ARGV[4])
if not cur then
	return fail(cur == nil and ENOENT or EIO)
end
if trashed(cur) then
	return fail(EPERM)
end
local a, m, changed = cur, mode(cur), false
local owner = uid == 0 or uid == u32(cur, UID)
if wants(SUID + SGID) then
	if wants(MODE) then
		want = bit.bor(want, bit.band(m, 3072))
	end
	if bit.band(m, 3072) ~= 0 then
		if kind(cur) ~= DIR then
			local keep = (uid ~= 0 or bit.band(m, 8) ~= 0) and 1023 or 2047
			a = put_mode(a, bit.band(m, keep))
			want = bit.band(want, keep)
		end
		changed = true
	end
end
if wants(SGID) then
	if not owner then
		return fail(EPERM)
	end
	if wgid ~= u32(cur, GID) then
		a, changed = put(a, GID, p32(wgid)), true
	end
end
if wants(SUID) and wuid ~= u32(cur, UID) then
	a, changed = put(a, UID, p32(wuid)), true
end
if wants(MODE) and want ~= m then
	if not owner and (bit.band(m, 1023) ~= bit.band(want, 1023) or
			bit.band(want, 1024) > bit.band(m, 1024) or
			bit.band(want, 2048) > bit.band(m, 2048)) then
		return fail(EPERM)
	end
	a, changed = put_mode(a, want), true
end
for i, t in ipairs({ { AT, AT_NOW, ATIME, ARGV[9] }, { MT, MT_NOW, MTIME, ARGV[10] } }) do
	if wants(t[2]) or (wants(t[1]) and seconds(t[4], 1) < 0) then
		a, changed = put(a, t[3], now), true
	elseif wants(t[1]) and sub(cur, t[3], t[3] + 11) ~= t[4] then
		if u32(cur, UID) == 0 and uid ~= 0 then
			return fail(EPERM)
		end
		a, changed = put(a, t[3], t[4]), true
	end
end
if not changed then
	return { cur }
end
a = put(a, CTIME, now)
call('SET', P .. 'i' .. ARGV[4], a)
return finish({ a })
