package limittest

import "github.com/annona-gateway/annona/shared/limit"

// Bucket is a token bucket; with a MaxDelay it is a leaky bucket: who finds it empty waits for its turn, in order, up to that.
type Bucket struct {
	Budget   limit.Budget
	MaxDelay limit.Micros

	begun  bool
	level  limit.Micro // below 0: what those who wait have taken already
	mark   limit.Micros
	places []place // of all that were ever admitted, in the order of their turns
}

// place is a request that was admitted, and its turn.
type place struct {
	turn limit.Micros
	cost limit.Micro
}

// Take asks for cost at an instant; the first finds a full bucket. A clock that goes back before an admission stands still there.
func (b *Bucket) Take(at limit.Micros, cost limit.Tokens) Answer {
	level, mark := b.refilled(at)
	now := max(at, mark)
	least := -brings(b.Budget, b.MaxDelay)
	after := level - cost.Micro()
	a := Answer{Admitted: cost == 0 || cost <= b.Budget.Capacity && after >= least}
	switch {
	case a.Admitted && cost > 0:
		if after < 0 {
			a.Delay = max(0, mark+b.Budget.TimeTo(-after)-at)
		}
		b.begun, b.level, b.mark = true, after, mark
		b.places = append(b.places, place{max(now, at+a.Delay), cost.Micro()})
		level = after
	case cost > b.Budget.Capacity || b.Budget.Rate == 0 && !a.Admitted:
		a.RetryIn = limit.Never
	case !a.Admitted:
		a.RetryIn = mark + b.Budget.TimeTo(least-after) - at
	}
	a.Remaining = max(0, level.Whole())
	a.Reset = b.Budget.TimeTo(b.Budget.Capacity.Micro() - level)
	return a
}

// refilled returns what the bucket holds, and until when that is reckoned.
func (b *Bucket) refilled(at limit.Micros) (limit.Micro, limit.Micros) {
	if !b.begun {
		return b.Budget.Capacity.Micro(), at
	}
	level, took := b.Budget.Refill(b.level, at-b.mark)
	return level, b.mark + took
}

// GiveBack gives back the place of the i-th request that was admitted, before its turn; it returns what was credited. Those
// behind it keep their turns, for they were told them. Of its tokens those are not credited that the bucket cannot hold until then:
// with a capacity of one cost all, unless it was the last in the queue.
func (b *Bucket) GiveBack(at limit.Micros, i int) limit.Micro {
	b.level, b.mark = b.refilled(at)
	p := &b.places[i]
	if p.turn <= max(at, b.mark) {
		return 0
	}
	credit := max(0, min(p.cost, (b.Budget.Capacity.Micro()-b.highest(i)).Whole().Micro()))
	p.cost -= credit
	b.level += credit
	return credit
}

// highest returns the most that the bucket will hold at the turn of anyone behind the i-th, if nobody else takes.
func (b *Bucket) highest(i int) limit.Micro {
	level := b.level // and what those whose turn is still to come have taken already
	for _, p := range b.places {
		if p.turn > b.mark {
			level += p.cost
		}
	}
	highest, at := limit.Micro(0), b.mark
	for j, p := range b.places {
		if p.turn <= b.mark {
			continue
		}
		level = min(b.Budget.Capacity.Micro(), level+brings(b.Budget, p.turn-at))
		if at = p.turn; j > i {
			highest = max(highest, level)
		}
		level -= p.cost
	}
	return highest
}
