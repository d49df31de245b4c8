-- Bans of a bucket's key, kept in its record. A ban ends by the store's clock, and after a step of that never
-- later than its whole time from then.

local MOST_BANS = 1000 -- that a shard lists: MaxBans

-- list_ban puts a ban on the shard's list. Where there are too many, those that end first are not listed, though they hold.
local function list_ban(key, hex, ends, now)
  redis.call('ZADD', key, text(ends), hex)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', text(now))
  redis.call('ZREMRANGEBYRANK', key, 0, -MOST_BANS - 1)
end

-- deny counts so many denials of c towards its ban.
local function deny(c, count, now)
  local r, ban = c.r, c.ban
  if now - ban.since >= ban.within or now < ban.since then ban.since, ban.count = now, 0 end
  ban.count = ban.count + count
  if ban.count >= ban.denials then
    ban.since, ban.count, c.banned = 0, 0, ban.period
    set(r, 'banned_until', now + ban.period)
    list_ban(ban.key, string.match(c.key, '(%x+)$'), now + ban.period, now)
  end
  set(r, 'denials', ban.count)
  set(r, 'denied_since', ban.since)
  set(r, 'keep_until', min(NEVER, max(r.keep_until, now + max(ban.within, c.banned))))
end

-- see_ban reads c's ban, and counts what was denied from memory. A record that is made anew keeps it.
local function see_ban(c, now)
  local r, ban = c.r, c.ban
  local v = redis.call('HMGET', c.key, 'banned_until', 'denials', 'denied_since')
  local ends = tonumber(v[1] or 0)
  ban.count, ban.since = tonumber(v[2] or 0), tonumber(v[3] or 0)
  c.banned = max(0, min(ban.period, ends - now))
  if r.existed and r.fresh and ends > 0 then set(r, 'banned_until', ends) end
  if ban.more > 0 and c.banned == 0 then deny(c, ban.more, now) end
end

