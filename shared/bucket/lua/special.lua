-- What of a charge is not of a plain token bucket.

-- special reads what is not of a plain token bucket: its algorithm, longest delay (µs), the bounds of a fixed window (µs, four),
-- the ban (denials, within and for, µs; 0: none), denials from memory, and the rule: the window's length (µs), and a name.
-- next_key is the position of its first further key; it returns that of the next charge's. extra is this file's functions.
local function special(c, next_key, extra)
  local n = {string.match(c.special, '^(%d) ' .. string.rep('(%d+) ', 9) .. '(.*)$')}
  c.extra, c.algorithm, c.delay, c.rule = extra, tonumber(n[1]), tonumber(n[2]), n[11]
  c.bounds = {tonumber(n[3]), tonumber(n[4]), tonumber(n[5]), tonumber(n[6])}
  c.span = tonumber(string.match(c.rule, '^%d+') or 0)
  if c.algorithm > 0 then
    extra[c.algorithm] = extra[c.algorithm] or verbs_of(c.algorithm)
    c.counts, c.slots = extra[c.algorithm], c.algorithm == SLOTS
  end
  if c.algorithm == LOG or c.slots then c.entries, next_key = KEYS[next_key], next_key + 1 end
  if c.slots then c.holders, c.holder, next_key = KEYS[next_key], ARGV[7], next_key + 1 end
  if n[7] ~= '0' then
    c.ban = {
      key = KEYS[next_key], denials = tonumber(n[7]), within = tonumber(n[8]), period = tonumber(n[9]), more = tonumber(n[10]),
    }
    next_key = next_key + 1
  end
  return next_key
end

-- stops tells what keeps c from being looked at: its windows are not those of the clock, or its holder is gone.
local function stops(c, i, now)
  if c.algorithm == FIXED_WINDOW and (now < c.bounds[1] or now >= c.bounds[4]) then return {-3, now} end
  if c.slots and not holds(c.holders, c.holder, now) then return {-4, i} end
end

-- counted_state is state where c counts.
local function counted_state(reply, c, now)
  local n = #reply
  local remaining, retry, reset = c.counts.state(c, now)
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = c.lacks and 1 or 0, remaining, 0, 0, -1
  reply[n + 6], reply[n + 7], reply[n + 8], reply[n + 9] = retry, -1, 1, 0
  reply[n + 10], reply[n + 11] = reset, c.banned
end

return {special = special, stops = stops, state = counted_state, queue = queue, stand = stand, see_ban = see_ban, deny = deny}
