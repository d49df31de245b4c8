-- clock reads one shard's clock and tick for a process that wants to write the next tick (E2). It judges nothing.
-- KEYS: the shard's record.
-- ARGV: server id.
-- Reply: {1, now, tick (µs), epoch}, or a refusal as take's.

local shard, why, epoch = shard_record(KEYS[1], ARGV[1])
if not shard then return refuse(1, why, epoch) end
return {1, clock(), shard.tick, shard.epoch}
