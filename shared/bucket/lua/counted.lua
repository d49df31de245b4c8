-- Put before what knows the algorithms that count what was admitted and do not fill: fixed_window, sliding_window_log,
-- sliding_window_counter and concurrency, all of scope region. Each has its own file, whose functions are made only where a
-- bucket of it is met. Counts are whole tokens.

-- limit.Algorithm:
local FIXED_WINDOW = 1
local LOG = 2
local COUNTER = 3
local SLOTS = 4
local MOST_USED = 40000000000000 -- 4 * 10^13: what a count stops at; no limit is above 10^12
local HOLDER_LASTS = 10000000 -- µs: how long a holder's slots are held after its last renewal (B8)
local MOST_AT_ONCE = 64 -- entries that one call cleans up, of each kind

-- load_counted reads the fields of c's record that are numbers. r.fresh is true where there is none, or one of another rule
-- (algorithm and window), which begins as after a loss; r.older where it is of an older epoch and goes on (E3).
local function load_counted(c, names)
  local v = redis.call('HMGET', c.key, 'epoch', 'rule', 'variant', 'revision', 'keep_until', unpack(names))
  local fresh = not v[1] or v[2] ~= c.rule
  local r = {
    writes = {}, existed = v[1] and true or false, fresh = fresh, older = not fresh and v[1] ~= c.shard.epoch,
    was = v[1], epoch = c.shard.epoch, variant = v[3] or '', revision = v[4] or '', keep_until = tonumber(v[5] or 0),
  }
  for i, name in ipairs(names) do r[name] = not fresh and tonumber(v[5 + i] or 0) or 0 end
  c.r = r
  return r
end

-- lost_at is the instant at which an unknown bucket of c may have held anything for the last time; 0 where nothing was lost.
local function lost_at(c)
  if not c.empty then return 0 end
  return max(c.limit.longer_at, c.shard.known)
end

-- close_counted writes c's record, if anything in it changed, to live for so long at least, and returns its life (ms).
local function close_counted(c, now, life)
  local r = c.r
  if r.writes[1] == nil then return end
  if r.fresh or r.older then set(r, 'epoch', r.epoch) end
  if r.fresh then
    set(r, 'policy', c.policy)
    set(r, 'rule', c.rule)
    if r.existed then redis.call('DEL', c.key) end
  end
  local revision = not r.fresh and tonumber(r.revision) or 0
  if r.fresh or r.variant ~= c.variant or revision < c.revision then
    set(r, 'variant', c.variant)
    set(r, 'revision', max(revision, c.revision))
    set(r, 'sealed', c.sealed)
  end
  redis.call('HSET', c.key, unpack(r.writes))
  life = min(NEVER, max(LEAST_LIFE, life, 2 * (r.keep_until - now)))
  local ms = text(floor(life / 1000) + 1)
  redis.call('PEXPIRE', c.key, ms)
  return ms
end

-- mul_div returns floor(a * b / c) and the rest, for b <= c <= 4.5 * 10^13 and a < 2^53: long multiplication, two decimal digits
-- of a at a time. NOTE: rest < c, so rest * 100 + 99 * b < 2^53.
local function mul_div(a, b, c)
  local quotient, rest, unit = 0, 0, 100000000000000
  while unit >= 1 do
    local digit = floor(a / unit)
    a = a - digit * unit
    local product = rest * 100 + digit * b
    local q = floor(product / c)
    quotient, rest, unit = quotient * 100 + q, product - q * c, unit / 100
  end
  return quotient, rest
end

-- holds is true where a holder was renewed lately enough: a clock that goes back takes nobody's slots away.
local function holds(holders, holder, now)
  local at = redis.call('ZSCORE', holders, holder)
  return at and now - tonumber(at) < HOLDER_LASTS
end
