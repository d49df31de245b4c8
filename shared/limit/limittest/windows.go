package limittest

import (
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// FixedWindow admits N in each window.
type FixedWindow struct {
	N      limit.Tokens
	Window limit.Window

	start time.Time // of the latest window that was seen
	used  limit.Tokens
}

// Take asks for cost at an instant since 1970. A clock that goes back does not reopen an older window.
func (f *FixedWindow) Take(at limit.Micros, cost limit.Tokens) Answer {
	now := time.UnixMicro(int64(at)).UTC()
	if start := f.Window.Start(now); start.After(f.start) {
		f.start, f.used = start, 0
	}
	a := Answer{Admitted: cost == 0 || f.used+cost <= f.N}
	ends := limit.Micros(f.Window.Next(f.start).Sub(now).Microseconds())
	switch {
	case a.Admitted:
		f.used += cost
	case cost > f.N:
		a.RetryIn = limit.Never
	default:
		a.RetryIn = ends
	}
	if f.used > 0 {
		a.Reset = ends
	}
	a.Remaining = max(0, f.N-f.used)
	return a
}

// ID returns the start of the window that the last take was in: what a give-back names.
func (f *FixedWindow) ID() limit.Micros { return limit.Micros(f.start.UnixMicro()) }

// GiveBack gives back tokens that were taken in the window of that id; it returns what was credited, nothing once another
// window was seen.
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

	mark    limit.Micros // the latest instant that was seen
	entries []Taken      // all that were ever admitted, in order
}

// Take asks for cost at an instant. A clock that goes back stands still.
func (l *Log) Take(at limit.Micros, cost limit.Tokens) Answer {
	l.mark = max(l.mark, at)
	a := Answer{Admitted: cost == 0 || l.used(l.mark)+cost <= l.N}
	switch {
	case a.Admitted:
		l.entries = append(l.entries, Taken{l.mark, cost})
	case cost > l.N:
		a.RetryIn = limit.Never
	default:
		a.RetryIn = l.falls(l.N-cost) - at
	}
	if l.used(l.mark) > 0 {
		a.Reset = l.falls(0) - at
	}
	a.Remaining = max(0, l.N-l.used(l.mark))
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

// falls returns when no more than that is used.
func (l *Log) falls(most limit.Tokens) limit.Micros {
	for _, e := range l.entries {
		if at := e.At + l.Length; at >= l.mark && l.used(at) <= most {
			return at
		}
	}
	return l.mark
}

// GiveBack gives back tokens of the take that was the i-th to be admitted, of cost 0 too; it returns what was credited.
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

	mark    limit.Micros
	windows map[limit.Micros]limit.Tokens // what was admitted, by the window's start
}

// Take asks for cost at an instant. A clock that goes back stands still.
func (c *Counter) Take(at limit.Micros, cost limit.Tokens) Answer {
	if c.windows == nil {
		c.windows = map[limit.Micros]limit.Tokens{}
	}
	c.mark = max(c.mark, at)
	start := c.ID()
	a := Answer{Admitted: cost == 0 || c.estimate(c.mark)+cost <= c.N}
	switch {
	case a.Admitted:
		c.windows[start] += cost
	case cost > c.N:
		a.RetryIn = limit.Never
	default:
		a.RetryIn = c.falls(c.N-cost) - at
	}
	if c.estimate(c.mark) > 0 {
		a.Reset = c.falls(0) - at
	}
	a.Remaining = max(0, c.N-c.estimate(c.mark))
	return a
}

// ID returns the start of the window that the last take was in.
func (c *Counter) ID() limit.Micros { return c.mark / c.Length * c.Length }

func (c *Counter) estimate(at limit.Micros) limit.Tokens {
	start := at / c.Length * c.Length
	return limit.Estimate(c.windows[start-c.Length], c.windows[start], at-start, c.Length)
}

// falls returns when the estimate is no more than that: it never rises on its own, so the instant is found by halving.
func (c *Counter) falls(most limit.Tokens) limit.Micros {
	low, high := c.mark, c.ID()+2*c.Length
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
// window was seen.
func (c *Counter) GiveBack(id limit.Micros, tokens limit.Tokens) limit.Tokens {
	if id != c.ID() {
		return 0
	}
	tokens = min(tokens, c.windows[id])
	c.windows[id] -= tokens
	return tokens
}
