-- SPDX-License-Identifier: Apache-2.0
-- The only agreement between clients about who does a clean-up: the first whose clock says that the
-- last one was long enough ago.
-- ARGV: name of the stamp, now, seconds (texts) -> 1: do it
local bad = stale()
if bad then
	return bad
end
local key = P .. ARGV[1]
if (tonumber(call('GET', key) or '0') or 0) > tonumber(ARGV[2]) - tonumber(ARGV[3]) then
	return 0
end
call('SET', key, ARGV[2])
log(p64(tonumber(ARGV[2])) .. '\0\0\0\0', 'SET', nil, ARGV[1], ARGV[2])
return 1
