-- unban ends a ban, and forgets the denials that were counted towards the next.
-- KEYS: the shard's record, the bucket's record, the shard's bans.
-- ARGV: server id, member in the bans.
-- Reply: {1}, or {0}: there was none; or a refusal as take's.

local now = clock()
local shard, why, epoch = shard_record(KEYS[1], ARGV[1], now)
if not shard then return refuse(1, why, epoch) end
local ends = tonumber(redis.call('HGET', KEYS[2], 'banned_until') or 0)
redis.call('HDEL', KEYS[2], 'banned_until', 'denials', 'denied_since')
redis.call('ZREM', KEYS[3], ARGV[2])
return {ends > now and 1 or 0}
