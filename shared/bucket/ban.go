package bucket

import "time"

// MaxBans is how many bans one shard lists; where there are more, those that end first are not listed, though they hold.
const MaxBans = 1000

// Ban bans a bucket's key after Denials denied requests within Within of the first of them, for For. It is part of the take: a
// request that finds a ban is charged nowhere.
type Ban struct {
	Denials     int // 1 to 10^6
	Within, For time.Duration
}

// BannedKey is one ban as an operator sees it.
type BannedKey struct {
	Ref
	Policy string
	Sealed []byte
	Left   time.Duration // how long it still lasts
}
