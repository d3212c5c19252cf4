-- A stored document is the msgpack array [version, revision, time in ms, author, body]; an empty body marks a deleted
-- one. Hash meta holds the epoch, a random name given with the first document, and the revision, which counts all
-- changes. A change's revision is also the score of its document in changes, whose members are "kind\nname".
--
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
local now_ms = clock_ms()
local packed = cmsgpack.pack({old[1] + 1, revision, now_ms, ARGV[4], ARGV[3]})
redis.call('HSET', KEYS[1], 'revision', revision)
redis.call('HSET', KEYS[3], ARGV[2], packed)
redis.call('ZADD', KEYS[2], revision, ARGV[1] .. '\n' .. ARGV[2])
redis.call('LPUSH', KEYS[4], packed)
redis.call('LTRIM', KEYS[4], 0, ARGV[8] - 1)
redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[9], '*', 'kind', ARGV[1], 'name', ARGV[2], 'author', ARGV[4],
  'from', lives and old[1] or 0, 'to', old[1] + 1, 'deleted', ARGV[3] == '' and 1 or 0, 'at_ms', now_ms,
  'revision', revision)
redis.call('PUBLISH', ARGV[7], revision)
return {1, packed}
