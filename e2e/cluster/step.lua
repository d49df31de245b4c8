-- step moves every instant that a region's Redis keeps. What is not an instant stays.
-- ARGV: by how much (µs).
local by = tonumber(ARGV[1])
local function move(key, name)
  local at = tonumber(redis.call('HGET', key, name))
  if at and at > 0 then redis.call('HSET', key, name, string.format('%.0f', at + by)) end
end
for _, key in ipairs(redis.call('KEYS', 'annona:1:{s*')) do
  if redis.call('TYPE', key).ok == 'hash' then
    for _, name in ipairs({'birth', 'known', 'tick', 'until', 'stepped', 'swept_at', 'mark', 'told_at', 'top_since'}) do move(key, name) end
    for _, name in ipairs(redis.call('HKEYS', key)) do
      if string.sub(name, 1, 6) == 'limit:' then
        local f = {}
        for word in string.gmatch(redis.call('HGET', key, name), '%S+') do f[#f + 1] = word end
        for _, i in ipairs({3, 4, 10}) do
          if tonumber(f[i]) > 0 then f[i] = string.format('%.0f', tonumber(f[i]) + by) end
        end
        redis.call('HSET', key, name, table.concat(f, ' '))
      end
    end
  end
end
return 1
