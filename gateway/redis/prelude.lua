-- What every script in `lua` may call.

local function clock_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function clock_ms()
  return math.floor(clock_us() / 1000)
end

-- `packed`: 8 bytes a key; `call` takes lists of so many keys as one command can have.
local function each_chunk(packed, call)
  for from = 1, #packed, 8192 do
    local chunk = {}
    for at = from, math.min(from + 8191, #packed), 8 do
      chunk[#chunk + 1] = string.sub(packed, at, at + 7)
    end
    call(chunk)
  end
end
