-- SPDX-License-Identifier: Apache-2.0
-- What this client did to the usage of users and groups (of directories: dirstat.lua).
-- ARGV: token, number, now, then each: 'user' or 'group', its id, space, inodes (texts)
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
	call('HSETNX', P .. k, id, string.rep('\255', 16))
	call('HINCRBY', P .. k .. 'UsedSpace', id, ARGV[i + 2])
	call('HINCRBY', P .. k .. 'UsedInodes', id, ARGV[i + 3])
end
return finish({ 1 })
