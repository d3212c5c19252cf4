-- KEYS: processes by the time of their last sign of life, what each said. ARGV: this process, what it says, ms after
-- which one counts as dead.
local now_ms = clock_ms()
redis.call('ZADD', KEYS[1], now_ms, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now_ms - ARGV[3])) do
  redis.call('ZREM', KEYS[1], dead)
  redis.call('HDEL', KEYS[2], dead)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
