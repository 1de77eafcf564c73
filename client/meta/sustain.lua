-- SPDX-License-Identifier: Apache-2.0
-- Files without a name that a session has open, again: it had lapsed, and others took it for dead.
-- ARGV: session, inodes (texts)…
-- -> those that are gone
local bad = stale()
if bad then
	return bad
end
local session, r, add = P .. 'session' .. ARGV[1], {}, {}
call('SCARD', session)
for i = 2, #ARGV - 3 do
	local a = get(ARGV[i])
	if a == nil then
		r[#r + 1] = ARGV[i]
	elseif a and u32(a, NLINK) == 0 then
		add[#add + 1] = ARGV[i]
	end
end
if #add > 0 then
	call('SADD', session, unpack(add))
end
return r
