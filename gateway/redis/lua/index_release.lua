-- KEYS: lease, and what shall go with it. ARGV: token.
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('UNLINK', unpack(KEYS)) end
return 1
