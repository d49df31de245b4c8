-- epoch begins a new epoch of one shard, if the caller saw the one that is there and its tick (compare-and-set; E2, E3).
-- KEYS: the shard's record, its holders.
-- ARGV: server id, epoch that the caller saw ('' for none), id of the new one, demoted_for (µs), reason, tick that the caller
--   saw ('' where it does not matter), by how much the caller saw the clock step forth (µs; 0: not, or nobody looked).
-- Reply: {1}, or {0}: another caller began one before, or wrote a tick.
--
-- A record's life is at least 60 s and twice the time to full. So where at most SAFE of store time passed unwatched, a bucket
-- whose record expired in it was full anyway, however much of it was a step of the clock.

local SAFE = LEAST_LIFE / 2

local v = redis.call('HMGET', KEYS[1], 'epoch', 'tick', 'known', 'stepped', 'step')
if (v[1] or '') ~= ARGV[2] then return {0} end
if ARGV[6] ~= '' and (v[2] or '0') ~= ARGV[6] then return {0} end
local now, reason, step = clock(), ARGV[5], tonumber(ARGV[7])
local tick, known, stepped = tonumber(v[2] or 0), tonumber(v[3] or 0), tonumber(v[4] or 0)
local gap = now - tick

-- later moves an instant of the old epoch so that its age is what it was at the last tick: without the gap.
local function later(at) return at > 0 and max(1, min(now, at + gap)) or 0 end

if reason == 'vouched' then
  known = 0
elseif reason ~= 'clock' then
  known = now + tonumber(ARGV[4])
elseif gap > SAFE then
  known = now
elseif known > 0 then
  known = max(1, known + gap)
end
if step > SAFE then stepped = now else stepped = later(stepped) end

local writes = {
  'epoch', ARGV[3], 'server', ARGV[1], 'birth', text(now), 'demoted', ARGV[4], 'reason', reason, 'known', text(known),
  'tick', text(now), 'heard_at', '0', 'before', v[1] or '', 'until', text(tick <= now and tick or 0), 'stepped', text(stepped),
  'step', text(max(tonumber(v[5] or 0), step)),
}
local all = v[1] and redis.call('HGETALL', KEYS[1]) or {}
for i = 1, #all, 2 do
  local e = string.sub(all[i], 1, 6) == 'limit:' and read_limit(all[i + 1])
  if e then
    if e.longer_at > 0 and tick - e.longer_at >= time_to_full(e) then e.longer_at = 0 end
    e.at, e.longer_at, e.seen = later(e.at), later(e.longer_at), now
    redis.call('HSET', KEYS[1], all[i], limit_text(e))
  end
end
redis.call('HSET', KEYS[1], unpack(writes))
-- Who held slots at the last tick goes on for a whole period: nobody could renew since. Who did not is gone for good.
local holders = redis.call('ZRANGE', KEYS[2], '0', '-1', 'WITHSCORES')
for i = 1, #holders, 2 do
  if v[1] and tick - tonumber(holders[i + 1]) < HOLDER_LASTS then
    redis.call('ZADD', KEYS[2], text(now), holders[i])
  else
    redis.call('ZREM', KEYS[2], holders[i])
  end
end
return {1}
