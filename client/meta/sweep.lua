-- SPDX-License-Identifier: Apache-2.0
-- Stored results of sessions that are no more, once nobody asks for them again.
-- ARGV: now, seconds that they stay, fields of _ops…
-- -> number of entries removed
local bad = stale()
if bad then
	return bad
end
local now, ops = seconds(ARGV[1], 1), P .. '_ops'
local live, old, undated = {}, {}, {}
need_hashes('_ops')
call('ZCARD', P .. 'allSessions')
for i = 3, #ARGV - 3 do
	local f = ARGV[i]
	local sid = string.match(f, '^(%d+)_')
	if sid and live[sid] == nil then
		live[sid] = call('ZSCORE', P .. 'allSessions', sid) and true or false
	end
	local v = not (sid and live[sid]) and call('HGET', ops, f)
	if v then
		-- number, result, time; what is neither is nobody's
		local all = { pcall(cmsgpack.unpack, sub(v, 25)) }
		local at = #all > 1 and all[#all]
		if not sid or not all[1] then
			old[#old + 1] = f
		elseif type(at) ~= 'number' or at < 1000000000 then
			undated[#undated + 1] = f
			undated[#undated + 1] = v .. cmsgpack.pack(now)
		elseif at + tonumber(ARGV[2]) < now then
			old[#old + 1] = f
		end
	end
end
if #undated > 0 then
	call('HSET', ops, unpack(undated))
end
if #old > 0 then
	call('HDEL', ops, unpack(old))
end
return #old
