-- SPDX-License-Identifier: Apache-2.0
-- ARGV: token, number, now, inode (text), chunk, slice record, end of the slice in the file (8
--    bytes), mtime (12 bytes), capacity, room (tight)
-- -> {record, length of the list, old length, as named}; {'room'}: quotas have to be looked at
local old = done()
if old then
	return old
end
if went_back() then
	return fail(ESTALE)
end
local rec, list = ARGV[6], P .. 'c' .. ARGV[4] .. '_' .. ARGV[5]
local a = get(ARGV[4])
if not a then
	return fail(a == nil and ENOENT or EIO)
end
if kind(a) ~= FILE then
	return fail(EPERM)
end
local before = field(a, LENGTH)
-- Its number was given for this write alone: the record that stands there already is this one, and
-- only the token that would tell is gone.
if sub(rec, 5, 12) ~= NONE then
	for i, s in ipairs(call('LRANGE', list, -100, -1)) do
		if s == rec then
			return { a, call('LLEN', list), before, {} }
		end
	end
end
local length = less(before, ARGV[7]) and ARGV[7] or before
local delta = pages(length) - pages(before)
if tight(a, delta, ARGV[10]) then
	return { 'room' }
end
if over(delta, 0, ARGV[9], '0') then
	return fail(ENOSPC)
end
call('LLEN', list)
local dirs = named(a, ARGV[4], length)
need_counters('usedSpace')
account(delta, 0)
-- The time of the write is both, as whoever asked in between was told; but ctime always moves
local ctime = ARGV[3]
local at, was = seconds(ARGV[8], 1), seconds(a, CTIME)
if at > was or (at == was and u32(ARGV[8], 9) > u32(a, CTIME + 8)) then
	ctime = ARGV[8]
end
a = put(put(put(a, LENGTH, length), MTIME, ARGV[8]), CTIME, ctime)
call('SET', P .. 'i' .. ARGV[4], a)
local n = call('RPUSH', list, rec)
log(ARGV[3], 'WRITE', 0, ARGV[4], ARGV[5], u32(rec, 1), dec(sub(rec, 5, 12)), u32(rec, 21),
	dec(sub(ARGV[8], 1, 8)), u32(ARGV[8], 9))
return finish({ a, n, before, dirs })
