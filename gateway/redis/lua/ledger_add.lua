-- KEYS: a state. ARGV: what to add to it, the state where there is none, weight of the old sums, seconds in which they
-- fade (0: never), time to live ms. A state is [samples, sums...] in msgpack; stored with its time in front.
-- Returns the new state.
local now_s = clock_us() / 1000000
local state = cmsgpack.unpack(ARGV[2])
local stored = redis.call('GET', KEYS[1])
local old = stored and select(2, pcall(cmsgpack.unpack, stored))
if type(old) == 'table' and #old == #state + 1 then
  local add, keep, fade_s = cmsgpack.unpack(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4])
  if fade_s > 0 then keep = keep * math.exp(-math.max(0, now_s - old[1]) / fade_s) end
  state[1] = old[2] + add[1]
  for at = 2, #state do state[at] = old[at + 1] * keep + add[at] end
end
local reply, total = cmsgpack.pack(state), 0
for at = 1, #state do total = total + state[at] end
if total > 0 then
  table.insert(state, 1, now_s)
  redis.call('SET', KEYS[1], cmsgpack.pack(state), 'PX', ARGV[5])
end
return reply
