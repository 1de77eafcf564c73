-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), name -> {1}
local old = done()
if old then
	return old
end
local a = get(ARGV[4])
if a and (flag(a, APPEND) or flag(a, IMMUTABLE)) then
	return fail(EPERM)
end
if call('HDEL', P .. 'x' .. ARGV[4], ARGV[5]) == 0 then
	return fail(ENODATA)
end
log(ARGV[3], 'REMOVEXATTR', nil, ARGV[4], ARGV[5])
return finish({ 1 })
