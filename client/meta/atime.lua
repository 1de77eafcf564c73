-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), '1' relative, '2' strict -> {record}
local old = done()
if old then
	return old
end
local now, a = ARGV[3], get(ARGV[4])
if not a then
	return fail(a == nil and ENOENT or EIO)
end
-- nanoseconds that time s[i] is later than the atime
local function later(s, i)
	return (seconds(s, i) - seconds(a, ATIME)) * 1000000000 + u32(s, i + 8) -
		u32(a, ATIME + 8)
end
local limit = ARGV[5] == '2' and 1000000000 or 86400000000000
if later(now, 1) <= limit and later(a, MTIME) <= 0 and later(a, CTIME) <= 0 then
	return { a }
end
a = put(a, ATIME, now)
call('SET', P .. 'i' .. ARGV[4], a)
log(now, 'ACCESS', nil, ARGV[4])
return finish({ a })
