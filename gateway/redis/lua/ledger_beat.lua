-- KEYS: processes by the time of their last sign of life. ARGV: this process, ms after which one counts as dead.
-- Returns how many live.
local now_ms = clock_ms()
redis.call('ZADD', KEYS[1], now_ms, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms - ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
