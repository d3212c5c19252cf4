-- KEYS: slots. ARGV: ms to live, leases.
local time = redis.call('TIME')
local until_ms = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
for at = 2, #ARGV do redis.call('ZADD', KEYS[1], until_ms, ARGV[at]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
