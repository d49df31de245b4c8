-- A token bucket with a longest delay is a queue. Who finds it empty takes it below, and waits for the turn at
-- which the refill has brought that.

-- lowest is the level that c's bucket may be taken to: what the refill brings in the longest delay, below 0.
-- NOTE: where that is less than 2^52, so is each product.
local function lowest(c)
  if c.delay >= time_to(NEVER, c.rate) then return -NEVER end
  return -(c.delay * floor(c.rate / MICRO) + floor(c.delay / MICRO) * (c.rate % MICRO)
    + floor((c.delay % MICRO) * (c.rate % MICRO) / MICRO))
end

-- queue lets c's cost wait for its turn: for when a bucket that is taken below empty will have it.
local function queue(c, now)
  c.least = lowest(c)
  local after = c.level - c.cost * MICRO
  if c.cost > c.capacity or after < c.least then return end
  c.wait, c.lacks, c.lease = max(0, time_to(-after, c.rate) + c.mark - now), false, 0
end

-- stand notes a place in the queue (E5): the last one's turn, and the largest cost that waits. Where one that others stand
-- behind is given back, their bucket fills up to that cost at their turn.
local function stand(c, now)
  local r = c.r
  local v = redis.call('HMGET', c.key, 'turn', 'largest')
  local standing = tonumber(v[1] or 0) > now
  set(r, 'turn', now + c.wait)
  set(r, 'largest', max(standing and tonumber(v[2]) or 0, c.cost * MICRO))
  if not standing then set(r, 'holes', 0) end
end
