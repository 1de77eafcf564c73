-- SPDX-License-Identifier: Apache-2.0
-- A lock of a whole file (flock), or its end.
-- ARGV: token, number, now, inode (text), session, owner (16 hexadecimal digits), owner (text),
--    'R', 'W' or 'U'
-- -> {1}; {0}: another owner is in the way
local old = done()
if old then
	return old
end
local key, locked = P .. 'lockf' .. ARGV[4], P .. 'locked' .. ARGV[5]
local field, prefix, typ = ARGV[5] .. '_' .. ARGV[6], ARGV[5] .. '_', ARGV[8]
local mine, more, r, w = false, false, false, false
local all = call('HGETALL', key)
for i = 1, #all, 2 do
	if all[i] == field then
		mine = all[i + 1]
	else
		r, w = true, w or all[i + 1] == 'W'
		more = more or sub(all[i], 1, #prefix) == prefix
	end
end
call('SCARD', locked)
if typ == 'U' then
	if not mine then
		return { 1 }
	end
	call('HDEL', key, field)
	if not more then
		call('SREM', locked, key)
	end
else
	if w or (r and typ == 'W') then
		return { 0 }
	end
	if mine == typ then
		return { 1 }
	end
	call('HSET', key, field, typ)
	call('SADD', locked, key)
end
log(ARGV[3], 'FLOCK', nil, ARGV[4], ARGV[7], typ)
return finish({ 1 })
