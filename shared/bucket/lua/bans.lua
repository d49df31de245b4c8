-- bans lists the bans of one shard, those that end last first.
-- KEYS: the shard's record, its bans. (The bans' records have the same hash tag.)
-- ARGV: server id.
-- Reply: {1, then 4 a ban: member (KEYHEX), left (µs), policy, sealed}, or a refusal as take's.

local now = clock()
local shard, why, epoch = shard_record(KEYS[1], ARGV[1], now)
if not shard then return refuse(1, why, epoch) end
local reply, all = {1}, redis.call('ZREVRANGEBYSCORE', KEYS[2], '+inf', '(' .. text(now), 'WITHSCORES')
for i = 1, #all, 2 do
  local v = redis.call('HMGET', string.gsub(KEYS[2], 'bans$', 'b:') .. all[i], 'policy', 'sealed', 'banned_until')
  if tonumber(v[3] or 0) > now then
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = all[i], tonumber(all[i + 1]) - now, v[1] or '', v[2] or ''
  end
end
return reply
