-- Keys of a tenant: buckets, a hash, and slots, leases by their expiry.
--
-- KEYS: buckets, slots. ARGV: lease, its ms to live, tokens to take, then requests, tokens and bytes over the WAN a
-- minute and answers at once (-1: no limit). Takes everything or nothing.
-- Returns who refused (0: nobody, 1 requests, 2 tokens, 3 slots, 4 bytes), ms to wait, requests left, ms until they are
-- whole, tokens left, ms until they are whole.
local now_ms = clock_ms()
local names, codes = {'requests', 'tokens', 'wan_bytes'}, {1, 2, 4}
local most = {tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])}
local need = {1, tonumber(ARGV[3]), 1}
local take = {1, tonumber(ARGV[3]), 0}
local slots = tonumber(ARGV[7])
local stored = redis.call('HMGET', KEYS[1], 'at', unpack(names))
local passed_ms = math.max(0, now_ms - (tonumber(stored[1]) or now_ms))
local level, refused, wait_ms = {}, 0, 0
for at = 1, 3 do
  if most[at] >= 0 then
    local old = tonumber(stored[at + 1]) or most[at]
    level[at] = math.min(most[at], old + passed_ms * most[at] / 60000)
    if level[at] < need[at] then
      local due_ms = (need[at] - level[at]) * 60000 / most[at]
      if due_ms > wait_ms then refused, wait_ms = codes[at], due_ms end
    end
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
if slots >= 0 and redis.call('ZCARD', KEYS[2]) >= slots then refused, wait_ms = 3, 1000 end
if refused == 0 then
  redis.call('ZADD', KEYS[2], now_ms + ARGV[2], ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  redis.call('HSET', KEYS[1], 'at', now_ms)
  for at, name in ipairs(names) do
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
