-- clock reads the clock and some shards' ticks for a process that wants to write the next ones (E2). It judges nothing.
-- KEYS: the shards' records.
-- ARGV: server id.
-- Reply: {1, now (µs), then 2 a shard: tick (µs), epoch}, or a refusal as take's.

local reply, refused = {1, clock()}, {-1}
for i, key in ipairs(KEYS) do
  local shard, why, epoch = shard_record(key, ARGV[1])
  if shard then
    local n = #reply
    reply[n + 1], reply[n + 2] = shard.tick, shard.epoch
  else
    local n = #refused
    refused[n + 1], refused[n + 2], refused[n + 3] = i, why, epoch
  end
end
if #refused > 1 then return refused end
return reply
