-- Put before every script: the store's clock, the shard record and the lease fields of a bucket record, and the arithmetic of
-- shared/limit in Lua's doubles. Tokens are whole, levels are micro-tokens, rates micro-tokens a second, instants and
-- durations microseconds. Every number stays below 2^53 (NOTE on each product), where doubles are exact integers.

local MICRO = 1000000
local NEVER = 4503599627370496 -- 2^52: limit.Never
local TICK_LASTS = 2000000 -- µs: how far past the last tick the clock is trusted (E2)
local LEAST_LIFE = 60000000 -- µs: how long a bucket's record lives at least (E4)
local floor, max, min = math.floor, math.max, math.min

-- text writes an integer without an exponent.
local function text(n) return string.format('%.0f', n) end

-- clock returns Redis' time.
local function clock()
  local t = redis.call('TIME')
  return tonumber(t[1]) * MICRO + tonumber(t[2])
end

-- time_to returns how long the refill takes to bring need, rounded up: limit.Budget.TimeTo.
-- NOTE: floor(a / b) is exact for all integers a < 2^53: a quotient below k is at least 1/b below it, which is more than k/2^53.
local function time_to(need, rate)
  if need <= 0 then return 0 end
  if rate <= 0 then return NEVER end
  local quotient, rest
  if need <= 9000000000 then -- NOTE: need * 10^6 <= 9 * 10^15 < 2^53
    local product = need * MICRO
    quotient = floor(product / rate)
    rest = product - quotient * rate
  else
    quotient = floor(need / rate)
    if quotient > 4503599627 then return NEVER end
    rest = need - quotient * rate
    for _, factor in ipairs({8, 8, 5, 5, 5, 5, 5, 5}) do -- long division by 10^6; NOTE: rest < rate <= 10^15, 8 * 10^15 < 2^53
      local product = rest * factor
      local digit = floor(product / rate)
      quotient = quotient * factor + digit
      rest = product - digit * rate
    end
  end
  if rest > 0 then quotient = quotient + 1 end
  return min(quotient, NEVER)
end

-- refill returns what level becomes after elapsed, at most full, and the time that the credited amount took:
-- limit.Budget.Refill.
local function refill(level, elapsed, full, rate)
  if elapsed <= 0 then return level, 0 end
  if level >= full then return level, elapsed end
  local to_full = time_to(full - level, rate)
  if elapsed >= to_full and to_full < NEVER then return full, elapsed end
  -- NOTE: elapsed is clamped to the time to full, so each of the first two products is at most full - level <= 2 * 10^15;
  -- the third is below 10^12.
  local credit = elapsed * floor(rate / MICRO)
    + floor(elapsed / MICRO) * (rate % MICRO)
    + floor((elapsed % MICRO) * (rate % MICRO) / MICRO)
  return level + credit, time_to(credit, rate)
end

-- shard_record reads a shard record, and the named fields more of it; nil, why (1 missing, 2 another server: a new epoch must
-- begin; 3: the clock is more than 2 s past the tick, or behind it, E2) and its epoch where the script may not run.
-- Without now the clock is not judged.
local function shard_record(key, server, now, more)
  local v = redis.call('HMGET', key, 'epoch', 'server', 'known', 'heard_at', 'tick', 'stepped', 'step', unpack(more or {}))
  if not v[1] then return nil, 1, '' end
  if v[2] ~= server then return nil, 2, v[1] end
  local tick = tonumber(v[5] or 0)
  if now and (now < tick or now - tick > TICK_LASTS) then return nil, 3, v[1] end
  return {
    key = key, epoch = v[1], known = tonumber(v[3] or 0), heard_at = tonumber(v[4] or 0), tick = tick,
    stepped = tonumber(v[6] or 0), step = tonumber(v[7] or 0), more = v,
  }
end

-- MORE is where shard_record's first further field stands in more.
local MORE = 8

-- refuse is the reply of a script that may not run: shards that stand in the way, by position in KEYS.
local function refuse(position, why, epoch) return {-1, position, why, epoch} end

