-- ask makes the next item about one bucket, if it is still as the agent saw it; the item is in flight until its deadline.
-- KEYS: the shard's record, the bucket's record, the shard's schedule.
-- ARGV: server id, member in the schedule, epoch, session, seq, tokens to return, demand to report, new session (0 or 1),
--   deadline (µs from now).
-- Reply: {1, policy, variant, revision, sealed, traceparent, then as integers session, seq, applied, spent, returned, lapsed,
--   denied, left, cost (tokens)}, or {0}: the bucket moved on, nothing changed; or a refusal as take's.

-- start begins a session: counters begin anew and what is left of the old lease is given up. Demand that was denied before
-- the first session belongs to it.
local function start(r)
  if r.session > 0 then set(r, 'denied', 0) end
  set(r, 'session', redis.call('HINCRBY', KEYS[1], 'sessions', 1))
  for _, name in ipairs({'seq', 'applied', 'left', 'expires_at', 'filled', 'spent', 'returned', 'lapsed', 'answered_spent',
    'answered_returned', 'answered_lapsed'}) do
    set(r, name, 0)
  end
end

local now = clock()
local shard, why, epoch = shard_record(KEYS[1], ARGV[1], now)
if not shard then return refuse(1, why, epoch) end
if shard.epoch ~= ARGV[3] then return {0} end
local r = load(KEYS[2])
if r.epoch ~= shard.epoch or r.deadline > now then return {0} end
load_lease(KEYS[2], r)
if r.session ~= tonumber(ARGV[4]) or r.seq ~= tonumber(ARGV[5]) then return {0} end

lapse(r, now)
if r.session == 0 or ARGV[8] == '1' then start(r) end
local back = min(tonumber(ARGV[6]), r.left)
if back > 0 then
  set(r, 'left', r.left - back)
  set(r, 'returned', r.returned + back)
  set(r, 'filled', min(r.filled, r.left)) -- what is left was chosen, so it is not low
end
set(r, 'seq', r.seq + 1)
set(r, 'asked_at', now)
set(r, 'deadline', now + tonumber(ARGV[9]))
set(r, 'asked_demand', tonumber(ARGV[7]))
for _, name in ipairs({'spent', 'returned', 'lapsed', 'denied'}) do set(r, 'asked_' .. name, r[name]) end
save(KEYS[2], r)
redis.call('ZADD', KEYS[3], text(r.deadline), ARGV[2])
return {
  1, r.policy, r.variant, r.revision, r.sealed, r.traceparent,
  r.session, r.seq, r.applied, r.spent, r.returned, r.lapsed, r.denied, r.left, r.cost,
}
