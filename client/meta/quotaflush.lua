-- SPDX-License-Identifier: Apache-2.0
-- What this client did to the usage of quotas. A directory's quota that was deleted meanwhile stays
-- deleted.
-- ARGV: token, number, now, then each: 'dir', 'user' or 'group', its id, space, inodes (texts)
-- -> {1}
local old = done()
if old then
	return old
end
for i = 4, #ARGV - 3, 4 do
	local k, id = ARGV[i] .. 'Quota', ARGV[i + 1]
	need_hashes(k)
	need_fields(k .. 'UsedSpace', id)
	need_fields(k .. 'UsedInodes', id)
end
for i = 4, #ARGV - 3, 4 do
	local k, id = ARGV[i] .. 'Quota', ARGV[i + 1]
	local known = call('HEXISTS', P .. k, id) == 1
	if not known and ARGV[i] ~= 'dir' then
		call('HSET', P .. k, id, string.rep('\255', 16))
		known = true
	end
	if known then
		call('HINCRBY', P .. k .. 'UsedSpace', id, ARGV[i + 2])
		call('HINCRBY', P .. k .. 'UsedInodes', id, ARGV[i + 3])
	end
end
return finish({ 1 })
