-- SPDX-License-Identifier: Apache-2.0
-- References that a client of before sliceRef counted in a key of the slice's own move there; it
-- had the same meaning, and below zero the objects are found as leaked.
-- ARGV: the key
-- -> 1
local key = ARGV[1]
local n = call('GET', P .. key)
if n and string.match(n, '^[1-9]%d*$') then
	need_hashes('sliceRef')
	call('HINCRBY', P .. 'sliceRef', key, n)
end
if n then
	call('DEL', P .. key)
end
return 1
