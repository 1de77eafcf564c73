-- SPDX-License-Identifier: Apache-2.0
-- ARGV: setting, root's record, record of the trash's root or ''
-- -> {0, setting that was there already} or {1}; an error when the database holds something else
local s = call('GET', P .. 'setting')
if s then
	return { 0, s }
end
for i, k in ipairs({ 'i1', 'd1', 'nextinode', 'nextchunk', 'nextsession' }) do
	if call('EXISTS', P .. k) == 1 then
		return fail(EEXIST)
	end
end
if ARGV[3] ~= '' then
	call('SETNX', P .. 'i' .. TRASH_TEXT, ARGV[3])
end
call('SET', P .. 'setting', ARGV[1])
call('SET', P .. 'i1', ARGV[2])
return { 1 }
