-- take charges every charge or none.
-- KEYS: the shards' records (ARGV[2] of them), then one bucket record a charge, then in the charges' order what some need more:
--   a log its entries, slots theirs and the shard's holders, and who may be banned the shard's bans.
-- ARGV: server id, shards, may wait (0 or 1), wait for (µs), traceparent, for how long the caller may give back (µs; 0: not at
--   all), holder of slots (0: none), forced (0 or 1: what there is not is charged as a debt), then 14 a charge: position of its
--   shard in KEYS, policy, variant, revision, leased (0 or 1), capacity and rate of the own part (tokens, µt/s), capacity of
--   the pool (tokens), cost (tokens), sealed identity, round in which the request already waits here (0: it does not), an
--   unknown bucket of scope region starts empty (0 or 1), cost denied from memory since the last take (tokens), and what is
--   not of a plain token bucket ('': nothing; special).
-- Reply: {outcome (1 admitted, 2 denied, 3 wait, 4 banned), then 11 a charge: lacking (0 or 1), level (µt; tokens that remain,
--   where it counts), left (tokens), pool level as last heard (tokens), its age, time until the cost may fit, age of the
--   allocator's last answer (µs; ages -1: never), round, delay, reset (where it counts) and what is left of a ban (µs)};
--   where it was admitted and may give back, or holds slots, then 8 a charge: epoch, session, lease, tokens of it, instant of
--   the take and until when it may give back (µs), window (µs), entry;
--   or {-1, position of a shard in KEYS, why, its epoch, ...}: nothing happened, these stand in the way;
--   or {-2, charge}: nothing happened, its revision is older than the one that brought the numbers in force;
--   or {-3, now (µs)}: nothing happened, a charge's windows are others than the one that the clock is in;
--   or {-4, charge}: nothing happened, the holder is gone in its shard.

local HEAD = 8
local PER_CHARGE = 14
local TELL_EVERY = 50000 -- µs between two announcements of one bucket

-- charge_at reads charge i and its arguments.
local function charge_at(i)
  local a = HEAD + (i - 1) * PER_CHARGE
  return {
    key = KEYS[tonumber(ARGV[2]) + i], position = tonumber(ARGV[a + 1]), policy = ARGV[a + 2], variant = ARGV[a + 3],
    revision = tonumber(ARGV[a + 4]), leased = ARGV[a + 5] == '1', capacity = tonumber(ARGV[a + 6]),
    rate = tonumber(ARGV[a + 7]), pool = tonumber(ARGV[a + 8]), cost = tonumber(ARGV[a + 9]), sealed = ARGV[a + 10],
    waits = tonumber(ARGV[a + 11]), empty = ARGV[a + 12] == '1', denied = tonumber(ARGV[a + 13]), field = limit_field(ARGV[a + 2], ARGV[a + 3]),
    -- What open and the others find out about it.
    shard = false, limit = false, r = false, level = 0, mark = 0, lease = 0, lacks = false, hopeless = false,
    terminal = false, told = false, special = ARGV[a + 14],
    -- Of special; counts, slots, ban and delay are there only with extra.
    extra = false, rule = '', wait = 0, banned = 0,
  }
end

-- shards_of reads the shard records of all charges, with the entries of their policies; the second result is the refusal
-- where some stand in the way.
local function shards_of(charges, now)
  local fields, refused = {}, {-1}
  for i = 1, tonumber(ARGV[2]) do fields[i] = {} end
  for _, c in ipairs(charges) do
    local list = fields[c.position]
    list[#list + 1] = c.field
  end
  for i, list in ipairs(fields) do
    local shard, why, epoch = shard_record(KEYS[i], ARGV[1], now, list)
    if shard then
      shard.limits = {}
      for j, field in ipairs(list) do shard.limits[field] = read_limit(shard.more[MORE - 1 + j]) end
      fields[i] = shard
    else
      local n = #refused
      refused[n + 1], refused[n + 2], refused[n + 3] = i, why, epoch
    end
  end
  return fields, #refused > 1 and refused or nil
end

-- differs is true where e is not the numbers that c brings.
local function differs(e, c)
  return e.capacity ~= c.capacity or e.rate ~= c.rate or e.leased ~= c.leased or e.rule ~= c.rule
end

-- follow makes c's numbers those in force: the first take that brings others records the change, at this instant (A3). What
-- grows because a region's part grew gains room, never tokens (A2), and so does what changed its scope. Another algorithm or
-- window begins as after a loss.
local function follow(c, now)
  local shard = c.shard
  local e = shard.limits[c.field]
  if e and not differs(e, c) then
    c.limit = e
    if now - e.seen <= KEEP_ENTRY then return end
  else
    local longer_at, room = e and e.longer_at or 0, e and e.room or 0
    local count = redis.call('HINCRBY', shard.key, 'changes', 1)
    if e and (c.leased or e.leased) then room = count end
    if e and e.rule ~= c.rule then
      longer_at = c.empty and now or 0
    elseif e and (room == count or time_to_full(c) > time_to_full(e)) then
      longer_at = now
    end
    c.limit = {
      count = count, before = e and e.count or 0, at = now, longer_at = longer_at, room = room, revision = c.revision,
      capacity = c.capacity, rate = c.rate, leased = c.leased, rule = c.rule,
    }
    shard.limits[c.field] = c.limit
  end
  c.limit.seen = now
  redis.call('HSET', shard.key, c.field, limit_text(c.limit))
end

-- born_at is the instant at which an unknown bucket counts as empty; 0 where it is full (E3, A3).
local function born_at(c)
  local shard, at = c.shard, c.limit.longer_at
  if c.leased or c.empty then return max(at, shard.known) end
  local full = time_to_full(c)
  -- The clock was seen to step forth: a record may have expired by the step alone.
  if shard.step > max(LEAST_LIFE, 2 * full) - full then at = max(at, shard.stepped) end
  return at
end

-- begin makes r the record that an unknown bucket, or one of an older epoch, has in this one (E3). What is known goes on
-- without the gap: a bucket of scope region, and where the epoch began for the clock alone a leased one too.
local function begin(r, c, now)
  local known, goes_on, older = r.epoch ~= nil, false, 0
  if known then
    local v = redis.call('HMGET', c.shard.key, 'birth', 'reason', 'before', 'until')
    local birth = tonumber(v[1])
    older = birth
    local same = v[2] == 'clock' and r.epoch == v[3] -- the same server, and the epoch just before
    goes_on = same or not c.leased
    if goes_on then
      local e = c.limit
      if same and (r.changes == e.count or (r.changes == e.before and e.at > birth)) then
        r.level = refill(r.level, tonumber(v[4]) - r.mark, r.capacity * MICRO, r.rate) -- up to the last tick before the gap
      end
      r.mark = birth
    end
  end
  r.existed, r.fresh, r.epoch = known, true, c.shard.epoch
  if not goes_on then
    r.capacity, r.rate, r.changes = c.capacity, c.rate, c.limit.count
    local at = max(born_at(c), older)
    if at > 0 then r.level, r.mark = 0, at else r.level, r.mark = c.capacity * MICRO, now end
  end
  for _, name in ipairs({'left', 'expires_at', 'spent', 'lapsed', 'denied', 'waiting', 'waiting_until', 'dry_until', 'fits_at',
    'pool_level', 'pool_at', 'deadline', 'filled', 'told_at', 'ttl', 'cost', 'open_until'}) do
    r[name] = 0
  end
end

-- retune brings r up to the numbers in force. Where it is exactly one change behind it is refilled up to that change with the
-- smaller rate of its own and the new; further behind, not at all. Then a raised limit adds the difference and a lowered one
-- subtracts it, so that spent stays spent; where only room may grow, the level is cut to it (A2, A3).
local function retune(r, c, now)
  local e = c.limit
  if r.changes == e.count then return end
  local at, known = e.at, r.changes == e.before and not r.fresh
  if not r.fresh and r.variant ~= c.variant then -- another variant of the same bucket: a change at this moment
    local own = read_limit(redis.call('HGET', c.shard.key, limit_field(c.policy, r.variant)))
    at, known = now, own ~= nil and own.count == r.changes
  end
  local level, room = r.level, c.leased or r.changes < e.room
  if known then
    local full = room and min(r.capacity, c.capacity) or r.capacity
    level = refill(level, at - r.mark, full * MICRO, min(r.rate, c.rate))
  end
  if not r.fresh then
    set(r, 'keep_until', min(NEVER, max(r.keep_until, now + time_to(r.capacity * MICRO - level, r.rate))))
  end
  if room then level = min(level, c.capacity * MICRO) else level = level + (c.capacity - r.capacity) * MICRO end
  set(r, 'level', level)
  set(r, 'mark', max(r.mark, at))
  set(r, 'capacity', c.capacity)
  set(r, 'rate', c.rate)
  set(r, 'changes', e.count)
  if r.open_until > 0 then set(r, 'open_until', 0) end -- the mark of E5 is a level of the old numbers: nothing comes back
end

-- forget_dry lets the pool be asked again.
local function forget_dry(r)
  set(r, 'dry_until', 0)
  set(r, 'fits_at', 0)
end

-- dry is true where the pool is known not to have c's cost. What it lacks for a larger one it may have for this.
local function dry(c, now) return c.r.dry_until > now and c.cost >= c.r.dry_cost end

-- round names the time since the last fill, which ended all waits.
local function round(r) return r.pool_at + 1 end

-- already_waits is true where an earlier take of the request is counted in waiting.
local function already_waits(c) return c.waits == round(c.r) and c.r.waiting > 0 end

-- open reads c's record up to now and decides whether it has c's cost: from the own part first, then whole lease tokens.
local function open(c, now)
  local r = c.leased and load(c.key) or load_own(c.key)
  if r.epoch ~= c.shard.epoch then begin(r, c, now) end
  retune(r, c, now)
  if r.dry_until > 0 and (tonumber(r.revision) or 0) < c.revision then forget_dry(r) end -- said of other numbers
  lapse(r, now)
  if c.leased and c.denied > 0 then set(r, 'denied', r.denied + c.denied) end
  local level, took = refill(r.level, now - r.mark, c.capacity * MICRO, c.rate)
  c.r, c.level, c.mark = r, level, r.mark + took
  local lease = max(0, c.cost - floor(max(level, 0) / MICRO)) -- whole tokens beyond the own part's, rounded up
  c.lease, c.lacks = lease, lease > (c.leased and r.left or 0)
  if c.lacks and c.extra then c.extra.queue(c, now) end
  if c.lacks then
    c.hopeless = not c.leased or c.pool < c.cost
    c.more = already_waits(c) and 0 or c.cost
    c.terminal = c.hopeless or dry(c, now) or r.waiting + c.more > c.pool
  end
end

-- tell decides whether c's bucket is announced: not while an item is on its way, the pool is known dry, or just told.
local function tell(c, now)
  local r = c.r
  if r.deadline > now or r.dry_until > now then return end
  if r.told_at <= now and now - r.told_at < TELL_EVERY then return end
  set(r, 'told_at', now)
  c.told = true
end

-- rise keeps the highest level since the oldest take that may still give back (E5), just before a charge lowers it.
local function rise(c)
  local r = c.r
  if c.level > tonumber(redis.call('HGET', c.key, 'top') or 0) then set(r, 'top', c.level) end
end

-- keep_open notes that this take may give back until then.
local function keep_open(c, now, period)
  local r = c.r
  if r.open_until <= now then
    set(r, 'top', r.level)
    set(r, 'top_since', now)
    set(r, 'open', 1)
  else
    set(r, 'open', tonumber(redis.call('HGET', c.key, 'open') or 0) + 1)
  end
  set(r, 'open_until', max(r.open_until, now + period))
end

-- pay charges c.
local function pay(c, now)
  local r = c.r
  if c.cost == 0 then return end
  if r.open_until > now then rise(c) end
  set(r, 'level', max(-NEVER, c.level - (c.cost - c.lease) * MICRO))
  set(r, 'mark', c.mark)
  if c.wait > 0 then c.extra.stand(c, now) end
  if c.lease > 0 then
    set(r, 'left', r.left - c.lease)
    set(r, 'spent', r.spent + c.lease)
    set(r, 'spent_at', now)
    if 2 * r.left < r.filled then tell(c, now) end
  end
  if ARGV[6] ~= '0' then keep_open(c, now, max(tonumber(ARGV[6]), c.wait)) end
end

-- want registers what c lacks as demand: as waiting, or as denied.
local function want(c, waits, now)
  local r = c.r
  if r.dry_until > now and not dry(c, now) then forget_dry(r) end -- asked anew, for less
  set(r, 'cost', r.waiting > 0 and max(r.cost, c.cost) or c.cost)
  if waits then
    set(r, 'waiting_until', max(r.waiting > 0 and r.waiting_until or 0, now + tonumber(ARGV[4])))
    set(r, 'waiting', r.waiting + c.more)
  else
    set(r, 'denied', r.denied + c.cost)
  end
  if not c.hopeless then tell(c, now) end
end

-- close writes c's record, if anything in it changed.
local function close(c)
  local r = c.r
  if r.writes[1] == nil then return end
  if r.fresh then
    for _, name in ipairs({'epoch', 'level', 'mark', 'capacity', 'rate', 'changes'}) do set(r, name, r[name]) end
    set(r, 'policy', c.policy)
  end
  if r.cost == 0 and c.cost > 0 then set(r, 'cost', c.cost) end
  local revision = not r.fresh and tonumber(r.revision) or 0
  if r.fresh or r.variant ~= c.variant or revision < c.revision then
    set(r, 'variant', c.variant)
    set(r, 'revision', max(revision, c.revision))
    set(r, 'sealed', c.sealed)
  end
  if c.told and ARGV[5] ~= '' then set(r, 'traceparent', ARGV[5]) end
  if r.existed and r.fresh then redis.call('DEL', c.key) end
  save(c.key, r)
end

-- retry_in returns how long until c's cost may fit: by the own part's refill, or when the pool is not dry any more.
local function retry_in(c, level, mark, now)
  local r = c.r
  local need = (c.cost - r.left) * MICRO - level
  if need <= 0 or r.left >= c.cost then return 0 end
  local own, pool = NEVER, NEVER
  if level + need <= c.capacity * MICRO then
    own = time_to(need + (c.least or 0), c.rate)
    if own < NEVER then own = max(0, own + mark - now) end
  end
  if c.leased and c.pool >= c.cost then pool = max(0, r.fits_at - now) end
  return min(own, pool)
end

-- state appends c's part of the reply: the record after the take, or as it would be by now.
local function state(reply, c, paid, now)
  local r = c.r
  local level, mark = c.level, c.mark
  if paid and c.cost > 0 then level = r.level end
  local n = #reply
  reply[n + 1] = c.lacks and 1 or 0
  reply[n + 2] = level
  reply[n + 3] = r.left
  reply[n + 4] = r.pool_level
  reply[n + 5] = r.pool_at > 0 and max(0, now - r.pool_at) or -1
  reply[n + 6] = retry_in(c, level, mark, now)
  reply[n + 7] = c.shard.heard_at > 0 and max(0, now - c.shard.heard_at) or -1
  reply[n + 8] = round(r)
  reply[n + 9], reply[n + 10], reply[n + 11] = paid and c.wait or 0, 0, c.banned
end

-- receipt appends what a give-back must name of c.
local function receipt(reply, c, now)
  local n, v, window, entry, ends = #reply, {0, 0}, 0, 0, now + max(tonumber(ARGV[6]), c.wait)
  if c.lease > 0 then v = redis.call('HMGET', c.key, 'session', 'lease') end
  if c.counts and c.cost > 0 then window, entry = c.counts.receipt(c) end
  if c.slots then ends = NEVER end
  reply[n + 1], reply[n + 2], reply[n + 3] = c.shard.epoch, tonumber(v[1] or 0), tonumber(v[2] or 0)
  reply[n + 4], reply[n + 5], reply[n + 6] = c.lease, now, ends
  reply[n + 7], reply[n + 8] = window, entry
end

-- look opens c; what is forced lacks nothing.
local function look(c, now, forced)
  follow(c, now)
  if c.counts then
    c.counts.open(c, now)
    c.terminal = c.lacks
  else
    open(c, now)
  end
  if c.ban then c.extra.see_ban(c, now) end
  if forced then
    c.lacks, c.terminal, c.banned = false, false, 0
    c.lease = c.leased and min(c.lease, c.r.left) or 0
  end
end

-- charge pays c's cost, or counts that c lacked it.
local function charge(c, outcome, terminal, now)
  if outcome == 1 then
    if not c.counts then pay(c, now) elseif c.cost > 0 then c.counts.pay(c, now) end
  elseif outcome ~= 4 and c.lacks then
    if c.leased and (not terminal or c.terminal) then want(c, outcome == 3, now) end
    if c.ban then c.extra.deny(c, 1, now) end
  end
end

local now, forced = clock(), ARGV[8] == '1'
local charges, extra, lacks, terminal, banned, slots = {}, false, false, false, false, false
local count = (#ARGV - HEAD) / PER_CHARGE
local next_key = tonumber(ARGV[2]) + count + 1
for i = 1, count do
  local c = charge_at(i)
  charges[i] = c
  if c.special ~= '' then
    extra = extra or more()
    next_key = extra.special(c, next_key, extra)
    slots = slots or c.slots
  end
end
local shards, refused = shards_of(charges, now)
if refused then return refused end
for i, c in ipairs(charges) do
  c.shard = shards[c.position]
  local e = c.shard.limits[c.field]
  if e and differs(e, c) and c.revision < e.revision then return {-2, i} end
  local stop = c.extra and extra.stops(c, i, now)
  if stop then return stop end
end
for _, c in ipairs(charges) do
  look(c, now, forced)
  lacks, terminal, banned = lacks or c.lacks, terminal or c.terminal, banned or c.banned > 0
end

local outcome = 1
if banned then
  outcome = 4
elseif lacks then
  outcome = (ARGV[3] == '1' and not terminal) and 3 or 2
end
local reply = {outcome}
for _, c in ipairs(charges) do
  charge(c, outcome, terminal, now)
  if c.counts then
    c.counts.close(c, now)
    extra.state(reply, c, now)
  else
    close(c)
    state(reply, c, outcome == 1, now)
  end
end
for _, c in ipairs(charges) do -- last, so that an announcement that fails leaves no take half charged
  if c.told then announce('annona:1:demand', c.key, ARGV[5]) end
end
if outcome == 1 and (ARGV[6] ~= '0' or slots) then
  for _, c in ipairs(charges) do receipt(reply, c, now) end
end
return reply
