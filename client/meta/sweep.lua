-- SPDX-License-Identifier: Apache-2.0
-- Stored results of sessions that are no more. -> number of entries removed
local bad = stale()
if bad then
	return bad
end
local r, live = 0, {}
call('ZCARD', P .. 'allSessions')
for i, f in ipairs(call('HKEYS', P .. '_ops')) do
	local sid = string.match(f, '^%d+')
	if sid and live[sid] == nil then
		live[sid] = call('ZSCORE', P .. 'allSessions', sid) and true or false
	end
	if not sid or not live[sid] then
		call('HDEL', P .. '_ops', f)
		r = r + 1
		if r >= 1000 then
			break
		end
	end
end
return r
