-- SPDX-License-Identifier: Apache-2.0
-- A rule of an inode that the caller does not know yet.
-- ARGV: inode (text), 1 access, 2 default -> {record or false, rule or false}
local bad = stale()
if bad then
	return bad
end
local a = call('GET', P .. 'i' .. ARGV[1])
if not a or #a < TAIL then
	return { a, false }
end
local access, default = tail(a)
local id = ARGV[2] == '1' and access or default
return { a, id ~= 0 and call('HGET', P .. 'acl', fmt('%.0f', id)) }
