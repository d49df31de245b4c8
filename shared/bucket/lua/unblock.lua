-- unblock removes a block, and announces it.
-- KEYS: the blocks.
-- ARGV: server id, id.
-- Reply: {1}, or {0}: there is none.

local removed = redis.call('HDEL', KEYS[1], ARGV[2])
if removed == 1 then redis.call('PUBLISH', 'annona:1:blocks', ARGV[2]) end
return {removed}
