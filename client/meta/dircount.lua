-- SPDX-License-Identifier: Apache-2.0
-- A directory's statistics, counted anew.
-- ARGV: inode, length, space, inodes (texts), now
-- -> 1, 0: it is gone
local bad = stale()
if bad then
	return bad
end
if call('EXISTS', P .. 'i' .. ARGV[1]) == 0 then
	return 0
end
need_hashes('dirDataLength', 'dirUsedSpace', 'dirUsedInodes')
call('HSET', P .. 'dirDataLength', ARGV[1], ARGV[2])
call('HSET', P .. 'dirUsedSpace', ARGV[1], ARGV[3])
call('HSET', P .. 'dirUsedInodes', ARGV[1], ARGV[4])
log(ARGV[5], 'DIRSTAT', nil, ARGV[1], ARGV[2], ARGV[3], ARGV[4])
return 1
