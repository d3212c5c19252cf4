-- KEYS: meta, notes, deltas. ARGV: name, keys, time to live ms, most keys, stream length, rank.
local now_ms = clock_ms()
local score = now_ms + tonumber(ARGV[3])
if redis.call('HSETNX', KEYS[1], 'gen', string.format('%.0f', clock_us())) == 1 then
  redis.call('HSET', KEYS[1], 'known', 1)
end
local seq = redis.call('HINCRBY', KEYS[1], 'seq', 1)
each_chunk(ARGV[2], function(chunk)
  local pairs = {}
  for _, key in ipairs(chunk) do
    pairs[#pairs + 1] = score
    pairs[#pairs + 1] = key
  end
  redis.call('ZADD', KEYS[2], 'GT', unpack(pairs))
end)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now_ms)
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -tonumber(ARGV[4]) - 1)
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*', 'n', ARGV[1], 'o', 'note',
  'g', redis.call('HGET', KEYS[1], 'gen'), 's', seq, 'd', ARGV[2], 'u', ARGV[3], 'r', ARGV[6])
for at = 1, 3 do redis.call('PEXPIRE', KEYS[at], ARGV[3]) end
return 1
