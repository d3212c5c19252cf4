-- KEYS: meta, changes, then the documents of each kind. ARGV: revision that the caller has (-1: nothing), its epoch,
-- then the kinds. Returns {epoch or '', revision, 1 when this is all there is, how many documents there are of each
-- kind, then kind, name and document of those that changed since, or of all}.
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'revision')
local epoch, revision, since = meta[1] or '', tonumber(meta[2] or '0'), tonumber(ARGV[1])
if epoch ~= ARGV[2] or revision < since then since = -1 end
local counts, found = {}, {}
local reply = {epoch, revision, since < 0 and 1 or 0, counts, found}
local key_of = {}
for at = 3, #KEYS do
  counts[at - 2] = redis.call('HLEN', KEYS[at])
  key_of[ARGV[at]] = KEYS[at]
end
local function add(kind, name, packed)
  if packed then
    found[#found + 1] = kind
    found[#found + 1] = name
    found[#found + 1] = packed
  end
end
if since >= 0 then
  if revision > since then
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. since, '+inf')) do
      local cut = string.find(member, '\n', 1, true)
      local kind, name = string.sub(member, 1, cut - 1), string.sub(member, cut + 1)
      if key_of[kind] then add(kind, name, redis.call('HGET', key_of[kind], name)) end
    end
  end
else
  for at = 3, #KEYS do
    local all = redis.call('HGETALL', KEYS[at])
    for pair = 1, #all, 2 do add(ARGV[at], all[pair], all[pair + 1]) end
  end
end
return reply
