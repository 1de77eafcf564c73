-- SPDX-License-Identifier: Apache-2.0
-- ARGV: parent (text), name -> {entry, record or false}
local bad = stale()
if bad then
	return bad
end
local e = call('HGET', P .. 'd' .. ARGV[1], ARGV[2])
if not e then
	return fail(ENOENT)
end
if #e ~= 9 then
	return fail(EIO)
end
return { e, call('GET', P .. 'i' .. dec(sub(e, 2, 9))) }
