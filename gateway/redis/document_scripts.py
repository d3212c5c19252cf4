"""The steps on documents that must be one step in Redis, in Lua.

A stored document is the msgpack array [version, revision, time in ms, author, body]; an empty body marks a deleted one.
Hash ``meta`` holds the epoch, a random name given with the first document, and the revision, which counts all changes.
A change's revision is also the score of its document in ``changes``, whose members are "kind\\nname".
"""

PUT = """
-- KEYS: meta, changes, the kind's documents, this one's history, audit.
-- ARGV: kind, name, body, author, expected version ('': any), epoch for an empty store, channel, most history,
-- most audit entries. An empty body deletes.
-- Returns {1, the new document}, or {0, the present one or ''} when it is not the expected version.
local stored = redis.call('HGET', KEYS[3], ARGV[2])
local old = stored and cmsgpack.unpack(stored) or {0, 0, 0, '', ''}
local lives = old[5] ~= ''
if ARGV[5] ~= '' then
  local expected = tonumber(ARGV[5])
  if expected ~= old[1] and not (expected == 0 and not lives) then return {0, stored or ''} end
end
if ARGV[3] == '' and not lives then return {0, stored or ''} end
redis.call('HSETNX', KEYS[1], 'epoch', ARGV[6])
local revision = math.max(tonumber(redis.call('HGET', KEYS[1], 'revision') or '0'), old[2]) + 1
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local packed = cmsgpack.pack({old[1] + 1, revision, now_ms, ARGV[4], ARGV[3]})
redis.call('HSET', KEYS[1], 'revision', revision)
redis.call('HSET', KEYS[3], ARGV[2], packed)
redis.call('ZADD', KEYS[2], revision, ARGV[1] .. '\\n' .. ARGV[2])
redis.call('LPUSH', KEYS[4], packed)
redis.call('LTRIM', KEYS[4], 0, ARGV[8] - 1)
redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[9], '*', 'kind', ARGV[1], 'name', ARGV[2], 'author', ARGV[4],
  'from', lives and old[1] or 0, 'to', old[1] + 1, 'deleted', ARGV[3] == '' and 1 or 0, 'at_ms', now_ms,
  'revision', revision)
redis.call('PUBLISH', ARGV[7], revision)
return {1, packed}
"""

READ = """
-- KEYS: meta, changes, then the documents of each kind. ARGV: revision that the caller has (-1: nothing), its epoch,
-- then the kinds. Returns {epoch or '', revision, 1 when this is all there is, how many documents there are of each
-- kind, then kind, name and document of those that changed since, or of all}.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'revision')
local epoch, revision, since = meta[1] or '', tonumber(meta[2] or '0'), tonumber(ARGV[1])
if epoch ~= ARGV[2] or revision < since then since = -1 end
local counts, found = {}, {}
local reply = {epoch, revision, since < 0 and 1 or 0, counts, found}
local key_of = {}
for at = 3, #KEYS do
  counts[at - 2] = redis.call('HLEN', KEYS[at])
  key_of[ARGV[at]] = KEYS[at]
end
local function add(kind, name, packed)
  if packed then
    found[#found + 1] = kind
    found[#found + 1] = name
    found[#found + 1] = packed
  end
end
if since >= 0 then
  if revision > since then
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. since, '+inf')) do
      local cut = string.find(member, '\\n', 1, true)
      local kind, name = string.sub(member, 1, cut - 1), string.sub(member, cut + 1)
      if key_of[kind] then add(kind, name, redis.call('HGET', key_of[kind], name)) end
    end
  end
else
  for at = 3, #KEYS do
    local all = redis.call('HGETALL', KEYS[at])
    for pair = 1, #all, 2 do add(ARGV[at], all[pair], all[pair + 1]) end
  end
end
return reply
"""

RESTORE = """
-- Put back what Redis has lost. KEYS: meta, changes, then for each document its kind's documents. ARGV: the writer's
-- epoch, its revision, channel, then kind, name and document of each. In a store that lost its epoch, or of the same
-- one, the later revision wins; where another history has begun, a document is put back only where there is none.
-- Returns how many were put back.
redis.call('HSETNX', KEYS[1], 'epoch', ARGV[1])
local same = redis.call('HGET', KEYS[1], 'epoch') == ARGV[1]
local revision = tonumber(redis.call('HGET', KEYS[1], 'revision') or '0')
if same then revision = math.max(revision, tonumber(ARGV[2])) end
local count = 0
for at = 3, #KEYS do
  local kind, name, packed = ARGV[at * 3 - 5], ARGV[at * 3 - 4], ARGV[at * 3 - 3]
  local document = cmsgpack.unpack(packed)
  local stored = redis.call('HGET', KEYS[at], name)
  if not stored or (same and cmsgpack.unpack(stored)[2] < document[2]) then
    if not same then
      revision = revision + 1
      document[2] = revision
      packed = cmsgpack.pack(document)
    end
    redis.call('HSET', KEYS[at], name, packed)
    redis.call('ZADD', KEYS[2], document[2], kind .. '\\n' .. name)
    count = count + 1
  end
end
redis.call('HSET', KEYS[1], 'revision', revision)
if count > 0 then redis.call('PUBLISH', ARGV[3], revision) end
return count
"""

ACKNOWLEDGE = """
-- KEYS: processes by the time of their last sign of life, what each said. ARGV: this process, what it says, ms after
-- which one counts as dead.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], now_ms, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms - ARGV[3])) do
  redis.call('ZREM', KEYS[1], dead)
  redis.call('HDEL', KEYS[2], dead)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
"""

LIVING = """
-- KEYS: as above. ARGV: ms after which a process counts as dead. Returns what the living ones said.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local living = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. (now_ms - ARGV[1]), '+inf')
if #living == 0 then return {} end
return redis.call('HMGET', KEYS[2], unpack(living))
"""
