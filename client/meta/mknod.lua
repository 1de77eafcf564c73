-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, parent, name, inode (both 8 bytes), type, mode, umask, uid, gid, rdev,
--    target, gids, skip, capacity, inodes
-- -> {record}; {false} when something has this inode number already
local old = done()
if old then
	return old
end
local now, name = ARGV[3], ARGV[5]
local n = {
	now = now, parent = ARGV[4], ino = ARGV[6], type = tonumber(ARGV[7]),
	mode = tonumber(ARGV[8]), umask = tonumber(ARGV[9]), uid = tonumber(ARGV[10]),
	gid = tonumber(ARGV[11]), rdev = tonumber(ARGV[12]), target = ARGV[13], gids = ARGV[14],
}
n.links = n.type == DIR and 2 or 1
local parent, text = dec(n.parent), dec(n.ino)
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
if call('HEXISTS', P .. 'd' .. parent, name) == 1 then
	return fail(EEXIST)
end
if n.type == DIR and full_of_links(pa) then
	return fail(EMLINK)
end
if call('EXISTS', P .. 'i' .. text) == 1 then
	return { false }	-- numbers were handed out twice: the database went back
end
if over(1, 1, ARGV[16], ARGV[17]) then
	return fail(ENOSPC)
end
local plan, err = make_plan(pa, n)
if not plan then
	return fail(err)
end
if n.type == DIR then
	need_hashes('dirUsedInodes', 'dirDataLength', 'dirUsedSpace')
end
local a = make_write(plan, n)
local touched = n.type == DIR or touchable(pa, now, ARGV[15])
if touched then
	pa = links(touch(pa, now), n.type == DIR and 1 or 0)
	call('SET', P .. 'i' .. parent, pa)
end
call('HSET', P .. 'd' .. parent, name, char(n.type) .. n.ino)
if n.type == DIR then
	call('HSET', P .. 'dirUsedInodes', text, '0')
	call('HSET', P .. 'dirDataLength', text, '0')
	call('HSET', P .. 'dirUsedSpace', text, '0')
end
make_log(n, parent, name, touched)
return finish({ a, pa })
