// Package limit computes budgets: tokens, rates, their parts by region, refill and fair division, in integers and without a clock.
//
// Every amount that crosses a package is a whole [Tokens] or a [Micro] (a millionth of a token); every duration is a whole
// number of [Micros] (microseconds). Nothing here reads a clock, blocks or allocates more than its answer, so the allocator's
// ledger, the bucket scripts' Go model and the simulator share one arithmetic.
package limit

import (
	"fmt"
	"math/bits"
)

// Tokens counts whole tokens: the right to that many units of admission.
type Tokens int64

// Micro counts micro-tokens: millionths of a token, the unit in which a bucket keeps its level.
type Micro int64

// Rate is a refill in micro-tokens per second.
type Rate int64

// Micros is a duration, or an instant of one clock, in microseconds.
type Micros int64

const (
	// MicroPerToken is how many micro-tokens make a token.
	MicroPerToken = 1_000_000
	// MicrosPerSecond is how many microseconds make a second.
	MicrosPerSecond = 1_000_000
	// MaxTokens is the largest capacity of a token bucket; in micro-tokens it stays below 2⁵³, which Lua's numbers need.
	MaxTokens Tokens = 1_000_000_000
	// MaxRate is the largest refill: MaxTokens a second.
	MaxRate Rate = Rate(MaxTokens) * MicroPerToken
	// Whole is a fraction of one, in parts per million.
	Whole = 1_000_000
	// Never is how long something takes that no refill brings about.
	Never Micros = 1 << 52
)

// Micro returns t in micro-tokens.
func (t Tokens) Micro() Micro { return Micro(t) * MicroPerToken }

// Whole returns the whole tokens in m, rounded down; a debt rounds away from zero.
func (m Micro) Whole() Tokens {
	whole := m / MicroPerToken
	if m%MicroPerToken < 0 {
		whole--
	}
	return Tokens(whole)
}

// Up returns the fewest whole tokens that hold m.
func (m Micro) Up() Tokens { return -(-m).Whole() }

// Budget is a token bucket's numbers, or those of a part of one: Capacity C and refill Rate R.
type Budget struct {
	Capacity Tokens
	Rate     Rate
}

// String writes b as "200 tokens filling at 1.666666/s".
func (b Budget) String() string {
	return fmt.Sprintf("%d tokens filling at %d.%06d/s", b.Capacity, b.Rate/MicroPerToken, b.Rate%MicroPerToken)
}

// Min returns the smaller of each number of b and c. A record whose numbers change is brought up to date with it, so that
// a change never adds a token (PROTOCOL.md A2).
func (b Budget) Min(c Budget) Budget {
	return Budget{Capacity: min(b.Capacity, c.Capacity), Rate: min(b.Rate, c.Rate)}
}

// Refill returns what level becomes after elapsed, at most full, and the part of elapsed that the credited amount took: the
// caller advances its mark by took, which keeps the remainder of the division for later. A negative elapsed changes nothing.
// A level at or above full takes all of elapsed, for a full bucket gains nothing by waiting.
func (b Budget) Refill(level Micro, elapsed Micros) (after Micro, took Micros) {
	full := b.Capacity.Micro()
	if elapsed <= 0 {
		return level, 0
	}
	if level >= full {
		return level, elapsed
	}
	if toFull := b.TimeTo(full - level); elapsed >= toFull && toFull < Never {
		return full, elapsed
	}
	credit := Micro(mulDiv(uint64(elapsed), uint64(b.Rate), MicrosPerSecond))
	return level + credit, b.TimeTo(credit)
}

// Accrued returns the whole tokens that elapsed brings and the time that those took, for a pool, which counts in whole tokens.
func (b Budget) Accrued(elapsed Micros) (whole Tokens, took Micros) {
	if elapsed <= 0 || b.Rate <= 0 {
		return 0, 0
	}
	// Clamped to the time to full, which also keeps the product's quotient in range.
	elapsed = min(elapsed, b.TimeTo(b.Capacity.Micro())+1)
	whole = Tokens(mulDiv(uint64(elapsed), uint64(b.Rate), MicrosPerSecond*MicroPerToken))
	return whole, b.TimeTo(whole.Micro())
}

// TimeTo returns how long the refill takes to bring need, rounded up; [Never] where there is no refill.
func (b Budget) TimeTo(need Micro) Micros {
	switch {
	case need <= 0:
		return 0
	case b.Rate <= 0:
		return Never
	}
	hi, lo := bits.Mul64(uint64(need), MicrosPerSecond)
	if hi >= uint64(b.Rate) {
		return Never
	}
	quotient, remainder := bits.Div64(hi, lo, uint64(b.Rate))
	if remainder > 0 {
		quotient++
	}
	return Micros(min(quotient, uint64(Never)))
}

// mulDiv returns ⌊a·b/c⌋ with a 128-bit product. The quotient must fit 64 bits, as it does for every budget and time in range.
func mulDiv(a, b, c uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	quotient, _ := bits.Div64(hi, lo, c)
	return quotient
}
