-- KEYS: lease, meta, deltas. ARGV: token, generation, name, known, stream length.
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('HGET', KEYS[2], 'gen') ~= ARGV[2] then return 0 end
local seq = redis.call('HINCRBY', KEYS[2], 'seq', 1)
redis.call('HSET', KEYS[2], 'known', ARGV[4])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*', 'n', ARGV[3], 'o', 'known', 'g', ARGV[2], 's', seq,
  'k', ARGV[4])
return 1
