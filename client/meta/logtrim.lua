-- SPDX-License-Identifier: Apache-2.0
-- A part of the change log's head goes.
-- ARGV: second before which lines are too old ('0': none is), most lines ('0': any number)
-- -> number of lines that went
local bad = stale()
if bad then
	return bad
end
local key, most, n = P .. 'txnLog', tonumber(ARGV[2]), 0
local len = call('LLEN', key)
if most > 0 and len > most then
	n = math.min(len - most, 10000)
end
if n == 0 and ARGV[1] ~= '0' then
	for i, line in ipairs(call('LRANGE', key, 0, 999)) do
		local at = tonumber(string.match(line, '^(%d+)%.') or '0')
		if at >= tonumber(ARGV[1]) then
			break
		end
		n = i
	end
end
if n > 0 then
	call('LTRIM', key, n, -1)
end
return n
