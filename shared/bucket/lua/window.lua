-- fixed_window and sliding_window_counter: the count of the present window, and of the one before it.

local function window_verbs()
  local NAMES = {'window', 'ends', 'used', 'window_before', 'used_before'}
  local verbs = {}

  -- present returns the start and the end of the window that the store's clock is in. The caller brings the bounds of fixed
  -- windows, for it knows calendars; now is within them (outside).
  local function present(c, now)
    if c.algorithm == COUNTER then
      local start = now - now % c.span
      return start, start + c.span
    end
    local i = 1
    while now >= c.bounds[i + 1] do i = i + 1 end
    return c.bounds[i], c.bounds[i + 1]
  end

  -- estimate is how much of a counter is used: limit.Estimate.
  local function estimate(c)
    if c.before == 0 then return c.r.used end
    local whole, rest = mul_div(c.before, c.span - c.into, c.span)
    return c.r.used + whole + (rest > 0 and 1 or 0)
  end

  -- weighs_at_most returns how far into a window the count of the one before it weighs at most room.
  local function weighs_at_most(c, before, room)
    if before <= room then return 0 end
    return c.span - (mul_div(c.span, room, before))
  end

  -- fits_in returns how long until at most room is used: of a counter limit.EstimateFits.
  local function fits_in(c, room, now)
    local r = c.r
    if c.used <= room then return 0 end
    if room < 0 then return NEVER end
    if c.algorithm == FIXED_WINDOW then return max(0, r.ends - now) end
    if r.used <= room then return max(0, weighs_at_most(c, c.before, room - r.used) - c.into) end
    return c.span - c.into + weighs_at_most(c, r.used, room)
  end

  -- turn_to brings r to the present window. A clock that goes back within an epoch never reopens an older window. In a new
  -- epoch what was counted in later windows counts in the present one: spent stays spent.
  local function turn_to(r, start, ends)
    if r.window > start and not r.older then return end
    if r.window < start then
      if r.used > 0 then r.window_before, r.used_before = r.window, r.used end
      r.used = 0
    elseif r.window > start and r.window_before >= start then
      r.used, r.window_before, r.used_before = min(MOST_USED, r.used + r.used_before), 0, 0
    end
    r.window, r.ends = start, ends
  end

  function verbs.open(c, now)
    local r = load_counted(c, NAMES)
    local start, ends = present(c, now)
    turn_to(r, start, ends)
    if r.fresh and lost_at(c) > start then r.used = c.capacity end -- nothing in a window begun before (E3)
    c.into = max(0, now - r.window)
    c.before = c.algorithm == COUNTER and r.window_before == r.window - c.span and r.used_before or 0
    c.used = estimate(c)
    c.lacks = c.cost > 0 and c.used + c.cost > c.capacity
  end

  function verbs.pay(c)
    local r = c.r
    set(r, 'used', min(MOST_USED, r.used + c.cost))
    for _, name in ipairs(NAMES) do
      if name ~= 'used' then set(r, name, r[name]) end
    end
    c.used = estimate(c)
  end

  function verbs.close(c, now) close_counted(c, now, 2 * c.span) end

  -- state returns remaining, retry_in and reset.
  function verbs.state(c, now)
    return max(0, c.capacity - c.used), fits_in(c, c.capacity - c.cost, now), fits_in(c, 0, now)
  end

  -- receipt returns the window that was charged, and no entry.
  function verbs.receipt(c) return c.r.window, 0 end

  -- back credits n to the window that the receipt names, while it lasts.
  function verbs.back(b, now)
    local v = redis.call('HMGET', b.key, 'epoch', 'window', 'ends', 'used')
    local used = tonumber(v[4] or 0)
    if v[1] ~= b.epoch or tonumber(v[2] or 0) ~= b.window or tonumber(v[3]) <= now then return 0 end
    local n = min(b.tokens, used)
    redis.call('HSET', b.key, 'used', text(used - n))
    return n
  end

  return verbs
end
