-- schedule sets when agents look at buckets of one shard again.
-- KEYS: the shard's record, its schedule.
-- ARGV: server id, then 2 a bucket: member, from now (µs; negative: never).
-- Reply: {1}, or a refusal as take's.

local now = clock()
local shard, why, epoch = shard_record(KEYS[1], ARGV[1], now)
if not shard then return refuse(1, why, epoch) end
for i = 2, #ARGV, 2 do
  local after = tonumber(ARGV[i + 1])
  if after < 0 then
    redis.call('ZREM', KEYS[2], ARGV[i])
  else
    redis.call('ZADD', KEYS[2], text(now + after), ARGV[i])
  end
end
return {1}
