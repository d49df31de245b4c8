-- giveback credits tokens of one earlier take, as far as all that it names still holds (E5), and ends that take's claim.
-- KEYS: the shard's record, the bucket's record.
-- ARGV: server id, epoch, session, lease, tokens that the take took of the lease, instant of the take, until when it may give
--   back (µs), tokens to give back, tokens that the take took of the own part.
-- Reply: {1, credited to the lease (tokens), credited to the own part (µt)}, or a refusal as take's.
--
-- The lease comes first: only what no item has reported as spent yet, for counters of a session never go back. The own part
-- gets at most what room there was at its highest level since the oldest take that may give back, this one or an older one;
-- and what it gets raises that mark.

-- to_lease credits back tokens to the lease they were taken of, and returns how many.
local function to_lease(r, back, now)
  local same = r.session == tonumber(ARGV[3]) and r.lease == tonumber(ARGV[4]) and r.expires_at > now
  local n = same and max(0, min(back, tonumber(ARGV[5]), r.spent - r.asked_spent)) or 0
  if n > 0 then
    set(r, 'left', r.left + n)
    set(r, 'spent', r.spent - n)
  end
  return n
end

-- to_part credits at most so much (µt) to the own part, and returns how much.
local function to_part(r, back, now)
  local v = redis.call('HMGET', KEYS[2], 'top', 'top_since')
  if tonumber(v[2] or 0) > tonumber(ARGV[6]) then return 0 end -- the mark is younger than the take
  local e = read_limit(redis.call('HGET', KEYS[1], limit_field(r.policy, r.variant)))
  if not e or e.count ~= r.changes then return 0 end -- other numbers are in force (A3)
  local full = r.capacity * MICRO
  local level, took = refill(r.level, now - r.mark, full, r.rate)
  local top = max(tonumber(v[1] or 0), level)
  local n = max(0, min(back, full - top))
  set(r, 'level', level + n)
  set(r, 'mark', r.mark + took)
  set(r, 'top', top + n)
  return n
end

local now = clock()
local shard, why, epoch = shard_record(KEYS[1], ARGV[1], now)
if not shard then return refuse(1, why, epoch) end
local r = load(KEYS[2])
if shard.epoch ~= ARGV[2] or r.epoch ~= shard.epoch then return {1, 0, 0} end
if now < tonumber(ARGV[6]) or now >= tonumber(ARGV[7]) or r.open_until <= now then return {1, 0, 0} end
load_lease(KEYS[2], r)
lapse(r, now)
local back = tonumber(ARGV[8])
local leased = to_lease(r, back, now)
local own = to_part(r, min(back - leased, tonumber(ARGV[9])) * MICRO, now)
local open = tonumber(redis.call('HGET', KEYS[2], 'open') or 0) - 1
if open <= 0 then set(r, 'open_until', 0) end
set(r, 'open', max(0, open))
save(KEYS[2], r)
return {1, leased, own}