-- load reads the fields of a bucket record that a take needs; a field that is not there is 0. r.epoch is nil where there is
-- no record.
local function load(key)
  local v = redis.call('HMGET', key, 'epoch', 'level', 'mark', 'capacity', 'rate', 'left', 'expires_at', 'spent', 'waiting',
    'waiting_until', 'dry_until', 'pool_level', 'pool_at', 'deadline', 'filled', 'told_at', 'denied', 'lapsed', 'ttl', 'cost',
    'revision', 'variant', 'fits_at', 'changes', 'open_until', 'dry_cost', 'keep_until')
  return {
    writes = {}, epoch = v[1] or nil,
    level = tonumber(v[2] or 0), mark = tonumber(v[3] or 0), capacity = tonumber(v[4] or 0), rate = tonumber(v[5] or 0),
    left = tonumber(v[6] or 0), expires_at = tonumber(v[7] or 0), spent = tonumber(v[8] or 0),
    waiting = tonumber(v[9] or 0), waiting_until = tonumber(v[10] or 0), dry_until = tonumber(v[11] or 0),
    pool_level = tonumber(v[12] or 0), pool_at = tonumber(v[13] or 0), deadline = tonumber(v[14] or 0),
    filled = tonumber(v[15] or 0), told_at = tonumber(v[16] or 0), denied = tonumber(v[17] or 0),
    lapsed = tonumber(v[18] or 0), ttl = tonumber(v[19] or 0), cost = tonumber(v[20] or 0),
    revision = v[21] or '', variant = v[22] or '', fits_at = tonumber(v[23] or 0),
    changes = tonumber(v[24] or 0), open_until = tonumber(v[25] or 0), dry_cost = tonumber(v[26] or 0), keep_until = tonumber(v[27] or 0),
  }
end

-- load_lease reads into r the fields that only the lease verbs need.
local function load_lease(key, r)
  local numbers = {'session', 'seq', 'applied', 'returned', 'spent_at', 'asked_at', 'asked_spent', 'asked_returned',
    'asked_lapsed', 'asked_denied', 'asked_demand', 'answered_spent', 'answered_returned', 'answered_lapsed', 'lease'}
  local v = redis.call('HMGET', key, 'policy', 'sealed', 'traceparent', unpack(numbers))
  r.policy, r.sealed, r.traceparent = v[1] or '', v[2] or '', v[3] or ''
  for i, name in ipairs(numbers) do r[name] = tonumber(v[i + 3] or 0) end
end

-- set changes a field of a record; save writes what was set. A field that is set twice is written twice, the later wins.
local function set(r, name, value)
  r[name] = value
  local writes = r.writes
  local n = #writes
  writes[n + 1], writes[n + 2] = name, type(value) == 'number' and text(value) or value
end

-- save writes what was set, in one HSET, and renews the record's life: twice as long as it takes to be full again, debt and
-- so the delay of those who wait included, and twice as long as its lease (E4). NOTE: 2 * NEVER = 2^53.
local function save(key, r)
  redis.call('HSET', key, unpack(r.writes))
  local full = time_to(r.capacity * MICRO - r.level, r.rate)
  local kept = r.keep_until > 0 and r.keep_until - clock() or 0 -- until full by numbers that it had before
  local life = min(max(LEAST_LIFE, 2 * full, 2 * kept, 2 * r.ttl), NEVER)
  redis.call('PEXPIRE', key, text(floor(life / 1000) + 1))
end

-- lapse moves a lease that ran out to lapsed; whichever script touches the record first does.
local function lapse(r, now)
  if r.left > 0 and r.expires_at <= now then
    set(r, 'lapsed', r.lapsed + r.left)
    set(r, 'left', 0)
  end
  if r.waiting > 0 and r.waiting_until <= now then set(r, 'waiting', 0) end
end

-- announce publishes a bucket's shard and key, which its record's key ends with, and a trace context.
local function announce(channel, key, traceparent)
  local shard, hex = string.match(key, '{s(%d+)}:b:(%x+)$')
  redis.call('PUBLISH', channel, shard .. ' ' .. hex .. ' ' .. traceparent)
end
