-- epoch begins a new epoch of one shard, if the caller saw the one that is there (compare-and-set).
-- KEYS: the shard's record.
-- ARGV: server id, epoch that the caller saw ('' for none), id of the new one, demoted_for (µs), reason, age (µs): 0,
--   or how much longer ago nothing had been spent yet.
-- Reply: {1}, or {0}: another caller began one before.

local found = redis.call('HGET', KEYS[1], 'epoch') or ''
if found ~= ARGV[2] then return {0} end
redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'server', ARGV[1], 'birth', text(clock() - tonumber(ARGV[6])), 'demoted', ARGV[4], 'reason', ARGV[5],
  'heard_at', '0')
return {1}
