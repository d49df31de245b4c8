-- view reads one bucket as an agent sees it; it changes nothing.
-- KEYS: the shard's record, the bucket's record.
-- ARGV: server id.
-- Reply: {found (0 or 1), epoch, now (µs)}, and where found: policy, variant, revision, sealed, traceparent, then as integers
--   session, seq, applied, in flight (0 or 1), left, spent, returned, lapsed, denied, waiting, cost (tokens), expires_at,
--   spent_at, dry_until, asked_at (µs), asked_spent, asked_denied, asked_demand, answered_spent, answered_returned,
--   answered_lapsed (tokens); or a refusal as take's.
-- A record of an older epoch is not found: its lease is void, and nobody has asked for it since.

local now = clock()
local shard, why, epoch = shard_record(KEYS[1], ARGV[1], now)
if not shard then return refuse(1, why, epoch) end
local r = load(KEYS[2])
if r.epoch ~= shard.epoch then return {0, shard.epoch, now} end
load_lease(KEYS[2], r)
lapse(r, now)
return {
  1, shard.epoch, now, r.policy, r.variant, r.revision, r.sealed, r.traceparent,
  r.session, r.seq, r.applied, r.deadline > now and 1 or 0, r.left, r.spent, r.returned, r.lapsed, r.denied, r.waiting, r.cost,
  r.expires_at, r.spent_at, r.dry_until, r.asked_at, r.asked_spent, r.asked_denied, r.asked_demand,
  r.answered_spent, r.answered_returned, r.answered_lapsed,
}
