-- SPDX-License-Identifier: Apache-2.0
-- ARGV: inode (text) -> {record or false, names}
local bad = stale()
if bad then
	return bad
end
return { call('GET', P .. 'i' .. ARGV[1]), call('HKEYS', P .. 'x' .. ARGV[1]) }
