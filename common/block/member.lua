-- SPDX-License-Identifier: Apache-2.0
-- The registry of a group's members: one call of a member (beat, leave), of one who only asks
-- (fetch), of status (peek, which changes nothing), or of one who asks a
-- member to leave or takes that back (wish: record 1 or empty). Judges who lapsed, by Redis's own
-- clock.
--
-- KEYS  1 setting
--       2 _gen
--       3 members   hash id -> "state weight port addr"
--       4 versions  zset id by the ring version of its last change, gone members included
--       5 seen      zset id by ms of the last heartbeat
--       6 state     hash, see below
--       7 _groups   set of names
--       8 notes     hash "drain id" -> 1: asked to leave; "progress id" -> "moved to_move";
--                   "left id" -> "lost s": did so, with so many blocks that nobody would take,
--                   at that second, and is not back yet
-- ARGV  1 mode  2 the caller's ring version  3 group  4 id  5 record; of a leave: blocks lost
--       6 kind      of a beat: first (of a process: it is joining again, under the weight that the
--                   record has), forced (no rule applies to the state); of a beat or leave: same
--                   (only if the ring version is the caller's; a beat is a sign of life all the
--                   same)
--       7 slowed    1: the object store told the member to slow down
--       8 progress  "moved to_move", or empty
-- state ver             ring version
--       floor           changes up to this version are forgotten, who knows less gets the full list
--       any             ms of the last call
--       epoch           no clock of a member started before
--       settle          until then the list is being rebuilt, nobody who has one gets another
--       window, lapsed  how many lapsed since when
--       slowed          ms of the last time that a member was told to slow down
-- reply {0} no volume | {1, gen, ver, kind, drain, slowed_ago, count, id, record, id, record, ...}
--       kind 0 nothing new, 1 changes (an empty record: gone), 2 everybody; drain 1: this member is
--       asked to leave; slowed_ago in ms, -1 never; count of the members
-- A new member is joining (1); it is active (2) at once when it is the only one. One that lapsed
-- and comes back says that it is active, and is joining all the same: others have served its keys
-- meanwhile.
if redis.replicate_commands then pcall(redis.replicate_commands) end

local SILENT, PAUSE, WINDOW, SETTLE = 5000, 2000, 5000, 3000
local REMEMBERED, DELTA, MEMBERS = 1024, 500, 10000
local DAY = 86400
local mode, theirs, group, id, record = ARGV[1], tonumber(ARGV[2]) or 0, ARGV[3], ARGV[4], ARGV[5]
local how, slowed, progress = ARGV[6], ARGV[7], ARGV[8]
if redis.call('EXISTS', KEYS[1]) == 0 then return {0} end

local gen = redis.call('GET', KEYS[2]) or ''
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local st = {}
local raw = redis.call('HGETALL', KEYS[6])
for i = 1, #raw, 2 do st[raw[i]] = tonumber(raw[i + 1]) end
local ver, floor, any, epoch = st.ver or 0, st.floor or 0, st.any or now, st.epoch or 0
local settle, window, lapsed = st.settle or 0, st.window or 0, st.lapsed or 0
local count = redis.call('HLEN', KEYS[3])

