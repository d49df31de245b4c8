-- due lists the buckets of one shard whose scheduled look has come, longest overdue first.
-- KEYS: the shard's record, its schedule.
-- ARGV: server id, most.
-- Reply: {1, member, ...}, or a refusal as take's.

local now = clock()
local shard, why, epoch = shard_record(KEYS[1], ARGV[1], now)
if not shard then return refuse(1, why, epoch) end
local members = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'LIMIT', '0', ARGV[2])
table.insert(members, 1, 1)
return members
