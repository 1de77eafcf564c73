-- SPDX-License-Identifier: Apache-2.0
-- A field of a directory that is no entry goes, unless it is another by now. No operation could
-- have made it or can name it, so the change log has no line for it.
-- ARGV: inode of the directory (text), field, its value as it was
-- -> 1, 0: it changed
local d = P .. 'd' .. ARGV[1]
if call('HGET', d, ARGV[2]) ~= ARGV[3] then
	return 0
end
call('HDEL', d, ARGV[2])
return 1
