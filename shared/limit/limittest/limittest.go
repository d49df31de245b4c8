// Package limittest has a reference model of each algorithm: one key's limit in arithmetic so plain that one sees that it is
// right, however slow. Scripts and simulations are compared with it. A model keeps what it has to, not what is small: a log of
// all takes where two counters would do.
package limittest

import "github.com/annona-gateway/annona/shared/limit"

// Answer is what a model makes of a take.
type Answer struct {
	Admitted bool
	// Remaining is how many more tokens would be admitted at once; never negative.
	Remaining limit.Tokens
	// RetryIn is how long until the cost fits if nobody else takes: 0 where it was admitted, and for slots, of which nobody
	// knows when they are released; [limit.Never] where it never fits.
	RetryIn limit.Micros
	// Reset is how long until nothing is used any more, if nobody takes; 0 for slots.
	Reset limit.Micros
	// Delay is how long an admitted request waits for its turn.
	Delay limit.Micros
}

// Taken is one admission: when, and what it cost.
type Taken struct {
	At   limit.Micros
	Cost limit.Tokens
}

// Most returns the largest cost that was admitted in any (t − length, t].
func Most(all []Taken, length limit.Micros) limit.Tokens {
	var most limit.Tokens
	for _, last := range all {
		var sum limit.Tokens
		for _, taken := range all {
			if taken.At <= last.At && taken.At > last.At-length {
				sum += taken.Cost
			}
		}
		most = max(most, sum)
	}
	return most
}

// Excess returns by how much the cost admitted in any interval T, ends included, exceeds C + R·T; 0 where it never does.
func Excess(all []Taken, b limit.Budget) limit.Micro {
	var excess limit.Micro
	for _, first := range all {
		for _, last := range all {
			if last.At < first.At {
				continue
			}
			var sum limit.Micro
			for _, taken := range all {
				if taken.At >= first.At && taken.At <= last.At {
					sum += taken.Cost.Micro()
				}
			}
			excess = max(excess, sum-b.Capacity.Micro()-brings(b, last.At-first.At))
		}
	}
	return excess
}

// brings returns what b refills in elapsed, from below any capacity.
func brings(b limit.Budget, elapsed limit.Micros) limit.Micro {
	seconds, rest := elapsed/limit.MicrosPerSecond, elapsed%limit.MicrosPerSecond
	return limit.Micro(seconds)*limit.Micro(b.Rate) + limit.Micro(rest)*limit.Micro(b.Rate)/limit.MicrosPerSecond
}
