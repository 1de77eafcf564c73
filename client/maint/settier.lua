-- SPDX-License-Identifier: Apache-2.0
-- The storage class that new blocks of a file, or new files of a directory, get.
-- ARGV: inode (text), tier (text), now (12 bytes)
-- -> 1, 0: there is no such inode
local setting = call('GET', P .. 'setting')
if not setting or not string.find(setting, MARK, 1, true) then
	return fail(ESTALE)	-- another volume took this one's place
end
local a = get(ARGV[1])
if not a then
	return 0
end
if LOG ~= '' then
	call('LLEN', P .. 'txnLog')
	need_counters('txnLastLog')
end
local access, default = tail(a)
a = put(put_tail(a, access, default, tonumber(ARGV[2])), CTIME, ARGV[3])
call('SET', P .. 'i' .. ARGV[1], a)
if LOG ~= '' then
	log(ARGV[3], 'SETATTR', nil, ARGV[1], 1024, 0, fmt('%.0f', u32(a, UID)),
		fmt('%.0f', u32(a, GID)), mode(a), byte(a, 1), seconds_text(a, ATIME),
		seconds_text(a, MTIME), nanoseconds_text(a, ATIME), nanoseconds_text(a, MTIME),
		seconds_text(a, CTIME), nanoseconds_text(a, CTIME), fmt('%.0f', access))
end
return 1
