-- SPDX-License-Identifier: Apache-2.0
-- The registry of a group's members: one call of a member (beat, leave), of one who only asks
-- (fetch), or of status (peek, which changes nothing). Judges who lapsed, by Redis's own clock.
--
-- KEYS  1 setting
--       2 _gen
--       3 members   hash id -> "state weight port addr"
--       4 versions  zset id by the ring version of its last change, gone members included
--       5 seen      zset id by ms of the last heartbeat
--       6 state     hash, see below
--       7 _groups   set of names
-- ARGV  1 mode  2 the caller's ring version  3 group  4 id  5 record
-- state ver             ring version
--       floor           changes up to this version are forgotten, who knows less gets the full list
--       any             ms of the last call
--       epoch           no clock of a member started before
--       settle          until then the list is being rebuilt, nobody who has one gets another
--       window, lapsed  how many lapsed since when
-- reply {0} no volume | {1, gen, ver, kind, id, record, id, record, ...}
--       kind 0 nothing new, 1 changes (an empty record: gone), 2 everybody
if redis.replicate_commands then pcall(redis.replicate_commands) end

local SILENT, PAUSE, WINDOW, SETTLE = 5000, 2000, 5000, 3000
local REMEMBERED, DELTA, MEMBERS = 1024, 500, 10000
local mode, theirs, group, id, record = ARGV[1], tonumber(ARGV[2]) or 0, ARGV[3], ARGV[4], ARGV[5]
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
	local r = {1, gen, string.format('%.0f', ver), kind}
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

if mode == 'beat' then
	if redis.call('HGET', KEYS[3], id) ~= record then
		redis.call('HSET', KEYS[3], id, record)
		change(id)
	end
	redis.call('ZADD', KEYS[5], now, id)
	redis.call('SADD', KEYS[7], group)
elseif mode == 'leave' and redis.call('HDEL', KEYS[3], id) == 1 then
	redis.call('ZREM', KEYS[5], id)
	change(id)
end

-- who is silent lapses, a few at a time
if epoch <= now - SILENT then
	if now - window >= WINDOW then window, lapsed = now, 0 end
	local room = math.max(1, math.floor(count / 10)) - lapsed
	if room > 0 then
		local gone = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', now - SILENT,
			'LIMIT', 0, room)
		for _, m in ipairs(gone) do
			redis.call('ZREM', KEYS[5], m)
			if redis.call('HDEL', KEYS[3], m) == 1 then change(m) end
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
