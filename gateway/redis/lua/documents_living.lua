-- KEYS: as in documents_acknowledge. ARGV: ms after which a process counts as dead. Returns what the living ones said.
local now_ms = clock_ms()
local living = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. (now_ms - ARGV[1]), '+inf')
if #living == 0 then return {} end
return redis.call('HMGET', KEYS[2], unpack(living))
