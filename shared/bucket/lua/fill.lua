-- fill applies the allocator's answer to the item in flight, once, and announces it (C1, C2, C3).
-- KEYS: the shard's record, the bucket's record, the shard's schedule.
-- ARGV: server id, member in the schedule, epoch, session, seq, granted (tokens), ttl, dry for (µs), pool level (tokens),
--   fits in (µs).
-- Reply: {1}, or {0}: another epoch, session or seq than the one in flight, nothing changed; or a refusal as take's.

local LOOK_AGAIN = MICRO -- an agent looks at what it filled after this long

local now = clock()
local shard, why, epoch = shard_record(KEYS[1], ARGV[1], now)
if not shard then return refuse(1, why, epoch) end
if shard.epoch ~= ARGV[3] then return {0} end
local r = load(KEYS[2])
if r.epoch ~= shard.epoch then return {0} end
load_lease(KEYS[2], r)
if r.session ~= tonumber(ARGV[4]) or r.seq ~= tonumber(ARGV[5]) or r.applied == r.seq then return {0} end

local granted, ttl = tonumber(ARGV[6]), tonumber(ARGV[7])
lapse(r, now) -- first, so that an answer renews only what had not lapsed
if now >= r.asked_at + ttl then
  -- The answer outlived its own ttl, counted from when the item was made: what it grants has lapsed.
  set(r, 'lapsed', r.lapsed + granted)
else
  if r.expires_at <= now then set(r, 'lease', r.lease + 1) end -- a new lease: what was taken of the last one stays spent
  set(r, 'left', r.left + granted)
  set(r, 'expires_at', r.asked_at + ttl)
end
if ttl > 0 then set(r, 'ttl', ttl) end
set(r, 'applied', r.seq)
set(r, 'deadline', 0)
set(r, 'filled', r.left)
set(r, 'dry_until', now + tonumber(ARGV[8]))
set(r, 'dry_cost', r.cost)
set(r, 'fits_at', min(NEVER, now + tonumber(ARGV[10])))
set(r, 'pool_level', tonumber(ARGV[9]))
set(r, 'pool_at', now)
set(r, 'waiting', 0) -- every waiter takes again
set(r, 'waiting_until', 0)
set(r, 'told_at', 0)
for _, name in ipairs({'spent', 'returned', 'lapsed'}) do set(r, 'answered_' .. name, r['asked_' .. name]) end
local traceparent = r.traceparent
set(r, 'traceparent', '')
save(KEYS[2], r)
redis.call('HSET', KEYS[1], 'heard_at', text(now))
local look = ttl > 0 and min(LOOK_AGAIN, floor(ttl / 2)) or LOOK_AGAIN
redis.call('ZADD', KEYS[3], text(now + look), ARGV[2])
announce('annona:1:fills', KEYS[2], traceparent)
return {1}
