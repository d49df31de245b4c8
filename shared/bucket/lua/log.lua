-- sliding_window_log: a sorted set of what was admitted, by time, exact on (t - W, t].
--
-- The log's time is the store's less the record's offset, from W when the log began; it stands still where the clock goes back,
-- and over the gap before an epoch (E3). A cost is written in digits to the base 16: so many members of weight 1, 16, 256 and
-- 4096, whose scores lie in four ranges 2^51 apart; so what is used is four counts, however many entries there are.
-- NOTE: a score is below 4 * 2^51 = 2^53.

local function log_verbs()
  local NAMES = {'serial', 'offset', 'mark', 'heavy'}
  local RANGE, BASE, MOST = 2251799813685248, 16, 65535 -- 2^51; MOST is above every limit: more changes nothing
  local verbs = {}

  -- live counts the members of weight 16^m that count at an instant of the log's time.
  local function live(key, m, at, span)
    return redis.call('ZCOUNT', key, '(' .. text(m * RANGE + at - span), text((m + 1) * RANGE - 1))
  end

  -- used_at is what counts at an instant.
  local function used_at(c, at)
    local used = 0
    for m = c.r.heavy, 0, -1 do used = used * BASE + live(c.entries, m, at, c.span) end
    return used
  end

  -- resume moves the offset so that the log goes on without the gap before the epoch: from its last entry, or where the epoch
  -- began for the clock alone from the last tick before.
  local function resume(r, c)
    local v = redis.call('HMGET', c.shard.key, 'birth', 'reason', 'before', 'until')
    local stood = r.mark
    if v[2] == 'clock' and r.was == v[3] then stood = max(stood, tonumber(v[4]) - r.offset) end
    r.offset = tonumber(v[1]) - stood
  end

  function verbs.open(c, now)
    local r = load_counted(c, NAMES)
    if r.fresh then r.offset = now - c.span end
    if r.older then resume(r, c) end
    c.now = now - r.offset
    c.at = max(c.now, r.mark)
    c.lost = r.fresh and lost_at(c) + c.span - now or 0 -- full of entries at that instant (E3)
    c.used = r.fresh and (c.lost > 0 and c.capacity or 0) or used_at(c, c.at)
    c.lacks = c.cost > 0 and c.used + c.cost > c.capacity
  end

  -- add writes an entry's members.
  local function add(key, serial, at, cost)
    local m, args = 0, {}
    while cost > 0 do
      for k = 0, cost % BASE - 1 do
        args[#args + 1] = text(m * RANGE + at)
        args[#args + 1] = text(serial * 64 + m * BASE + k)
      end
      m, cost = m + 1, floor(cost / BASE)
    end
    redis.call('ZADD', key, unpack(args))
    return m - 1
  end

  -- trim forgets what is out, so many at once; never fewer than an entry adds, so that at most twice the limit is kept.
  local function trim(c)
    if c.used == 0 or c.r.fresh then return redis.call('UNLINK', c.entries) end
    for m = 0, c.r.heavy do
      local out = redis.call('ZCOUNT', c.entries, text(m * RANGE), text(m * RANGE + c.at - c.span))
      if out > 0 then
        local first = m == 0 and 0 or redis.call('ZCOUNT', c.entries, '-inf', '(' .. text(m * RANGE))
        redis.call('ZREMRANGEBYRANK', c.entries, first, first + min(out, MOST_AT_ONCE) - 1)
      end
    end
  end

  function verbs.pay(c)
    local r, cost = c.r, min(c.cost, MOST)
    trim(c)
    set(r, 'serial', r.serial + 1)
    set(r, 'offset', r.offset)
    set(r, 'mark', c.at)
    set(r, 'heavy', max(c.used > 0 and r.heavy or 0, add(c.entries, r.serial, c.at, cost)))
    c.used = c.used + cost
  end

  function verbs.close(c, now)
    local life = close_counted(c, now, 2 * c.span)
    if life then redis.call('PEXPIRE', c.entries, life) end
  end

  -- falls returns when at most room counts, in the log's time; room is less than used.
  local function falls(c, room)
    local low, high = c.at, c.at + c.span
    if c.r.heavy == 0 then
      local out = redis.call('ZCOUNT', c.entries, '-inf', text(c.at - c.span))
      local rank = out + c.used - room - 1
      return tonumber(redis.call('ZRANGE', c.entries, rank, rank, 'WITHSCORES')[2]) + c.span
    end
    while low < high do
      local middle = low + floor((high - low) / 2)
      if used_at(c, middle) <= room then high = middle else low = middle + 1 end
    end
    return low
  end

  -- newest returns the time of the newest entry; there is one.
  local function newest(c)
    local at = 0
    for m = 0, c.r.heavy do
      local found = redis.call('ZREVRANGEBYSCORE', c.entries, text((m + 1) * RANGE - 1), text(m * RANGE), 'WITHSCORES', 'LIMIT', '0', '1')
      if found[2] then at = max(at, tonumber(found[2]) - m * RANGE) end
    end
    return at
  end

  -- fits_in returns how long until at most room is used.
  local function fits_in(c, room)
    if c.used <= room then return 0 end
    if room < 0 then return NEVER end
    if c.lost > 0 then return c.lost end
    return (room == 0 and newest(c) + c.span or falls(c, room)) - c.now
  end

  -- state returns remaining, retry_in and reset.
  function verbs.state(c)
    return max(0, c.capacity - c.used), fits_in(c, c.capacity - c.cost), fits_in(c, 0)
  end

  -- receipt returns no window, and the entry.
  function verbs.receipt(c) return 0, c.r.serial end

  -- back makes the receipt's entry cheaper, while it counts.
  function verbs.back(b, now)
    local v = redis.call('HMGET', b.key, 'epoch', 'offset', 'mark', 'rule')
    if v[1] ~= b.epoch then return 0 end
    local at = max(now - tonumber(v[2]), tonumber(v[3]))
    local was, score, m, cost = 0, nil, 0, min(b.taken, MOST)
    while cost > 0 do
      for k = 0, cost % BASE - 1 do
        local member = text(b.entry * 64 + m * BASE + k)
        local found = redis.call('ZSCORE', b.entries, member)
        if found and tonumber(found) - m * RANGE > at - tonumber(string.match(v[4], '^%d+')) then
          score, was = tonumber(found) - m * RANGE, was + BASE ^ m
          if b.tokens > 0 then redis.call('ZREM', b.entries, member) end
        end
      end
      m, cost = m + 1, floor(cost / BASE)
    end
    local n = min(b.tokens, was)
    if n > 0 and was > n then
      add(b.entries, b.entry, score, was - n)
      redis.call('PEXPIRE', b.entries, redis.call('PTTL', b.key))
    end
    return n
  end

  return verbs
end
