-- SPDX-License-Identifier: Apache-2.0
-- KEYS prefix + 'setting'; ARGV: stored text, new text, '1' to begin directory sums anew, '1' to
-- begin users' and groups' sums anew, '1' to write the change log, record of the trash's root or ''
-- -> 1, or 0 when something else is stored. Sent again because the answer was lost it finds its own
-- text, and is done.
local P = string.sub(KEYS[1], 1, -8)
local call = redis.call
local stored = call('GET', KEYS[1])
if stored == ARGV[2] then
	return 1
end
if stored ~= ARGV[1] then
	return 0
end
local lines = {}
if ARGV[3] == '1' then
	lines[#lines + 1] = 'INIT_ENABLE_DIRSTATS'
end
if ARGV[4] == '1' then
	lines[#lines + 1] = 'INIT_ENABLE_USERGROUPQUOTA'
end
if ARGV[5] ~= '1' then
	lines = {}
end
if #lines > 0 then
	call('LLEN', P .. 'txnLog')
	local n = call('GET', P .. 'txnLastLog')
	if n and not string.find(n, '^%d+$') then
		return redis.error_reply('ERRNO 5')
	end
end
redis.replicate_commands()
local now = call('TIME')
if ARGV[3] == '1' then
	call('DEL', P .. 'dirUsedInodes', P .. 'dirUsedSpace')
end
if ARGV[4] == '1' then
	call('DEL', P .. 'userQuota', P .. 'userQuotaUsedSpace', P .. 'userQuotaUsedInodes',
		P .. 'groupQuota', P .. 'groupQuotaUsedSpace', P .. 'groupQuotaUsedInodes')
end
if ARGV[6] ~= '' then
	call('SETNX', P .. 'i9223372032828243968', ARGV[6])
end
call('SET', KEYS[1], ARGV[2])
for i, op in ipairs(lines) do
	call('RPUSH', P .. 'txnLog',
		now[1] .. '.' .. string.format('%09d', tonumber(now[2]) * 1000) .. '|' .. op ..
		'()|(0,' .. i .. ')')
	call('INCR', P .. 'txnLastLog')
end
return 1
