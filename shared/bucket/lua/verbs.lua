-- verbs_of returns the functions of an algorithm that counts.
local function verbs_of(algorithm)
  if algorithm == LOG then return log_verbs() end
  if algorithm == SLOTS then return slots_verbs() end
  return window_verbs()
end
