-- Put before the scripts that know a policy's numbers: how they change (A3). Per policy and variant the shard's record holds
-- an entry: the numbers in force, the policy document's revision that brought them, and which change of the shard's that was,
-- when.

local KEEP_ENTRY = 3600000000 -- µs: how exactly an entry knows its last take, and how long it is kept at least after that

-- limit_field names an entry; the length keeps policies and variants apart whatever they are called.
local function limit_field(policy, variant) return 'limit:' .. #policy .. ':' .. policy .. ':' .. variant end

-- read_limit reads an entry; nil where there is none.
local function read_limit(value)
  if not value then return nil end
  local count, before, at, longer_at, room, revision, capacity, rate, leased, seen, rule =
    string.match(value, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ([01]) (%d+) ?(.*)$')
  return {
    count = tonumber(count), before = tonumber(before), at = tonumber(at), longer_at = tonumber(longer_at),
    room = tonumber(room), revision = tonumber(revision), capacity = tonumber(capacity), rate = tonumber(rate),
    leased = leased == '1', seen = tonumber(seen), rule = rule,
  }
end

-- limit_text writes an entry.
local function limit_text(e)
  return string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f %d %.0f', e.count, e.before, e.at, e.longer_at, e.room,
    e.revision, e.capacity, e.rate, e.leased and 1 or 0, e.seen) .. (e.rule == '' and '' or ' ' .. e.rule)
end

-- time_to_full is how long an empty bucket of these numbers takes to be full: of those that count, their window.
local function time_to_full(numbers)
  if numbers.rule ~= '' then return tonumber(string.match(numbers.rule, '^%d+')) end
  return time_to(numbers.capacity * MICRO, numbers.rate)
end
