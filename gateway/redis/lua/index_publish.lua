-- A block list is packed, 8 bytes a key. seq numbers an instance's changes within a generation, so that a reader finds
-- out what it missed; only the holder of the lease may write, and only to the generation that it opened. All keys of
-- the index's scripts carry one model's hash tag.
--
-- KEYS: lease, meta, deltas, blocks, records.
-- ARGV: token, generation, name, rank, clear, held, gone, time to live ms, stream length,
--       mark ('' for none), number of records to save, their names and contents in turn, names of records to drop.
-- Returns 1, or 0 when the lease or the generation is not the caller's.
if redis.call('GET', KEYS[1]) ~= ARGV[1] or redis.call('HGET', KEYS[2], 'gen') ~= ARGV[2] then return 0 end
local seq = redis.call('HINCRBY', KEYS[2], 'seq', 1)
if ARGV[5] == '1' then redis.call('UNLINK', KEYS[4], KEYS[5]) end
each_chunk(ARGV[6], function(chunk) redis.call('SADD', KEYS[4], unpack(chunk)) end)
each_chunk(ARGV[7], function(chunk) redis.call('SREM', KEYS[4], unpack(chunk)) end)
local dropped_from = 12 + 2 * tonumber(ARGV[11])
for at = 12, dropped_from - 1, 4000 do
  redis.call('HSET', KEYS[5], unpack(ARGV, at, math.min(at + 3999, dropped_from - 1)))
end
for at = dropped_from, #ARGV, 4000 do
  redis.call('HDEL', KEYS[5], unpack(ARGV, at, math.min(at + 3999, #ARGV)))
end
if ARGV[10] == '' then
  redis.call('HDEL', KEYS[2], 'mark:' .. ARGV[4])
else
  redis.call('HSET', KEYS[2], 'mark:' .. ARGV[4], ARGV[10])
end
for at = 3, 5 do redis.call('PEXPIRE', KEYS[at], ARGV[8]) end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[9], '*', 'n', ARGV[3], 'o', 'delta', 'g', ARGV[2], 's', seq,
  'r', ARGV[4], 'c', ARGV[5], 'd', ARGV[6], 'x', ARGV[7])
return 1
