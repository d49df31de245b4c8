-- block refuses an identity, or changes its block, and announces it.
-- KEYS: the blocks.
-- ARGV: server id, id, for how long (µs; 0: until it is removed), sealed identity, reason, most.
-- Reply: {1}, or {0}: there are too many.
-- A block is "SINCE UNTIL LENGTH:SEALED REASON"; what ended is forgotten where there are too many.

local now = clock()
local function ended(value)
  local ends = tonumber(string.match(value, '^%d+ (%d+) '))
  return ends > 0 and ends <= now
end

if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[6]) then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if ended(all[i + 1]) then redis.call('HDEL', KEYS[1], all[i]) end
  end
  if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[6]) then return {0} end
end
local period = tonumber(ARGV[3])
local ends = period > 0 and now + period or 0
redis.call('HSET', KEYS[1], ARGV[2], text(now) .. ' ' .. text(ends) .. ' ' .. #ARGV[4] .. ':' .. ARGV[4] .. ' ' .. ARGV[5])
redis.call('PUBLISH', 'annona:1:blocks', ARGV[2])
return {1}
