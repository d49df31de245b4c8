-- A token bucket with a longest delay is a queue. Who finds it empty takes it below, and waits for the turn at
-- which the refill has brought that.

-- queue lets c's cost wait for its turn: for when a bucket that is taken below empty will have it.
local function queue(c, now)
  local wait = max(0, time_to(c.cost * MICRO - c.level, c.rate) + c.mark - now)
  if c.cost <= c.capacity and wait <= c.delay then c.wait, c.lacks, c.lease = wait, false, 0 end
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
