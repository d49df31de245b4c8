-- concurrency: slots that holders hold, each until it is given back or its holder has not been renewed for 10 s (B8).
--
-- The record has a count for each holder, the sorted set a member "SERIAL:COST" for each slot, by its holder's number.

local function slots_verbs()
  local KEPT = 31 * 24 * 3600 * MICRO -- how long a record with slots lives after its last write
  local verbs = {}

  function verbs.open(c, now)
    local r = load_counted(c, {'serial'})
    r.held, r.gone, c.used = {}, {}, 0
    local all = not r.fresh and redis.call('HGETALL', c.key) or {}
    for i = 1, #all, 2 do
      local holder = string.match(all[i], '^slots:(%d+)$')
      if holder then
        if holds(c.holders, holder, now) then
          r.held[holder] = tonumber(all[i + 1])
          c.used = c.used + r.held[holder]
        else
          r.gone[#r.gone + 1] = holder
        end
      end
    end
    -- Those that held slots when it was lost have ended by then: nobody could renew.
    local lost = lost_at(c)
    c.lost = r.fresh and lost > 0 and max(0, max(lost, c.limit.longer_at + HOLDER_LASTS) - now) or 0
    if c.lost > 0 then c.used = max(c.used, c.capacity) end
    c.lacks = c.cost > 0 and c.used + c.cost > c.capacity
  end

  -- sweep forgets slots of holders that are gone, so many at once.
  local function sweep(c)
    for _, holder in ipairs(c.r.gone) do
      local out = redis.call('ZRANGEBYSCORE', c.entries, holder, holder, 'LIMIT', '0', text(MOST_AT_ONCE))
      if out[1] then redis.call('ZREM', c.entries, unpack(out)) end
      if #out < MOST_AT_ONCE then redis.call('HDEL', c.key, 'slots:' .. holder) end
    end
  end

  function verbs.pay(c)
    local r = c.r
    if r.fresh and r.existed then redis.call('UNLINK', c.entries) end
    sweep(c)
    set(r, 'serial', r.serial + 1)
    set(r, 'slots:' .. c.holder, (r.held[c.holder] or 0) + c.cost)
    redis.call('ZADD', c.entries, c.holder, text(r.serial) .. ':' .. text(c.cost))
    c.used = c.used + c.cost
  end

  function verbs.close(c, now)
    local life = close_counted(c, now, KEPT)
    if life then redis.call('PEXPIRE', c.entries, life) end
  end

  -- state returns remaining, retry_in and reset: nobody knows when a slot is given back.
  function verbs.state(c)
    return max(0, c.capacity - c.used), c.cost > c.capacity and NEVER or c.lost, c.lost
  end

  -- receipt returns no window, and the slot.
  function verbs.receipt(c) return 0, c.r.serial end

  -- back releases a slot, once, in whatever epoch.
  function verbs.back(b)
    local member = text(b.entry) .. ':' .. text(b.taken)
    local holder = redis.call('ZSCORE', b.entries, member)
    if not holder or tonumber(holder) ~= b.holder or b.tokens == 0 then return 0 end
    redis.call('ZREM', b.entries, member)
    local field = 'slots:' .. text(b.holder)
    if redis.call('HINCRBY', b.key, field, -b.taken) <= 0 then redis.call('HDEL', b.key, field) end
    if redis.call('ZCARD', b.entries) == 0 then redis.call('PEXPIRE', b.key, text(LEAST_LIFE / 1000)) end
    return b.taken
  end

  return verbs
end
