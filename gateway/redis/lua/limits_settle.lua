-- KEYS: buckets, slots. ARGV: lease, tokens that it took and did not use (below 0: it used more). A lease that is not
-- held any more was settled before, or has run out.
if redis.call('ZREM', KEYS[2], ARGV[1]) == 1 and redis.call('HEXISTS', KEYS[1], 'tokens') == 1 then
  redis.call('HINCRBYFLOAT', KEYS[1], 'tokens', ARGV[2])
end
