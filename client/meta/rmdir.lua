-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, parent (8 bytes), name, uid, hour or '' -> as remove_write
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
local text = dec(sub(e, 2, 9))
local pa, a = get(parent), get(text)
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
if a and sticky(pa, a, uid) then
	return fail(EACCES)
end
if a and (flag(a, APPEND) or flag(a, IMMUTABLE)) then
	return fail(EPERM)
end
if byte(e, 1) ~= DIR then
	return fail(ENOTDIR)
end
if call('HLEN', P .. 'd' .. text) > 0 then
	return fail(ENOTEMPTY)
end
local plan, err = remove_plan(parent, name, e, a, ARGV[7], '', '')
if not plan then
	return fail(err)
end
local r = remove_write(plan, now, '')
call('HDEL', P .. 'd' .. parent, name)
if not is_trash(ARGV[4]) then
	pa = links(touch(pa, now), -1)
	call('SET', P .. 'i' .. parent, pa)
end
log(now, 'RMDIR', text, parent, name, hour_text(plan))
r[#r + 1] = pa
return finish(r)
