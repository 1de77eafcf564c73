-- SPDX-License-Identifier: Apache-2.0
-- Locks of a dead session in one lock key.
-- ARGV: session, key (as it lies in locked{sid}), '' or its expiry as it was seen: only if that did
--    not move
-- -> number of locks removed, -1: it lives, or is gone already
local bad = stale()
if bad then
	return bad
end
if moved(ARGV[1], ARGV[3]) then
	return -1
end
local n, prefix = 0, ARGV[1] .. '_'
call('SCARD', P .. 'locked' .. ARGV[1])
local t = redis.call('TYPE', ARGV[2])
if (t.ok or t) == 'hash' then
	for i, f in ipairs(call('HKEYS', ARGV[2])) do
		if sub(f, 1, #prefix) == prefix then
			call('HDEL', ARGV[2], f)
			n = n + 1
		end
	end
end
call('SREM', P .. 'locked' .. ARGV[1], ARGV[2])
return n
