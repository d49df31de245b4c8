-- renew keeps a holder of slots, or begins one, and forgets those that are gone (B8).
-- KEYS: the shard's record, its holders.
-- ARGV: server id, holder, begins (0 or 1).
-- Reply: {1}, {0}: the holder is gone, and so are its slots, or {2}: there are too many to begin one; or a refusal as take's.

local MOST_HOLDERS = 1024

local now = clock()
local shard, why, epoch = shard_record(KEYS[1], ARGV[1], now)
if not shard then return refuse(1, why, epoch) end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now - HOLDER_LASTS))
local known = redis.call('ZSCORE', KEYS[2], ARGV[2])
if not known and ARGV[3] == '0' then return {0} end
if not known and redis.call('ZCARD', KEYS[2]) >= MOST_HOLDERS then return {2} end
redis.call('ZADD', KEYS[2], text(now), ARGV[2])
return {1}
