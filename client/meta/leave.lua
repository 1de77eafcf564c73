-- SPDX-License-Identifier: Apache-2.0
-- The end of a session that holds nothing any more. What its scripts answered goes with it only
-- when it ends itself: one that lapsed may still ask again (sweep.lua).
-- ARGV: session, '' or its expiry as it was seen: only if that did not move, now
-- -> 1, 0: it lives, or is gone already
local bad = stale()
if bad then
	return bad
end
if moved(ARGV[1], ARGV[2]) then
	return 0
end
need_hashes('sessionInfos', '_ops')
call('ZCARD', P .. 'allSessions')
if ARGV[2] == '' then
	local slots = {}
	for i = 0, 63 do
		slots[i + 1] = ARGV[1] .. '_' .. i
	end
	call('HDEL', P .. '_ops', unpack(slots))
end
call('HDEL', P .. 'sessionInfos', ARGV[1])
call('ZREM', P .. 'allSessions', ARGV[1])
log(ARGV[3], 'CLEANSESSION', nil, ARGV[1])
return 1