local function list(kind, full, since)
	local drain = id ~= '' and redis.call('HEXISTS', KEYS[8], 'drain ' .. id) or 0
	local ago = st.slowed and math.max(0, now - st.slowed) or -1
	local n = redis.call('HLEN', KEYS[3])
	local r = {1, gen, string.format('%.0f', ver), kind, drain, ago, n}
	if full then
		local all = redis.call('HGETALL', KEYS[3])
		for i = 1, #all do r[#r + 1] = all[i] end
	elseif kind == 1 then
		for _, m in ipairs(since) do
			r[#r + 1] = m
			r[#r + 1] = redis.call('HGET', KEYS[3], m) or ''
		end
	end
	return r
end

if mode == 'peek' then return list(2, true) end
if mode == 'beat' and count >= MEMBERS and redis.call('HEXISTS', KEYS[3], id) == 0 then
	return redis.error_reply('ERRNO 28')
end
if mode == 'wish' and redis.call('HEXISTS', KEYS[3], id) == 0 then
	return redis.error_reply('ERRNO 2')
end

-- from here on nothing fails
local changed = {}
local function change(m) changed[#changed + 1] = m end

-- somebody knows a later ring than this server: it was failed over, or emptied. Nothing goes back,
-- and the others get time to return.
if theirs > ver and theirs < 2 ^ 52 then
	ver = theirs + 1
	floor = ver
	settle = now + SETTLE
	epoch = now
	redis.call('DEL', KEYS[4])
end

-- the registry was away, or its clock was set: every member's clock starts again
if now - any > PAUSE or any - now > 1000 then
	epoch = now
	if any > now then
		for _, m in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do
			redis.call('ZADD', KEYS[5], now, m)
		end
		window, settle = 0, 0
	end
end

-- who only lapsed is still asked to leave when it is back
local function gone(m)
	redis.call('ZREM', KEYS[5], m)
	redis.call('HDEL', KEYS[8], 'progress ' .. m)
	if redis.call('HDEL', KEYS[3], m) == 1 then change(m) end
end

-- the record as it is written: what the member says, and the rules
local function admitted()
	local have = redis.call('HGET', KEYS[3], id)
	if how == 'same' and have and theirs ~= ver then return have end
	if how == 'forced' then return record end
	local weight = how == 'first' and have and string.match(have, '^%d+ (%d+) ')
	if weight then
		record = '1 ' .. weight .. string.match(record, '^%d+ %d+( .*)$')
	end
	local state, rest = string.match(record, '^(%d+)( .*)$')
	local others = count > (have and 1 or 0)
	if state == '1' and record ~= have and not others then return '2' .. rest end
	if state == '2' and not have and now >= settle and others then return '1' .. rest end
	return record
end

if mode == 'beat' then
	local r = admitted()
	if how == 'first' and redis.call('HEXISTS', KEYS[3], id) == 0 then
		redis.call('HDEL', KEYS[8], 'drain ' .. id)
	end
	if redis.call('HGET', KEYS[3], id) ~= r then
		redis.call('HSET', KEYS[3], id, r)
		redis.call('HDEL', KEYS[8], 'left ' .. id)
		change(id)
	end
	redis.call('ZADD', KEYS[5], now, id)
	redis.call('SADD', KEYS[7], group)
	if progress ~= '' then
		redis.call('HSET', KEYS[8], 'progress ' .. id, progress)
	else
		redis.call('HDEL', KEYS[8], 'progress ' .. id)
	end
	if slowed == '1' then
		st.slowed = now
		redis.call('HSET', KEYS[6], 'slowed', string.format('%.0f', now))
	end
elseif mode == 'leave' and (how ~= 'same' or theirs == ver) then
	gone(id)
	redis.call('HDEL', KEYS[8], 'drain ' .. id)
	if how == 'same' then
		local notes = redis.call('HGETALL', KEYS[8])
		for i = 1, #notes, 2 do -- not for ever
			local s = string.sub(notes[i], 1, 5) == 'left ' and
				tonumber(string.match(notes[i + 1], ' (%d+)$') or 0)
			if s and s < t[1] - DAY then redis.call('HDEL', KEYS[8], notes[i]) end
		end
		redis.call('HSET', KEYS[8], 'left ' .. id, record .. ' ' .. t[1])
	end
elseif mode == 'wish' then
	if record == '1' then redis.call('HSET', KEYS[8], 'drain ' .. id, 1)
	else redis.call('HDEL', KEYS[8], 'drain ' .. id) end
end

-- who is silent lapses, a few at a time
if epoch <= now - SILENT then
	if now - window >= WINDOW then window, lapsed = now, 0 end
	local room = math.max(1, math.floor(count / 10)) - lapsed
	if room > 0 then
		local silent = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now - SILENT,
			'LIMIT', 0, room)
		for _, m in ipairs(silent) do
			gone(m)
			lapsed = lapsed + 1
		end
	end
end

if #changed > 0 then
	ver = ver + 1
	for _, m in ipairs(changed) do redis.call('ZADD', KEYS[4], ver, m) end
	local extra = redis.call('ZCARD', KEYS[4]) - REMEMBERED
	if extra > 0 then
		local last = redis.call('ZRANGE', KEYS[4], extra - 1, extra - 1, 'WITHSCORES')
		floor = tonumber(last[2])
		redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', floor)
	end
end

local function put(name, old, value)
	if old ~= value then redis.call('HSET', KEYS[6], name, string.format('%.0f', value)) end
end
put('ver', st.ver, ver)
put('floor', st.floor, floor)
put('epoch', st.epoch, epoch)
put('settle', st.settle, settle)
put('window', st.window, window)
put('lapsed', st.lapsed, lapsed)
-- a quarter of a second is exact enough, and spares a write for most of those who only ask
if mode == 'beat' or not st.any or math.abs(now - st.any) > 250 then put('any', st.any, now) end

if theirs > 0 and now < settle then
	local r = list(0, false)
	r[3] = string.format('%.0f', theirs)
	return r
end
if theirs == ver then return list(0, false) end
if theirs == 0 or theirs < floor or theirs > ver then return list(2, true) end
local since = redis.call('ZRANGEBYSCORE', KEYS[4], '(' .. string.format('%.0f', theirs), '+inf',
	'LIMIT', 0, DELTA + 1)
if #since > DELTA then return list(2, true) end
return list(1, false, since)
