-- gateways lists the gateways heard of lately.
-- KEYS: the gateways.
-- ARGV: server id, silence after which one is left out (µs).
-- Reply: {1, then 4 a gateway: id, heard how long ago (µs), revision, fingerprint}.

local now, reply = clock(), {1}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local heard_at, revision, fingerprint = string.match(all[i + 1], '^(%d+) (%d+) (%S*)$')
  local ago = now - tonumber(heard_at or 0)
  if heard_at and ago <= tonumber(ARGV[2]) then
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = all[i], max(0, ago), revision, fingerprint
  end
end
return reply
