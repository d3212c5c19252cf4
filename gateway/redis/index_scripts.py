"""The steps on the index's Redis state that must be atomic. All keys of a script carry one model's hash tag.

A block list is packed, 8 bytes a key. ``seq`` numbers an instance's changes within a generation, so that a reader finds
out what it missed; only the holder of the lease may write, and only to the generation that it opened.
"""

_PREAMBLE = """
local function each_chunk(packed, call)
  for from = 1, #packed, 8192 do
    local chunk = {}
    for at = from, math.min(from + 8191, #packed), 8 do
      chunk[#chunk + 1] = string.sub(packed, at, at + 7)
    end
    call(chunk)
  end
end
local function clock_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
"""

HOLD = """
-- KEYS: lease, meta, then all other keys of the instance and the stream. ARGV: token, lease ms, time to live ms.
-- Returns whether the caller holds the lease, and the generation that is there ('' when none).
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return {0, ''} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
for at = 2, #KEYS do redis.call('PEXPIRE', KEYS[at], ARGV[3]) end
return {1, redis.call('HGET', KEYS[2], 'gen') or ''}
"""

RELEASE = """
-- KEYS: lease, and what shall go with it. ARGV: token.
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('UNLINK', unpack(KEYS)) end
return 1
"""

OPEN = (
    _PREAMBLE
    + """
-- KEYS: lease, meta, deltas, then the instance's other keys. ARGV: token, name, time to live ms, stream length.
-- Begins an empty generation and returns it; '' when the lease is lost.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return '' end
for at = 4, #KEYS do redis.call('UNLINK', KEYS[at]) end
redis.call('UNLINK', KEYS[2])
local gen = string.format('%.0f', clock_us())
redis.call('HSET', KEYS[2], 'gen', gen, 'seq', 1, 'known', 0)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], '*', 'n', ARGV[2], 'o', 'open', 'g', gen, 's', 1)
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return gen
"""
)

PUBLISH = (
    _PREAMBLE
    + """
-- KEYS: lease, meta, deltas, blocks, records.
-- ARGV: token, generation, name, rank, clear, held, gone, time to live ms, stream length,
--       mark ('' for none), number of records to save, their names and contents in turn, names of records to drop.
-- Returns 1, or 0 when the lease or the generation is not the caller's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('HGET', KEYS[2], 'gen') ~= ARGV[2] then return 0 end
local seq = redis.call('HINCRBY', KEYS[2], 'seq', 1)
if ARGV[5] == '1' then redis.call('UNLINK', KEYS[4], KEYS[5]) end
each_chunk(ARGV[6], function(chunk) redis.call('SADD', KEYS[4], unpack(chunk)) end)
each_chunk(ARGV[7], function(chunk) redis.call('SREM', KEYS[4], unpack(chunk)) end)
local dropped_from = 12 + 2 * tonumber(ARGV[11])
for at = 12, dropped_from - 1, 4000 do
  redis.call('HSET', KEYS[5], unpack(ARGV, at, math.min(at + 3999, dropped_from - 1)))
end
for at = dropped_from, #ARGV, 4000 do
  redis.call('HDEL', KEYS[5], unpack(ARGV, at, math.min(at + 3999, #ARGV)))
end
if ARGV[10] == '' then
  redis.call('HDEL', KEYS[2], 'mark:' .. ARGV[4])
else
  redis.call('HSET', KEYS[2], 'mark:' .. ARGV[4], ARGV[10])
end
for at = 3, 5 do redis.call('PEXPIRE', KEYS[at], ARGV[8]) end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[9], '*', 'n', ARGV[3], 'o', 'delta', 'g', ARGV[2], 's', seq,
  'r', ARGV[4], 'c', ARGV[5], 'd', ARGV[6], 'x', ARGV[7])
return 1
"""
)

SET_KNOWN = """
-- KEYS: lease, meta, deltas. ARGV: token, generation, name, known, stream length.
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('HGET', KEYS[2], 'gen') ~= ARGV[2] then return 0 end
local seq = redis.call('HINCRBY', KEYS[2], 'seq', 1)
redis.call('HSET', KEYS[2], 'known', ARGV[4])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*', 'n', ARGV[3], 'o', 'known', 'g', ARGV[2], 's', seq,
  'k', ARGV[4])
return 1
"""

NOTE = (
    _PREAMBLE
    + """
-- KEYS: meta, notes, deltas. ARGV: name, keys, time to live ms, most keys, stream length.
local now_ms = math.floor(clock_us() / 1000)
local score = now_ms + tonumber(ARGV[3])
if redis.call('HSETNX', KEYS[1], 'gen', string.format('%.0f', clock_us())) == 1 then
  redis.call('HSET', KEYS[1], 'known', 1)
end
local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
each_chunk(ARGV[2], function(chunk)
  local pairs = {}
  for _, key in ipairs(chunk) do
    pairs[#pairs + 1] = score
    pairs[#pairs + 1] = key
  end
  redis.call('ZADD', KEYS[2], 'GT', unpack(pairs))
end)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -tonumber(ARGV[4]) - 1)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*', 'n', ARGV[1], 'o', 'note',
  'g', redis.call('HGET', KEYS[1], 'gen'), 's', seq, 'd', ARGV[2], 'u', ARGV[3])
for at = 1, 3 do redis.call('PEXPIRE', KEYS[at], ARGV[3]) end
return 1
"""
)

STATE = """
-- KEYS: meta, then sets. Returns generation, seq, known and the sets' sizes, as of one moment.
local state = redis.call('HMGET', KEYS[1], 'gen', 'seq', 'known')
for at = 2, #KEYS do state[#state + 1] = redis.call('SCARD', KEYS[at]) end
return state
"""
