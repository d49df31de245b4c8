-- setmirror writes the documents that are not older than what is mirrored, and the round trip.
-- KEYS: the mirror.
-- ARGV: server id, policy revision, policy document, regions revision, regions document ('' for one that is not known),
--   round trip (µs; 0: not known).
-- Reply: {1} where a document changed, which is announced, else {0}.

local changed = false
local function put(name, revision, document)
  local held = redis.call('HMGET', KEYS[1], name .. '_revision', name)
  if document == '' or tonumber(held[1] or 0) > tonumber(revision) then return end
  if held[1] == revision and held[2] == document then return end
  redis.call('HSET', KEYS[1], name .. '_revision', revision, name, document)
  changed = true
end

put('policy', ARGV[2], ARGV[3])
put('regions', ARGV[4], ARGV[5])
if ARGV[6] ~= '0' then redis.call('HSET', KEYS[1], 'round_trip', ARGV[6]) end
if not changed then return {0} end
redis.call('PUBLISH', 'annona:1:mirror', ARGV[2] .. ' ' .. ARGV[4])
return {1}
