-- KEYS: buckets. ARGV: bytes that crossed the WAN, and how many may in a minute. A tenant that was let in under no such
-- limit has no such bucket. What time has refilled is taken off again: `at` is the other buckets', too.
local stored = redis.call('HMGET', KEYS[1], 'at', 'wan_bytes')
if stored[2] then
  local most = tonumber(ARGV[2])
  local refill = math.max(0, clock_ms() - tonumber(stored[1])) * most / 60000
  local level = math.min(most, tonumber(stored[2]) + refill) - ARGV[1] - refill
  redis.call('HSET', KEYS[1], 'wan_bytes', string.format('%.6f', level))
end
