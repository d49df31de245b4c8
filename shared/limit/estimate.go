package limit

import "math/bits"

// Estimate returns how much of a sliding_window_counter is used: all of the current window's count, and of the previous one's
// the part that the last length still covers when into of the current one has passed, rounded up. (The approximation supposes
// that the previous window's cost came evenly; known from Cloudflare's "How we built rate limiting", 2017.) 0 ≤ into ≤ length.
func Estimate(previous, current Tokens, into, length Micros) Tokens {
	hi, lo := bits.Mul64(uint64(previous), uint64(length-into))
	whole, rest := bits.Div64(hi, lo, uint64(length))
	if rest > 0 {
		whole++
	}
	return current + Tokens(whole)
}

// EstimateFits returns how long it takes, from into, until the [Estimate] of what was counted so far is at most room; 0 where it
// is, [Never] where room is negative.
func EstimateFits(previous, current Tokens, into, length Micros, room Tokens) Micros {
	switch {
	case room < 0:
		return Never
	case current <= room:
		return max(0, weighsAtMost(previous, room-current, length)-into)
	default: // in the next window, whose previous one is this
		return length - into + weighsAtMost(current, room, length)
	}
}

// weighsAtMost returns how far into a window the previous one's count weighs at most room.
func weighsAtMost(previous, room Tokens, length Micros) Micros {
	if previous <= room {
		return 0
	}
	return length - Micros(mulDiv(uint64(room), uint64(length), uint64(previous)))
}
