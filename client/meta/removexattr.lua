-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), name -> {1}
local old = done()
if old then
	return old
end
if call('HDEL', P .. 'x' .. ARGV[4], ARGV[5]) == 0 then
	return fail(ENODATA)
end
return finish({ 1 })
