-- SPDX-License-Identifier: Apache-2.0
-- The end of a session that holds nothing any more.
-- ARGV: session, '' or seconds: only if it lapsed before, now
-- -> 1, 0: it lives (its expiry is not before now)
local bad = stale()
if bad then
	return bad
end
local ops, prefix = P .. '_ops', ARGV[1] .. '_'
if ARGV[2] ~= '' then
	local expiry = call('ZSCORE', P .. 'allSessions', ARGV[1])
	if expiry and tonumber(expiry) > tonumber(ARGV[2]) then
		return 0
	end
end
need_hashes('sessionInfos')
call('ZCARD', P .. 'allSessions')
for i, f in ipairs(call('HKEYS', ops)) do
	if sub(f, 1, #prefix) == prefix then
		call('HDEL', ops, f)
	end
end
call('HDEL', P .. 'sessionInfos', ARGV[1])
call('ZREM', P .. 'allSessions', ARGV[1])
log(ARGV[3], 'CLEANSESSION', nil, ARGV[1])
return 1
