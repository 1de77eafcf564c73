-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), 1 access, 2 default, rule (RULE_NONE: none any more),
--    uid, gids of the caller
-- -> {record}
local old = done()
if old then
	return old
end
local now, which, rule, uid = ARGV[3], ARGV[5], ARGV[6], tonumber(ARGV[7])
local cur = get(ARGV[4])
if not cur then
	return fail(cur == nil and ENOENT or EIO)
end
if uid ~= 0 and uid ~= u32(cur, UID) or trashed(cur) or flag(cur, APPEND) or
		flag(cur, IMMUTABLE) then
	return fail(EPERM)
end
local m = mode(cur)
if rule ~= RULE_NONE and which == '2' and kind(cur) ~= DIR then
	return fail(EACCES)
end
if which == '1' and rule ~= RULE_NONE and uid ~= 0 and not has_gid(ARGV[8], u32(cur, GID)) then
	m = bit.band(m, 3071)	-- 05777
end
-- what the rule does not say is as the mode has it
for i, by in pairs({ [1] = 64, [3] = 8, [7] = 1 }) do
	if rule ~= RULE_NONE and sub(rule, i, i + 1) == '\255\255' then
		rule = put(rule, i, p16(floor(m / by) % 8))
	end
end
local access, default, tier = tail(cur)
local had = which == '1' and access or default
local id, plan = 0, nil
if rule ~= RULE_NONE and which == '1' then
	m = floor(m / 512) * 512 + rule_mode(rule)
end
if rule ~= RULE_NONE and not (which == '1' and rule_minimal(rule)) then
	if had ~= 0 and rule_get(had) == rule then
		id = had
	else
		plan = rule_plan(rule)
		if not plan then
			return fail(EIO)
		end
	end
end
if not plan and id == had and m == mode(cur) then
	return { cur }
end
if plan then
	id = rule_number(plan, now)
end
if which == '1' then
	access = id
else
	default = id
end
local a = put(put_mode(put_tail(cur, access, default, tier), m), CTIME, now)
call('SET', P .. 'i' .. ARGV[4], a)
log(now, 'SETFACL', nil, ARGV[4], which, rule)
return finish({ a })
