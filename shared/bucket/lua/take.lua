-- take charges every charge or none.
-- KEYS: the shards' records (ARGV[2] of them), then one bucket record a charge.
-- ARGV: server id, shards, may wait (0 or 1), wait for (µs), traceparent, then 12 a charge: position of its shard in KEYS,
--   policy, variant, revision, leased (0 or 1), capacity and rate of the own part (tokens, µt/s), capacity of the pool
--   (tokens), cost (tokens), sealed identity, round in which the request already waits here (0: it does not), cost denied from memory
--   since the last take (tokens).
-- Reply: {outcome (1 admitted, 2 denied, 3 wait), then 8 a charge: lacking (0 or 1), level (µt), left (tokens), pool level as
--   last heard (tokens), its age, time until the cost may fit, age of the allocator's last answer (µs; ages -1: never),
--   round}
--   or {-1, position of a shard in KEYS, why, its epoch, ...}: nothing happened, a new epoch must begin.

local PER_CHARGE = 12
local TELL_EVERY = 50000 -- µs between two announcements of one bucket

-- charge_at reads charge i and its arguments.
local function charge_at(i, shards)
  local a = 5 + (i - 1) * PER_CHARGE
  return {
    key = KEYS[tonumber(ARGV[2]) + i], shard = shards[tonumber(ARGV[a + 1])], policy = ARGV[a + 2], variant = ARGV[a + 3],
    revision = ARGV[a + 4], leased = ARGV[a + 5] == '1', capacity = tonumber(ARGV[a + 6]), rate = tonumber(ARGV[a + 7]),
    pool = tonumber(ARGV[a + 8]), cost = tonumber(ARGV[a + 9]), sealed = ARGV[a + 10],
    waits = tonumber(ARGV[a + 11]), denied = tonumber(ARGV[a + 12]),
    -- What open and the others find out about it.
    r = false, level = 0, mark = 0, lease = 0, lacks = false, hopeless = false, terminal = false, told = false,
  }
end

-- begin makes r the record that an unknown bucket, or one of an older epoch, has in this one (E3): a leased one was empty
-- when a demoted master surely served no more; one of scope region goes on without the gap, or starts full.
local function begin(r, c, now)
  local known = r.epoch ~= nil
  r.existed, r.fresh, r.epoch = known, true, c.shard.epoch
  if c.leased then
    r.level, r.mark = 0, c.shard.opens
  elseif known then
    r.mark = c.shard.birth
  else
    r.level, r.mark = c.capacity * MICRO, now
  end
  if c.leased or not known then r.capacity, r.rate = c.capacity, c.rate end
  for _, name in ipairs({'left', 'expires_at', 'spent', 'lapsed', 'denied', 'waiting', 'waiting_until', 'dry_until', 'fits_at',
    'pool_level', 'pool_at', 'deadline', 'filled', 'told_at', 'ttl', 'cost'}) do
    r[name] = 0
  end
end

-- retune goes on with changed numbers: from what the smaller of old and new held at this moment, and never more (A2).
local function retune(r, c, now)
  if r.capacity == c.capacity and r.rate == c.rate then return end
  local level = refill(r.level, now - r.mark, min(r.capacity, c.capacity) * MICRO, min(r.rate, c.rate))
  set(r, 'level', min(level, c.capacity * MICRO))
  set(r, 'mark', max(r.mark, now))
  set(r, 'capacity', c.capacity)
  set(r, 'rate', c.rate)
end

-- round names the time since the last fill, which ended all waits.
local function round(r) return r.pool_at + 1 end

-- already_waits is true where an earlier take of the request is counted in waiting.
local function already_waits(c) return c.waits == round(c.r) and c.r.waiting > 0 end

-- open reads c's record up to now and decides whether it has c's cost: from the own part first, then whole lease tokens.
local function open(c, now)
  local r = load(c.key)
  if r.epoch ~= c.shard.epoch then begin(r, c, now) end
  retune(r, c, now)
  lapse(r, now)
  if c.leased and c.denied > 0 then set(r, 'denied', r.denied + c.denied) end
  local level, took = refill(r.level, now - r.mark, c.capacity * MICRO, c.rate)
  c.r, c.level, c.mark = r, level, r.mark + took
  local lease = max(0, c.cost - floor(max(level, 0) / MICRO)) -- whole tokens beyond the own part's, rounded up
  c.lease, c.lacks = lease, lease > r.left
  if c.lacks then
    c.hopeless = not c.leased or c.pool < c.cost
    c.more = already_waits(c) and 0 or c.cost
    c.terminal = c.hopeless or r.dry_until > now or r.waiting + c.more > c.pool
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

-- pay charges c.
local function pay(c, now)
  local r = c.r
  if c.cost == 0 then return end
  set(r, 'level', c.level - (c.cost - c.lease) * MICRO)
  set(r, 'mark', c.mark)
  if c.lease > 0 then
    set(r, 'left', r.left - c.lease)
    set(r, 'spent', r.spent + c.lease)
    set(r, 'spent_at', now)
    if 2 * r.left < r.filled then tell(c, now) end
  end
end

-- want registers what c lacks as demand: as waiting, or as denied.
local function want(c, waits, now)
  local r = c.r
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
    for _, name in ipairs({'epoch', 'level', 'mark', 'capacity', 'rate'}) do set(r, name, r[name]) end
    set(r, 'policy', c.policy)
  end
  if r.cost == 0 and c.cost > 0 then set(r, 'cost', c.cost) end
  if r.fresh or r.variant ~= c.variant or r.revision ~= c.revision then
    set(r, 'variant', c.variant)
    set(r, 'revision', c.revision)
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
    own = min(NEVER, max(0, time_to(need, c.rate) + mark - now))
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
end

local now = clock()
local shards, refused = {}, {-1}
for i = 1, tonumber(ARGV[2]) do
  local shard, why, epoch = shard_record(KEYS[i], ARGV[1])
  shards[i] = shard
  if not shard then
    local n = #refused
    refused[n + 1], refused[n + 2], refused[n + 3] = i, why, epoch
  end
end
if #refused > 1 then return refused end

local charges, lacks, terminal = {}, false, false
for i = 1, #KEYS - tonumber(ARGV[2]) do
  local c = charge_at(i, shards)
  open(c, now)
  charges[i] = c
  lacks, terminal = lacks or c.lacks, terminal or c.terminal
end

local outcome = 1
if lacks then outcome = (ARGV[3] == '1' and not terminal) and 3 or 2 end
local reply = {outcome}
for _, c in ipairs(charges) do
  if not lacks then
    pay(c, now)
  elseif c.lacks and c.leased and (not terminal or c.terminal) then
    want(c, outcome == 3, now)
  end
  close(c)
  state(reply, c, not lacks, now)
end
for _, c in ipairs(charges) do -- last, so that an announcement that fails leaves no take half charged
  if c.told then announce('annona:1:demand', c.key, ARGV[5]) end
end
return reply
