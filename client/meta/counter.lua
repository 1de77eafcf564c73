-- SPDX-License-Identifier: Apache-2.0
-- Numbers from a counter. A batch that is taken twice, because the answer was lost, leaves a gap
-- and no harm.
-- ARGV: counter, how many (text), now -> the last of them (text: Lua's numbers lose what is above
--    2^53)
local bad = stale()
if bad then
	return bad
end
if ARGV[1] == 'nextchunk' and went_back() then
	return fail(ESTALE)
end
local names = { nextinode = 'nextInode', nextchunk = 'nextChunk', nextsession = 'nextSession' }
call('INCRBY', P .. ARGV[1], ARGV[2])
log(ARGV[3], 'INCR_COUNTER', nil, names[ARGV[1]] or ARGV[1], ARGV[2])
return call('GET', P .. ARGV[1])
