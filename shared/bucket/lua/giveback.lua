-- giveback credits tokens of one earlier take, as far as all that it names still holds (E5), and ends that take's claim.
-- KEYS: the shard's record, the bucket's record, its entries.
-- ARGV: server id, epoch, session, lease, tokens that the take took of the lease, instant of the take, until when it may give
--   back (µs), tokens to give back, tokens that the take took of the own part, its turn (µs; 0: it did not wait), algorithm,
--   window (µs), entry, holder.
-- Reply: {1, credited to the lease (tokens), credited to the own part (µt), credited where it counts (tokens)}, or a refusal
--   as take's.
--
-- The lease comes first: only what no item has reported as spent yet, for counters of a session never go back. The own part
-- gets at most what room there was at its highest level since the oldest take that may give back, this one or an older one;
-- and what it gets raises that mark. Those who stand in the queue keep their turns: where a place before theirs is given back
-- their bucket fills up at their turn to their cost and all that came back, and more does not come back than fits then.

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
  local v = redis.call('HMGET', KEYS[2], 'top', 'top_since', 'turn', 'largest', 'holes')
  if tonumber(v[2] or 0) > tonumber(ARGV[6]) then return 0 end -- the mark is younger than the take
  local e = read_limit(redis.call('HGET', KEYS[1], limit_field(r.policy, r.variant)))
  if not e or e.count ~= r.changes then return 0 end -- other numbers are in force (A3)
  local full = r.capacity * MICRO
  local level, took = refill(r.level, now - r.mark, full, r.rate)
  local top, turn, last = max(tonumber(v[1] or 0), level), tonumber(ARGV[10]), tonumber(v[3] or 0)
  local n, holes = max(0, min(back, full - top)), last > now and tonumber(v[5]) or 0
  if turn > now then n = min(back, full) end -- it was below empty all the time since
  if last > max(turn + 1, now) then
    n = max(0, min(n, full - tonumber(v[4]) - holes))
    holes = holes + n
    set(r, 'holes', holes)
  elseif turn > now and holes == 0 then
    local exact = n <= 9000000000 and n * MICRO % r.rate == 0
    set(r, 'turn', turn - time_to(n, r.rate) + (exact and 0 or 1)) -- now the one before is the last, a microsecond late at most
  end
  set(r, 'level', level + n)
  set(r, 'mark', r.mark + took)
  set(r, 'top', turn > now and max(top, holes + n) or top + n)
  return n
end

-- to_count credits back tokens where they were counted, and returns how many.
local function to_count(algorithm, now)
  return more()(algorithm).back({
    key = KEYS[2], entries = KEYS[3], epoch = ARGV[2], window = tonumber(ARGV[12]), entry = tonumber(ARGV[13]),
    holder = tonumber(ARGV[14]), tokens = tonumber(ARGV[8]), taken = tonumber(ARGV[9]),
  }, now)
end

local now, algorithm = clock(), tonumber(ARGV[11])
local shard, why, epoch = shard_record(KEYS[1], ARGV[1], now)
if not shard then return refuse(1, why, epoch) end
if algorithm == 4 then return {1, 0, 0, to_count(algorithm, now)} end -- slots, in whatever epoch: the holder may live on
if shard.epoch ~= ARGV[2] or now < tonumber(ARGV[6]) or now >= tonumber(ARGV[7]) then return {1, 0, 0, 0} end
if algorithm > 0 then return {1, 0, 0, to_count(algorithm, now)} end
local r = load(KEYS[2])
if r.epoch ~= shard.epoch or r.open_until <= now then return {1, 0, 0, 0} end
load_lease(KEYS[2], r)
lapse(r, now)
local back = tonumber(ARGV[8])
local leased = to_lease(r, back, now)
local own = to_part(r, min(back - leased, tonumber(ARGV[9])) * MICRO, now)
local open = tonumber(redis.call('HGET', KEYS[2], 'open') or 0) - 1
if open <= 0 then set(r, 'open_until', 0) end
set(r, 'open', max(0, open))
save(KEYS[2], r)
return {1, leased, own, 0}
