-- Put before take: what of a charge is not of a plain token bucket.

-- special reads what is not of a plain token bucket: its algorithm, longest delay (µs), the bounds of a fixed window (µs, four),
-- the ban (denials, within and for, µs; 0: none), denials from memory, and the rule: the window's length (µs), and a name.
-- next_key is the position of its first further key; it returns that of the next charge's.
local function special(c, next_key, verbs)
  local n = {string.match(c.special, '^(%d) ' .. string.rep('(%d+) ', 9) .. '(.*)$')}
  c.algorithm, c.delay, c.rule = tonumber(n[1]), tonumber(n[2]), n[11]
  c.bounds = {tonumber(n[3]), tonumber(n[4]), tonumber(n[5]), tonumber(n[6])}
  c.span = tonumber(string.match(c.rule, '^%d+') or 0)
  if c.algorithm > 0 then
    if not verbs[c.algorithm] then verbs[c.algorithm] = verbs_of(c.algorithm) end
    c.counts = verbs[c.algorithm]
  end
  if c.algorithm == LOG or c.algorithm == SLOTS then c.entries, next_key = KEYS[next_key], next_key + 1 end
  if c.algorithm == SLOTS then c.holders, c.holder, next_key = KEYS[next_key], ARGV[7], next_key + 1 end
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
  if c.algorithm == SLOTS and not holds(c.holders, c.holder, now) then return {-4, i} end
end

