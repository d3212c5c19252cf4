-- KEYS: lease, meta, deltas, then the instance's other keys. ARGV: token, name, time to live ms, stream length.
-- Begins an empty generation and returns it; '' when the lease is lost.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return '' end
for at = 4, #KEYS do redis.call('UNLINK', KEYS[at]) end
redis.call('UNLINK', KEYS[2])
local gen = string.format('%.0f', clock_us())
redis.call('HSET', KEYS[2], 'gen', gen, 'seq', 1, 'known', 0)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[4], '*', 'n', ARGV[2], 'o', 'open', 'g', gen, 's', 1)
redis.call('PEXPIRE', KEYS[2], ARGV[3])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
return gen
