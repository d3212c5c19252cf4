-- KEYS: meta, then sets. Returns generation, seq, known and the sets' sizes, as of one moment.
local state = redis.call('HMGET', KEYS[1], 'gen', 'seq', 'known')
for at = 2, #KEYS do state[#state + 1] = redis.call('SCARD', KEYS[at]) end
return state
