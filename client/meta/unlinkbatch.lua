-- SPDX-License-Identifier: Apache-2.0
-- Entries of one directory that are no directories, all at once.
-- ARGV: token, number, now, parent (8 bytes), uid, skip, hour or '', session, open inodes, '1' when
--    flags do not protect (of what was never in the tree), then each entry's 9 bytes and name
-- -> as remove_write, one behind the other
local old = done()
if old then
	return old
end
local now, parent, uid, hour = ARGV[3], dec(ARGV[4]), tonumber(ARGV[5]), ARGV[7]
local force = ARGV[10] == '1'
local session, open, d = ARGV[8], ARGV[9], P .. 'd' .. parent
local pa = get(parent)
if not pa then
	return fail(pa == nil and ENOENT or EIO)
end
if kind(pa) ~= DIR then
	return fail(ENOTDIR)
end
if not force and (flag(pa, APPEND) or flag(pa, IMMUTABLE)) then
	return fail(EPERM)
end
local plans, names = {}, {}
for i = 11, #ARGV - 3 do
	local e, name = sub(ARGV[i], 1, 9), sub(ARGV[i], 10)
	-- what is another one by now is not what was asked for
	if call('HGET', d, name) == e and byte(e, 1) ~= DIR then
		local a = get(dec(sub(e, 2, 9)))
		if a == false then
			return fail(EIO)
		end
		if a and not force then
			if sticky(pa, a, uid) then
				return fail(EACCES)
			end
			if flag(a, APPEND) or flag(a, IMMUTABLE) then
				return fail(EPERM)
			end
		end
		local plan, err = remove_plan(parent, name, e, a, hour, session, open)
		if not plan then
			return fail(err)
		end
		plans[#plans + 1] = plan
	end
end
local r, seen, made, inodes = {}, {}, false, {}
for i, plan in ipairs(plans) do
	if seen[plan.text] then	-- another link of it went just now
		plan = remove_plan(parent, plan.name, plan.e, get(plan.text), hour, session, open)
	end
	seen[plan.text] = true
	if plan.hour then
		plan.hour.make = plan.hour.make and not made
		made = true
	end
	for k, v in ipairs(remove_write(plan, now, session)) do
		r[#r + 1] = v
	end
	names[#names + 1], inodes[#inodes + 1] = plan.name, plan.text
end
for i = 1, #names, 200 do
	call('HDEL', d, unpack(names, i, math.min(#names, i + 199)))
end
local touched = #names > 0 and not is_trash(ARGV[4]) and touchable(pa, now, ARGV[6])
if touched then
	call('SET', P .. 'i' .. parent, touch(pa, now))
end
if #names > 0 then
	names[#names + 1], names[#names + 2] = hour_text(plans[1]), touched
	log(now, 'UNLINKBATCH', table.concat(inodes, ','), parent, unpack(names))
end
return finish(r)
