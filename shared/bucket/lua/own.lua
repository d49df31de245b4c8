-- Put before take.

-- load_own reads what a take of a bucket without a pool needs of its record: two thirds of it. What is left of a lease, where the
-- policy was of scope global before, lapses as it would.
local function load_own(key)
  local v = redis.call('HMGET', key, 'epoch', 'level', 'mark', 'capacity', 'rate', 'left', 'expires_at', 'lapsed', 'ttl', 'cost',
    'revision', 'variant', 'changes', 'open_until', 'keep_until', 'dry_until', 'pool_level', 'pool_at')
  return {
    writes = {}, epoch = v[1] or nil,
    level = tonumber(v[2] or 0), mark = tonumber(v[3] or 0), capacity = tonumber(v[4] or 0), rate = tonumber(v[5] or 0),
    left = tonumber(v[6] or 0), expires_at = tonumber(v[7] or 0), lapsed = tonumber(v[8] or 0), ttl = tonumber(v[9] or 0),
    cost = tonumber(v[10] or 0), revision = v[11] or '', variant = v[12] or '', changes = tonumber(v[13] or 0),
    open_until = tonumber(v[14] or 0), keep_until = tonumber(v[15] or 0),
    dry_until = tonumber(v[16] or 0), pool_level = tonumber(v[17] or 0), pool_at = tonumber(v[18] or 0),
    spent = 0, waiting = 0, waiting_until = 0, deadline = 0, filled = 0, told_at = 0, denied = 0, fits_at = 0, dry_cost = 0,
  }
end
