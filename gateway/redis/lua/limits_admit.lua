-- Keys of a tenant: buckets, a hash, and slots, leases by their expiry.
--
-- KEYS: buckets, slots. ARGV: lease, its ms to live, then requests a minute, tokens a minute and answers at once
-- (-1: no limit), tokens to take. Takes everything or nothing.
-- Returns who refused (0: nobody, 1 requests, 2 tokens, 3 slots), ms to wait, requests left, ms until they are whole,
-- tokens left, ms until they are whole.
local now_ms = clock_ms()
local most = {tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])}
local take = {1, tonumber(ARGV[6])}
local stored = redis.call('HMGET', KEYS[1], 'at', 'requests', 'tokens')
local passed_ms = math.max(0, now_ms - (tonumber(stored[1]) or now_ms))
local level, refused, wait_ms = {}, 0, 0
for at = 1, 2 do
  if most[at] >= 0 then
    local old = tonumber(stored[at + 1]) or most[at]
    level[at] = math.min(most[at], old + passed_ms * most[at] / 60000)
    if level[at] < take[at] then
      local due_ms = (take[at] - level[at]) * 60000 / most[at]
      if due_ms > wait_ms then refused, wait_ms = at, due_ms end
    end
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
if most[3] >= 0 and redis.call('ZCARD', KEYS[2]) >= most[3] then refused, wait_ms = 3, 1000 end
if refused == 0 then
  redis.call('ZADD', KEYS[2], now_ms + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  redis.call('HSET', KEYS[1], 'at', now_ms)
  for at, name in ipairs({'requests', 'tokens'}) do
    if level[at] then
      level[at] = level[at] - take[at]
      redis.call('HSET', KEYS[1], name, string.format('%.6f', level[at]))
    else
      redis.call('HDEL', KEYS[1], name)
    end
  end
  redis.call('PEXPIRE', KEYS[1], 3600000)
end
local reply = {refused, math.ceil(wait_ms)}
for at = 1, 2 do
  local left = level[at] or 0
  table.insert(reply, math.max(0, math.floor(left)))
  table.insert(reply, level[at] and math.ceil((most[at] - left) * 60000 / most[at]) or 0)
end
return reply
