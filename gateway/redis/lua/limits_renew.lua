-- KEYS: slots. ARGV: ms to live, leases.
local until_ms = clock_ms() + ARGV[1]
for at = 2, #ARGV do redis.call('ZADD', KEYS[1], until_ms, ARGV[at]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
