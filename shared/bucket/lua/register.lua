-- register records that a gateway is there, forgets those silent for too long, and keeps at most so many.
-- KEYS: the gateways.
-- ARGV: server id, gateway id, revision, fingerprint of the hash secret, silence after which one is forgotten (µs), most.
-- Reply: {1}, or {0}: there are too many.

local now, count = clock(), 0
local silence = tonumber(ARGV[5])
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local heard_at = tonumber(string.match(all[i + 1], '^(%d+)') or 0)
  if now - heard_at > silence then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[2] then
    count = count + 1
  end
end
if count >= tonumber(ARGV[6]) then return {0} end
redis.call('HSET', KEYS[1], ARGV[2], text(now) .. ' ' .. ARGV[3] .. ' ' .. ARGV[4])
redis.call('PEXPIRE', KEYS[1], text(floor(silence / 1000)))
return {1}
