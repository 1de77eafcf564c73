-- SPDX-License-Identifier: Apache-2.0
-- The end of a session that holds nothing any more. ARGV: session -> 1
local ops, prefix = P .. '_ops', ARGV[1] .. '_'
for i, f in ipairs(call('HKEYS', ops)) do
	if sub(f, 1, #prefix) == prefix then
		call('HDEL', ops, f)
	end
end
call('HDEL', P .. 'sessionInfos', ARGV[1])
call('ZREM', P .. 'allSessions', ARGV[1])
return 1
