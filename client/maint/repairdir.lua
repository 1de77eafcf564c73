-- SPDX-License-Identifier: Apache-2.0
-- A directory's record and statistics, as fsck counted them; nothing is done when the directory
-- changed since.
-- ARGV: inode (text), its record as it was ('': none), the new one ('': as it is), now (12 bytes),
-- number of its entries, then length, space, inodes (texts; '': as they are)
-- -> 1, 0: it changed
if (call('GET', P .. 'i' .. ARGV[1]) or '') ~= ARGV[2] or
		call('HLEN', P .. 'd' .. ARGV[1]) ~= tonumber(ARGV[5]) then
	return 0
end
if LOG ~= '' then
	call('LLEN', P .. 'txnLog')
	need_counters('txnLastLog')
end
need_hashes('dirDataLength', 'dirUsedSpace', 'dirUsedInodes')
if ARGV[3] ~= '' then
	call('SET', P .. 'i' .. ARGV[1], ARGV[3])
	log(ARGV[4], 'REPAIRDIR', nil, ARGV[1])
end
if ARGV[6] ~= '' then
	call('HSET', P .. 'dirDataLength', ARGV[1], ARGV[6])
	call('HSET', P .. 'dirUsedSpace', ARGV[1], ARGV[7])
	call('HSET', P .. 'dirUsedInodes', ARGV[1], ARGV[8])
	call('DEL', P .. '_late' .. ARGV[1])
	log(ARGV[4], 'DIRSTAT', nil, ARGV[1], ARGV[6], ARGV[7], ARGV[8])
end
return 1
