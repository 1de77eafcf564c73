-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), name, value, '1' create, '2' replace, '0' whatever -> {1}
local old = done()
if old then
	return old
end
local key = P .. 'x' .. ARGV[4]
local there = call('HEXISTS', key, ARGV[5]) == 1
if ARGV[7] == '1' and there then
	return fail(EEXIST)
end
if ARGV[7] == '2' and not there then
	return fail(ENODATA)
end
if call('EXISTS', P .. 'i' .. ARGV[4]) == 0 then
	return fail(ENOENT)
end
call('HSET', key, ARGV[5], ARGV[6])
return finish({ 1 })
