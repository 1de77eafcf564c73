-- SPDX-License-Identifier: Apache-2.0
-- Behind the prelude of scripts that remove something. An item that goes is planned first (reads,
-- checks), then written.

local STATS = { 'dirDataLength', 'dirUsedSpace', 'dirUsedInodes',
	'dirQuota', 'dirQuotaUsedSpace', 'dirQuotaUsedInodes' }

-- the hour's directory of the trash, to be made when it is new; or nil and an errno, as when the
-- trash has no root
local function hour_find(name)
	local e = call('HGET', P .. 'd' .. TRASH_TEXT, name)
	if e then
		if #e ~= 9 then
			return nil, EIO
		end
		need_hashes('d' .. dec(sub(e, 2, 9)))
		return { ino = sub(e, 2, 9), name = name }
	end
	if call('EXISTS', P .. 'i' .. TRASH_TEXT) == 0 then
		return nil, ENOENT
	end
	need_counters('nextTrash', 'usedSpace', 'totalInodes')
	need_hashes('dirUsedInodes', 'dirDataLength', 'dirUsedSpace')
	local n = tonumber(call('GET', P .. 'nextTrash') or '0') + 1
	if n < 1 or n > 4026531839 then	-- as many fit behind the trash's own number
		return nil, EIO
	end
	local ino = sub(TRASH, 1, 4) .. p32(268435456 + n)
	need_hashes('d' .. dec(ino))
	return { ino = ino, make = true, name = name }
end

local function hour_make(h, now)
	if not h.make then
		return
	end
	call('INCR', P .. 'nextTrash')
	account(1, 1)
	local text = dec(h.ino)
	call('SET', P .. 'i' .. text, '\0' .. p16(DIR * 4096 + 365) .. p32(0) .. p32(0) ..
		now .. now .. now .. p32(2) .. p64(4096) .. p32(0) .. TRASH .. '\0')
	call('HSET', P .. 'd' .. TRASH_TEXT, h.name, char(DIR) .. h.ino)
	call('HSET', P .. 'dirUsedInodes', text, '0')
	call('HSET', P .. 'dirDataLength', text, '0')
	call('HSET', P .. 'dirUsedSpace', text, '0')
	log(now, 'CREATE', text, TRASH_TEXT, h.name, 0, 0, DIR, 365, 0, '', 'linux', false)
end

local function trash_name(parent, ino, name)
	return sub(parent .. '-' .. ino .. '-' .. name, 1, 255)
end

-- What will happen to the item of entry e (9 bytes) with record a (nil: lost): plan, or nil and an
-- errno, or nil, nil and the inode (8 bytes) of a file whose last link it is and of which the
-- caller has to say whether it is open. hour: '' when it goes for good.
-- open: 8 bytes for each file that is open in this client; when it has too many of them '?', then
-- '?' and the answer: the inode that was asked for, and '1' or '0'
local function remove_plan(parent, name, e, a, hour, session, open)
	local r = {
		type = byte(e, 1), ino = sub(e, 2, 9), a = a, parent = parent, name = name, e = e,
	}
	r.text = dec(r.ino)
	local many = a and field(a, PARENT) == NONE
	if r.type == DIR then
		need_hashes(unpack(STATS))
		if less_text(parent, TRASH_TEXT) and call('HLEN', P .. 'dirQuota') > 0 then
			local s, i = owed(r.text)
			owed(parent)
			r.space = s + (tonumber(call('HGET', P .. 'dirUsedSpace', r.text)) or 0)
			r.inodes = i + (tonumber(call('HGET', P .. 'dirUsedInodes', r.text)) or 0)
		end
	end
	if many then
		need_fields('p' .. r.text, parent)
	end
	if hour ~= '' and a and not flag(a, SKIP_TRASH) then
		local h, err = hour_find(hour)
		if not h then
			return nil, err
		end
		local tname = trash_name(parent, r.text, name)
		-- the same link was thrown away before within this hour
		if r.type == DIR or h.make or u32(a, NLINK) <= 1 or
				call('HEXISTS', P .. 'd' .. dec(h.ino), tname) == 0 then
			if many then
				need_fields('p' .. r.text, dec(h.ino))
			end
			r.hour, r.tname = h, tname
			return r
		end
	end
	if r.type == FILE and a and u32(a, NLINK) <= 1 then
		if #open % 8 == 0 then
			for i = 1, #open, 8 do
				if sub(open, i, i + 7) == r.ino then
					r.open = true
				end
			end
		elseif sub(open, 2, 9) == r.ino then
			r.open = sub(open, 10) == '1' or nil
		else
			return nil, nil, r.ino
		end
	end
	need_counters('usedSpace', 'totalInodes')
	-- a file that was cut to nothing has a list of its first chunk
	r.empty = r.type == FILE and a and field(a, LENGTH) == NONE and
		call('EXISTS', P .. 'c' .. r.text .. '_0') == 0
	if not r.empty then
		call('ZCARD', P .. 'delfiles')
	end
	if r.open then
		call('SCARD', P .. 'session' .. session)
	end
	return r
