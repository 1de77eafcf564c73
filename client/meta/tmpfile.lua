-- SPDX-License-Identifier: Apache-2.0
-- A file without a name (O_TMPFILE). The change log has no word for it: a file that was made and
-- removed while it was open, which is how JuiceFS makes one.
-- ARGV: token, number, now, parent, inode (both 8 bytes), mode, umask, uid, gid, gids, session,
--    capacity, inodes
-- -> {record}; {false} when something has this inode number already
local old = done()
if old then
	return old
end
local n = {
	now = ARGV[3], parent = ARGV[4], ino = ARGV[5], type = FILE, mode = tonumber(ARGV[6]),
	umask = tonumber(ARGV[7]), uid = tonumber(ARGV[8]), gid = tonumber(ARGV[9]), rdev = 0,
	target = '', gids = ARGV[10], links = 0,
}
local parent, text, session = dec(n.parent), dec(n.ino), P .. 'session' .. ARGV[11]
local pa = get(parent)
if not pa then
	return fail(pa == nil and ENOENT or EIO)
end
if kind(pa) ~= DIR then
	return fail(ENOTDIR)
end
if trashed(pa) then
	return fail(ENOENT)
end
if flag(pa, IMMUTABLE) then
	return fail(EPERM)
end
if call('EXISTS', P .. 'i' .. text) == 1 then
	return { false }
end
if over(1, 1, ARGV[12], ARGV[13]) then
	return fail(ENOSPC)
end
local plan, err = make_plan(pa, n)
if not plan then
	return fail(err)
end
call('SCARD', session)
local a = make_write(plan, n)
call('SADD', session, text)
local name = 'tmpfile_' .. text
make_log(n, parent, name, false)
log(n.now, 'UNLINK', text, parent, name, 0, true, false)
return finish({ a })
