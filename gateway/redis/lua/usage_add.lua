-- KEYS: a tenant's hour. ARGV: process, number of its batch, seconds to keep, then fields and what to add to each.
-- A batch that was added before is not added again.
local last = 'batch:' .. ARGV[1]
if tonumber(redis.call('HGET', KEYS[1], last) or 0) < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], last, ARGV[2])
  for at = 4, #ARGV, 2 do redis.call('HINCRBYFLOAT', KEYS[1], ARGV[at], ARGV[at + 1]) end
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