end

local function remove_stats(text)
	for _, k in ipairs(STATS) do
		call('HDEL', P .. k, text)
	end
end

-- Writes a plan (not the entry itself, not the parent). Returns {what, type, inode, length, hour,
-- uid and gid (8 bytes; '': no record)}:
-- what is trash, kept (other links remain), open (deleted at its last close), gone, or nothing
-- (gone, and it had no data); length: of a file.
local function remove_write(r, now, session)
	local a, ikey = r.a, P .. 'i' .. r.text
	local length = (r.type == FILE and a) and field(a, LENGTH) or NONE
	local owner = a and field(a, UID) or ''
	if r.type == DIR then
		-- what was done in it and is not told yet goes where it was (parent_of)
		if r.space then
			call('DEL', P .. '_late' .. r.text)
			call('HSET', P .. '_late' .. r.text, 'up', r.parent)
			call('EXPIRE', P .. '_late' .. r.text, LATE_SECONDS)
			owe(r.parent, r.space, r.inodes)
		end
		remove_stats(r.text)
	end
	if r.hour then
		hour_make(r.hour, now)
		a = put(a, CTIME, now)
		local hour = dec(r.hour.ino)
		if field(a, PARENT) ~= NONE then
			a = put(a, PARENT, r.hour.ino)
		else
			call('HINCRBY', P .. 'p' .. r.text, hour, 1)
			call('HINCRBY', P .. 'p' .. r.text, r.parent, -1)
		end
		call('SET', ikey, a)
		call('HSET', P .. 'd' .. hour, r.tname, r.e)
		return { 'trash', r.type, r.ino, length, r.hour.ino, owner }
	end
	if not a then
		return { 'gone', r.type, r.ino, length, NONE, owner }
	end
	local many = field(a, PARENT) == NONE
	if r.type ~= DIR and u32(a, NLINK) > 1 then
		call('SET', ikey, links(put(a, CTIME, now), -1))
		if many then
			call('HINCRBY', P .. 'p' .. r.text, r.parent, -1)
		end
		return { 'kept', r.type, r.ino, length, NONE, owner }
	end
	local what = 'gone'
	if r.open then
		what = 'open'
		call('SET', ikey, links(put(a, CTIME, now), -1))
		call('SADD', P .. 'session' .. session, r.text)
	else
		account(r.type == FILE and -pages(length) or -1, -1)
		if r.type == FILE and r.empty then
			what = 'nothing'
		elseif r.type == FILE then
			call('ZADD', P .. 'delfiles', dec(sub(now, 1, 8)),
				r.text .. ':' .. dec(length))
		elseif r.type == SYMLINK then
			call('DEL', P .. 's' .. r.text)
		end
		call('DEL', ikey)
	end
	call('DEL', P .. 'x' .. r.text)
	if many then
		call('DEL', P .. 'p' .. r.text)
	end
	return { what, r.type, r.ino, length, NONE, owner }
end

-- the hour's directory that a plan leads into, as the change log has it
local function hour_text(r)
	return r and r.hour and dec(r.hour.ino) or '0'
end
