-- SPDX-License-Identifier: Apache-2.0
-- In front of every script. KEYS[1] is the prefix and "setting". Inodes and lengths come as 8
-- bytes, big-endian, and stay strings: Lua's numbers lose what is above 2^53. Strings are never
-- compared with < (strcoll). A script reads and checks all it needs before its first write: what it
-- wrote stays when it fails.
-- Behind all other arguments come three: who writes the change log ("session,number"; '' when the
-- volume keeps none), the highest slice number that the caller knows to be handed out (text), and
-- what it knows the database by: the generation (8 bytes) or, where there was none, the volume's
-- UUID.
local P = string.sub(KEYS[1], 1, -8)
local LOG, HIGHEST, MARK = ARGV[#ARGV - 2], ARGV[#ARGV - 1], ARGV[#ARGV]
local call, sub, byte, char = redis.call, string.sub, string.byte, string.char
local floor, fmt = math.floor, string.format
local FILE, DIR, SYMLINK = 1, 2, 3
local IMMUTABLE, APPEND, SKIP_TRASH = 1, 2, 32
local EPERM, ENOENT, EIO, EACCES, EEXIST, ENOTDIR, EISDIR = 1, 2, 5, 13, 17, 20, 21
local EINVAL, ENOSPC, ENOTEMPTY, ENODATA, ESTALE = 22, 28, 39, 61, 116
-- where the fields of an attribute record begin
local UID, GID, ATIME, MTIME, CTIME, NLINK = 4, 8, 12, 24, 36, 48
local LENGTH, RDEV, PARENT, TAIL = 52, 60, 64, 72
local TRASH = '\127\255\255\255\16\0\0\0'
local TRASH_TEXT = '9223372032828243968'
local NONE = '\0\0\0\0\0\0\0\0'

local function fail(n)
	return redis.error_reply('ERRNO ' .. n)
end

local function u16(s, i)
	local a, b = byte(s, i, i + 1)
	return a * 256 + b
end

local function u32(s, i)
	local a, b, c, d = byte(s, i, i + 3)
	return ((a * 256 + b) * 256 + c) * 256 + d
end

local function p16(v)
	return char(floor(v / 256) % 256, v % 256)
end

local function p32(v)
	return char(floor(v / 16777216) % 256, floor(v / 65536) % 256, floor(v / 256) % 256,
		v % 256)
end

-- a number below 2^53 as 8 bytes
local function p64(v)
	return p32(floor(v / 4294967296)) .. p32(v % 4294967296)
end

-- 8 bytes as decimal text, exactly: above 2^53 in two parts around 10^6 (2^32 = 4294 * 10^6 +
-- 967296)
local function dec(b)
	local h, l = u32(b, 1), u32(b, 5)
	if h < 2097152 then
		return fmt('%.0f', h * 4294967296 + l)
	end
	local low = h * 967296 + l
	return fmt('%.0f%06.0f', h * 4294 + floor(low / 1000000), low % 1000000)
end

-- a < b, both 8 bytes
local function less(a, b)
	local x, y = u32(a, 1), u32(b, 1)
	if x ~= y then
		return x < y
	end
	return u32(a, 5) < u32(b, 5)
end

-- a < b, both decimal texts
local function less_text(a, b)
	if #a ~= #b then
		return #a < #b
	end
	for i = 1, #a do
		local x, y = byte(a, i), byte(b, i)
		if x ~= y then
			return x < y
		end
	end
	return false
end

-- pages of 4096 that a length costs: exact up to 2^57, and so is their product with 4096 as text
local function pages(len)
	local l = u32(len, 5)
	local n = u32(len, 1) * 1048576 + floor((l + 4095) / 4096)
	return n > 0 and n or 1
end

-- What will be added to or put into, looked at before the first write: these stop the script when a
-- key is of another type, or holds no number (or one with no room above it) where one is needed.
-- (Lists, sets and sorted sets: by a call of LLEN, SCARD, ZCARD.)
local function need_hashes(...)
	for i, k in ipairs({ ... }) do
		call('HLEN', P .. k)
	end
end

local function need_number(v)
	if v and ((not string.find(v, '^%-?[1-9]%d*$') and v ~= '0') or
			less_text('8999999999999999999', (string.gsub(v, '-', '')))) then
		error('damaged counter')
	end
end

local function need_counters(...)
	for i, k in ipairs({ ... }) do
		need_number(call('GET', P .. k))
	end
end

local function need_fields(k, ...)
	for i, f in ipairs({ ... }) do
		need_number(call('HGET', P .. k, f))
	end
end

-- One line of the change log (docs/format.md §2.17), behind the writes it tells of. result: nil when
-- the operation has none. Arguments are texts or numbers.
local function log(now, op, result, ...)
	if LOG == '' then
		return
	end
	local args = { ... }
	for i = 1, #args do
		args[i] = string.gsub(tostring(args[i]), '[%z\1-\31\127-\255,%%%(%)"\\]',
			function(c)
				return fmt('%%%02X', byte(c))
			end)
	end
	call('RPUSH', P .. 'txnLog', fmt('%s.%09.0f|%s(%s)%s|(%s)', dec(sub(now, 1, 8)),
		u32(now, 9), op, table.concat(args, ','), result and ':' .. result or '', LOG))
	call('INCR', P .. 'txnLastLog')
end

-- usedSpace and totalInodes (need_counters came before)
local function account(dpages, dinodes)
	if dpages ~= 0 then
		call('INCRBY', P .. 'usedSpace', fmt('%.0f', dpages * 4096))
	end
	if dinodes ~= 0 then
		call('INCRBY', P .. 'totalInodes', fmt('%.0f', dinodes))
	end
end

-- true when so much more goes over the volume's limits (texts, '0': none)
local function over(dpages, dinodes, capacity, inodes)
	if dpages > 0 and capacity ~= '0' then
		local used = tonumber(call('GET', P .. 'usedSpace') or '0') or 0
		if used + dpages * 4096 > tonumber(capacity) then
			return true
		end
	end
	if dinodes > 0 and inodes ~= '0' then
		local used = tonumber(call('GET', P .. 'totalInodes') or '0') or 0
		if used + dinodes > tonumber(inodes) then
			return true
		end
	end
	return false
end

-- the attribute record of an inode (text), nil when there is none, false when it is damaged
local function get(ino)
	local a = call('GET', P .. 'i' .. ino)
	if not a then
		return nil
	end
	if #a < 63 then
		return false
	end
	if #a < 71 then	-- before there was a parent
		a = sub(a, 1, 63) .. NONE .. '\0'
	end
	return a
end

local function put(a, i, bytes)
	return sub(a, 1, i - 1) .. bytes .. sub(a, i + #bytes)
end

local function flag(a, f)
	return bit.band(byte(a, 1), f) ~= 0
end

local function kind(a)
	return floor(byte(a, 2) / 16)
end

local function mode(a)
	return u16(a, 2) % 4096
end

local function put_mode(a, m)
	return put(a, 2, p16(kind(a) * 4096 + m))
end

local function field(a, i)
	return sub(a, i, i + 7)
end

local function links(a, by)
	return put(a, NLINK, p32(math.max(0, u32(a, NLINK) + by)))
end

-- its parent lies in the trash
local function trashed(a)
	return less(TRASH, field(a, PARENT))
end

local function is_trash(ino)
	return not less(ino, TRASH)
end

local function seconds(s, i)
	local h = u32(s, i)
	if h >= 2147483648 then
		h = h - 4294967296
	end
	return h * 4294967296 + u32(s, i + 4)
end

-- the parent's mtime is old enough (nanoseconds, text) to be worth a write
local function touchable(a, now, skip)
	local d = (seconds(now, 1) - seconds(a, MTIME)) * 1000000000 +
		u32(now, 9) - u32(a, MTIME + 8)
	return d >= tonumber(skip)
end

local function touch(a, now)
	return put(put(a, MTIME, now), CTIME, now)
end

-- sticky directory pa: uid may not remove or rename the entry a
local function sticky(pa, a, uid)
	return uid ~= 0 and bit.band(mode(pa), 512) ~= 0 and
		uid ~= u32(pa, UID) and uid ~= u32(a, UID)
end

-- ESTALE when the volume is not the one that the caller works with: it is not there, another one
-- is, or it was loaded anew
local function stale()
	if LOG ~= '' then
		call('LLEN', P .. 'txnLog')
		need_counters('txnLastLog')
	end
	local gen = call('GET', P .. '_gen')
	if gen == MARK then
		return
	end
	local setting = not gen and #MARK > 8 and call('GET', P .. 'setting')
	if not setting or not string.find(setting, MARK, 1, true) then
		return fail(ESTALE)
	end
end

-- slice numbers that were handed out are free again: the database went back
local function went_back()
	return less_text(call('GET', P .. 'nextchunk') or '0', HIGHEST)
end

-- A changing script begins with ARGV[1] = {sid}_{slot}, ARGV[2] = its number (24 bytes), ARGV[3] =
-- now (12 bytes). What it answered lies in _ops until the slot is used again, so that asking again,
-- because the answer was lost, does it once. done() is what is to be answered at once, if anything.
local function done()
	local r = call('HGET', P .. '_ops', ARGV[1])
	if r and sub(r, 1, #ARGV[2]) == ARGV[2] then
		return cmsgpack.unpack(sub(r, #ARGV[2] + 1))
	end
	return stale()
end

local function finish(result)
	call('HSET', P .. '_ops', ARGV[1], ARGV[2] .. cmsgpack.pack(result))
	return result
end

