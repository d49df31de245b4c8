-- tick writes that the clock was right at an instant, which the caller read and judged (E2), and now and then sweeps the
-- record: an entry of numbers that no bucket can still be short of goes.
-- KEYS: the shard's record.
-- ARGV: server id, epoch, instant (µs).
-- Reply: {1}, or {0}: another epoch, or a tick as late already; or a refusal as take's.

local SWEEP_EVERY = 600 * MICRO

-- sweep deletes the entries that no take has used for longer than any of their buckets takes to be full, twice.
local function sweep(now)
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local e = string.sub(all[i], 1, 6) == 'limit:' and read_limit(all[i + 1])
    if e and now - e.seen > 2 * KEEP_ENTRY + 2 * time_to_full(e) then redis.call('HDEL', KEYS[1], all[i]) end
  end
  redis.call('HSET', KEYS[1], 'swept_at', text(now))
end

local shard, why, epoch = shard_record(KEYS[1], ARGV[1], nil, {'swept_at'})
if not shard then return refuse(1, why, epoch) end
local at = tonumber(ARGV[3])
if shard.epoch ~= ARGV[2] or shard.tick >= at then return {0} end
redis.call('HSET', KEYS[1], 'tick', ARGV[3])
local swept_at = tonumber(shard.more[MORE] or 0)
if at - swept_at > SWEEP_EVERY or at < swept_at then sweep(at) end
return {1}
