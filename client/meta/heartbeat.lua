-- SPDX-License-Identifier: Apache-2.0
-- A sign of life of a session, and the watch over the generation: slice numbers that were handed
-- out and are free again mean that the database went back (loaded from a dump, failed over to a
-- stale replica), so names of blocks will come again with other bytes. Numbers of sessions come
-- again then too: they are raised to this one's.
-- ARGV: session, its JSON, expiry (seconds), highest slice number seen (text), 8 random bytes, the
--    volume's UUID, now
-- -> {setting or false, generation, 1 when the session was unknown, 2 when it is another's (and
--    nothing was done), 1 when quotas are set}
local setting = call('GET', P .. 'setting')
if not setting then
	return { false }
end
if not string.find(setting, ARGV[6], 1, true) then
	return { setting }	-- another volume's
end
local gen, next = call('GET', P .. '_gen'), call('GET', P .. 'nextchunk') or '0'
local quotas = 0
for i, k in ipairs({ 'dirQuota', 'userQuota', 'groupQuota' }) do
	if call('EXISTS', P .. k, P .. k .. 'UsedInodes') > 0 then
		quotas = 1
	end
end
need_hashes('sessionInfos')
local known = call('HGET', P .. 'sessionInfos', ARGV[1])
if known and known ~= ARGV[2] then
	return { setting, gen, 2, quotas }
end
-- what is no number there must not end sessions
local last = redis.pcall('GET', P .. 'nextsession') or '0'
local raise = type(last) == 'string' and string.find(last, '^%d+$') and less_text(last, ARGV[1])
call('ZCARD', P .. 'allSessions')
if LOG ~= '' then
	call('LLEN', P .. 'txnLog')
	need_counters('txnLastLog')
end
local fresh = call('HSETNX', P .. 'sessionInfos', ARGV[1], ARGV[2])
if raise then
	call('SET', P .. 'nextsession', ARGV[1])
end
call('ZADD', P .. 'allSessions', ARGV[3], ARGV[1])
if fresh == 1 then
	log(ARGV[7], 'NEWSESSION', nil, ARGV[1], ARGV[3], ARGV[2])
end
if less_text(next, ARGV[4]) then
	call('SET', P .. 'nextchunk', ARGV[4])
	gen = false
end
if not gen then
	gen = ARGV[5]
	call('SET', P .. '_gen', gen)
end
return { setting, gen, fresh, quotas }
