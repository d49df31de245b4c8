package limittest

import (
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// FixedWindow admits N in each window.
type FixedWindow struct {
	N      limit.Tokens
	Window limit.Window

	start time.Time // of the latest window that was charged
	used  limit.Tokens
}

// Take asks for cost at an instant since 1970. A clock that goes back does not reopen an older window.
func (f *FixedWindow) Take(at limit.Micros, cost limit.Tokens) Answer {
	now := time.UnixMicro(int64(at)).UTC()
	start, used := f.start, f.used
	if current := f.Window.Start(now); current.After(start) {
		start, used = current, 0
	}
	a := Answer{Admitted: cost == 0 || used+cost <= f.N}
	ends := limit.Micros(f.Window.Next(start).Sub(now).Microseconds())
	switch {
	case a.Admitted && cost > 0:
		used += cost
		f.start, f.used = start, used
	case cost > f.N:
		a.RetryIn = limit.Never
	case !a.Admitted:
		a.RetryIn = ends
	}
	if used > 0 {
		a.Reset = ends
	}
	a.Remaining = max(0, f.N-used)
	return a
}

// ID returns the start of the window that was charged last: what a give-back names.
func (f *FixedWindow) ID() limit.Micros { return limit.Micros(f.start.UnixMicro()) }

// GiveBack gives back tokens that were taken in the window of that id; it returns what was credited, nothing once another
// window was charged.
func (f *FixedWindow) GiveBack(id limit.Micros, tokens limit.Tokens) limit.Tokens {
	if id != f.ID() {
		return 0
	}
	tokens = min(tokens, f.used)
	f.used -= tokens
	return tokens
}

// Log admits N in any (t − Length, t]: an entry exactly Length old is out.
type Log struct {
	N      limit.Tokens
	Length limit.Micros

	mark    limit.Micros // of the latest admission
	entries []Taken      // all that were ever admitted, in order
}

// Take asks for cost at an instant. A clock that goes back before an admission stands still there.
func (l *Log) Take(at limit.Micros, cost limit.Tokens) Answer {
	now := max(l.mark, at)
	a := Answer{Admitted: cost == 0 || l.used(now)+cost <= l.N}
	switch {
	case a.Admitted && cost > 0:
		l.mark, l.entries = now, append(l.entries, Taken{now, cost})
	case cost > l.N:
		a.RetryIn = limit.Never
	case !a.Admitted:
		a.RetryIn = l.falls(now, l.N-cost) - at
	}
	if l.used(now) > 0 {
		a.Reset = l.falls(now, 0) - at
	}
	a.Remaining = max(0, l.N-l.used(now))
	return a
}

// used is what counts at an instant.
func (l *Log) used(at limit.Micros) limit.Tokens {
	var used limit.Tokens
	for _, e := range l.entries {
		if e.At > at-l.Length {
			used += e.Cost
		}
	}
	return used
}

// falls returns when, from an instant on, no more than that is used.
func (l *Log) falls(from limit.Micros, most limit.Tokens) limit.Micros {
	for _, e := range l.entries {
		if at := e.At + l.Length; at >= from && l.used(at) <= most {
			return at
		}
	}
	return from
}

// GiveBack gives back tokens of the take that was the i-th to be charged; it returns what was credited, nothing once another
// was charged to which that one did not count.
func (l *Log) GiveBack(i int, tokens limit.Tokens) limit.Tokens {
	e := &l.entries[i]
	if e.At <= l.mark-l.Length {
		return 0
	}
	tokens = min(tokens, e.Cost)
	e.Cost -= tokens
	return tokens
}

// Counter admits N by [limit.Estimate].
type Counter struct {
	N      limit.Tokens
	Length limit.Micros

	latest  limit.Micros                  // the start of the latest window that was charged
	windows map[limit.Micros]limit.Tokens // what was admitted, by the window's start
}

// Take asks for cost at an instant. A clock that goes back before a window that was charged stands still at its start.
func (c *Counter) Take(at limit.Micros, cost limit.Tokens) Answer {
	if c.windows == nil {
		c.windows = map[limit.Micros]limit.Tokens{}
	}
	now := max(c.latest, at)
	a := Answer{Admitted: cost == 0 || c.estimate(now)+cost <= c.N}
	switch {
	case a.Admitted && cost > 0:
		c.latest = now / c.Length * c.Length
		c.windows[c.latest] += cost
	case cost > c.N:
		a.RetryIn = limit.Never
	case !a.Admitted:
		a.RetryIn = c.falls(now, c.N-cost) - at
	}
	if c.estimate(now) > 0 {
		a.Reset = c.falls(now, 0) - at
	}
	a.Remaining = max(0, c.N-c.estimate(now))
	return a
}

// ID returns the start of the window that was charged last.
func (c *Counter) ID() limit.Micros { return c.latest }

func (c *Counter) estimate(at limit.Micros) limit.Tokens {
	start := at / c.Length * c.Length
	return limit.Estimate(c.windows[start-c.Length], c.windows[start], at-start, c.Length)
}

// falls returns when, from an instant on, the estimate is no more than that: it never rises on its own, so the instant is found
// by halving.
func (c *Counter) falls(from limit.Micros, most limit.Tokens) limit.Micros {
	low, high := from, from+2*c.Length
	for low < high {
		middle := low + (high-low)/2
		if c.estimate(middle) <= most {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// GiveBack gives back tokens that were taken in the window of that id; it returns what was credited, nothing once another
// window was charged.
func (c *Counter) GiveBack(id limit.Micros, tokens limit.Tokens) limit.Tokens {
	if id != c.ID() {
		return 0
	}
	tokens = min(tokens, c.windows[id])
	c.windows[id] -= tokens
	return tokens
}
