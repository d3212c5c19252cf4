-- KEYS: as in documents_acknowledge. ARGV: ms after which a process counts as dead. Returns what the living ones said.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local living = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. (now_ms - ARGV[1]), '+inf')
if #living == 0 then return {} end
return redis.call('HMGET', KEYS[2], unpack(living))
