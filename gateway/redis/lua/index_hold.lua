-- KEYS: lease, meta, then all other keys of the instance and the stream. ARGV: token, lease ms, time to live ms.
-- Returns whether the caller holds the lease, and the generation that is there ('' when none).
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return {0, ''} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
for at = 2, #KEYS do redis.call('PEXPIRE', KEYS[at], ARGV[3]) end
return {1, redis.call('HGET', KEYS[2], 'gen') or ''}
