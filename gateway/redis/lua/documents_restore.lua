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
    redis.call('ZADD', KEYS[2], document[2], kind .. '\n' .. name)
    count = count + 1
  end
end
redis.call('HSET', KEYS[1], 'revision', revision)
if count > 0 then redis.call('PUBLISH', ARGV[3], revision) end
return count
