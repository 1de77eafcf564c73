-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, parent (8 bytes), name, uid, skip, hour or '', session, open inodes
-- -> as remove_write; {'which', 8 bytes}: is that one open? (remove_plan)
local old = done()
if old then
	return old
end
local now, parent, name, uid = ARGV[3], dec(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local e = call('HGET', P .. 'd' .. parent, name)
if not e then
	return fail(ENOENT)
end
if #e ~= 9 then
	return fail(EIO)
end
local pa, a = get(parent), get(dec(sub(e, 2, 9)))
if pa == false or a == false then
	return fail(EIO)
end
if not pa then
	return fail(ENOENT)
end
if kind(pa) ~= DIR then
	return fail(ENOTDIR)
end
if flag(pa, APPEND) or flag(pa, IMMUTABLE) then
	return fail(EPERM)
end
if a then
	if sticky(pa, a, uid) then
		return fail(EACCES)
	end
	if flag(a, APPEND) or flag(a, IMMUTABLE) then
		return fail(EPERM)
	end
end
if byte(e, 1) == DIR then
	return fail(EPERM)
end
local plan, err, ask = remove_plan(parent, name, e, a, ARGV[8], ARGV[9], ARGV[10])
if not plan then
	return ask and { 'which', ask } or fail(err)
end
local r = remove_write(plan, now, ARGV[9])
call('HDEL', P .. 'd' .. parent, name)
local touched = not is_trash(ARGV[4]) and touchable(pa, now, ARGV[7])
if touched then
	pa = touch(pa, now)
	call('SET', P .. 'i' .. parent, pa)
end
if LOG ~= '' then
	log(now, 'UNLINK', plan.text, parent, name, hour_text(plan), plan.open or false, touched)
end
r[#r + 1] = pa
return finish(r)
