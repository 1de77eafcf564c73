-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), name, value, '1' create, '2' replace, '0' whatever -> {1}
local old = done()
if old then
	return old
end
local a = get(ARGV[4])
if not a then
	return fail(a == nil and ENOENT or EIO)
end
if flag(a, APPEND) or flag(a, IMMUTABLE) then
	return fail(EPERM)
end
local key = P .. 'x' .. ARGV[4]
local there = call('HEXISTS', key, ARGV[5]) == 1
if ARGV[7] == '1' and there then
	return fail(EEXIST)
end
if ARGV[7] == '2' and not there then
	return fail(ENODATA)
end
call('HSET', key, ARGV[5], ARGV[6])
log(ARGV[3], 'SETXATTR', nil, ARGV[4], ARGV[5], ARGV[6], ARGV[7])
return finish({ 1 })
