-- mirror reads what the agents mirrored; it changes nothing.
-- KEYS: the mirror.
-- ARGV: server id.
-- Reply: {1, policy_revision, policy, regions_revision, regions, round_trip (µs)}, nil for what is not there.

local v = redis.call('HMGET', KEYS[1], 'policy_revision', 'policy', 'regions_revision', 'regions', 'round_trip')
return {1, v[1], v[2], v[3], v[4], v[5]}
