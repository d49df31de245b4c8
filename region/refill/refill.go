// Package refill plans one lease: when a region asks, for how much, what it settles and gives back, and when to look again.
//
// It is pure. It sees a bucket as the region's store showed it, with the store's own clock, and answers with a [Decision]; it
// reads no clock, sends nothing and remembers nothing, so any agent can plan any bucket and two that plan the same one decide alike.
//
// The tension is between three costs. A request that finds no token waits a round trip: so tokens are asked for ahead of
// demand. Tokens that lie here cannot serve another region: so no more than the demand of one [Horizon] is held, and what was
// not used for that long goes back. And every item is a message and a fact in the journal: so a lease that still lasts for the
// coming round trip is left alone, and a busy key needs a few items a second whatever its rate.
//
// What was spent but not yet settled still counts against the pool's cap, where it stops the pool's refill. Hence a lease that
// is spent by half is settled after one Horizon, not only at half of its life.
package refill

import "github.com/annona-gateway/annona/shared/limit"

// Horizon is the span that demand is measured over and that tokens are asked ahead for.
const Horizon limit.Micros = limit.MicrosPerSecond

const (
	// slack is what passes, besides the round trip, between a lease running low and its next grant: announcements come at most
	// every 50 ms, are coalesced, and the allocator commits in groups. Too small: requests wait; too large: more items.
	slack limit.Micros = 250_000
	// pace is the shortest time between two items that only ask ahead. A pool that gives a little at a time would otherwise be
	// asked once a round trip although nobody waits.
	pace limit.Micros = 200_000
	// soonest is the shortest time until the next look.
	soonest limit.Micros = 10_000
	// most bounds every amount and span read from a view, so that no product overflows: the largest limit there is.
	most = 1_000_000_000_000
)

// View is one bucket's lease as its store showed it. Instants are the store's clock, counters are cumulative in the session.
type View struct {
	Now limit.Micros
	// InFlight is true while the last item waits for its answer and its deadline has not passed.
	InFlight bool
	// AskedAt is when the last item was made, LastSpentAt when a lease token was last spent.
	AskedAt, LastSpentAt limit.Micros
	// The lease runs out at ExpiresAt; the pool has nothing before DryUntil.
	ExpiresAt, DryUntil limit.Micros
	// Waiting is the cost that requests wait for now, Cost the smallest useful grant.
	Left, Waiting, Cost limit.Tokens
	// Counters now, in the last item, and in the last item that was answered.
	Spent, Returned, Lapsed, Denied                 limit.Tokens
	AskedSpent, AskedDenied                         limit.Tokens
	AnsweredSpent, AnsweredReturned, AnsweredLapsed limit.Tokens
	// AskedDemand is the demand that the last item reported.
	AskedDemand limit.Micro
}

// Params are what holds for every bucket.
type Params struct {
	// TTL is a lease's life, RoundTrip the measured round trip to the allocator, Deadline when an unanswered item is given up.
	TTL, RoundTrip, Deadline limit.Micros
	// Spread is any number that differs by key; it spreads renewals that would else come together.
	Spread uint64
	// Draining is true when everything goes back.
	Draining bool
}

// Off as a [Decision]'s Due takes the bucket off the schedule: nothing is left to look after until it is announced again.
const Off limit.Micros = -1

// Decision says what to do about a bucket now.
//
// Invariant: 0 <= Return <= what is left; Want >= Waiting >= 0; nothing is both wanted and returned; an item that neither
// wants nor returns has something to settle or to renew.
type Decision struct {
	// Ask is true if an item is to be made now, with the amounts below.
	Ask bool
	// Want is Waiting and what is asked ahead of demand; Return is given back.
	Want, Waiting, Return limit.Tokens
	// Demand is lease tokens spent and cost denied over the last Horizon. It is in micro-tokens, for it is the memory of the
	// next estimate: rounded to tokens, a demand of a few a second would be forgotten from one item to the next.
	Demand limit.Micro
	// Due is how long until the next look, counted as if an item that is to be made now is answered in time; or Off.
	Due limit.Micros
}

// Plan decides about the bucket in v.
func Plan(v View, p Params) Decision {
	v, p = v.sane(), p.sane()
	estimate := v.demand()
	switch {
	case v.InFlight:
		return Decision{Demand: estimate, Due: max(v.AskedAt+p.Deadline-v.Now, soonest)}
	case p.Draining:
		return v.drain(p, estimate)
	}
	demand := estimate.Up()
	d := Decision{Demand: estimate, Waiting: v.Waiting, Return: v.surplus(p, demand)}
	ahead := max(demand-v.Left-v.Waiting, 0)
	if d.Return == 0 {
		d.Want = v.Waiting + ahead
	}
	wanted := v.wantedAt(p, demand, ahead)
	d.Ask = d.Return > 0 || wanted <= v.Now || v.settleAt(p) <= v.Now
	if d.Ask {
		d.Due = v.lookAfter(p)
		return d
	}
	d.Want, d.Waiting = 0, 0
	d.Due = v.due(p, wanted)
	return d
}

// demand estimates lease tokens spent and cost denied over the last Horizon. Since the last item it is counted; before that,
// what the last item reported stands for the rest of the Horizon. Spending that ended a Horizon ago is no demand any more,
// however much of it the next item still has to settle.
func (v View) demand() limit.Micro {
	denied := max(v.Denied-v.AskedDenied, 0)
	if v.idle() && denied == 0 {
		return 0
	}
	since := v.Now - v.AskedAt
	met := min(max(v.Spent-v.AskedSpent, 0)+denied, most)
	if since >= Horizon {
		// Rounded up: a request every few seconds is demand for one token, else each would wait.
		return limit.Tokens((int64(met)*int64(Horizon) + int64(since) - 1) / int64(since)).Micro()
	}
	// The whole Horizons first and then the rest, so that no product overflows.
	left := limit.Micro(Horizon - since)
	earlier := v.AskedDemand/limit.Micro(Horizon)*left + v.AskedDemand%limit.Micro(Horizon)*left/limit.Micro(Horizon)
	return min(met.Micro()+earlier, limit.Tokens(most).Micro())
}

// idle is true if no lease token was spent for a Horizon.
func (v View) idle() bool { return v.Now-v.LastSpentAt >= Horizon }

// settleSoon is when what happened since the last item has lasted a Horizon, its answer's way included.
func (v View) settleSoon(p Params) limit.Micros { return v.AskedAt + p.RoundTrip + Horizon }

// surplus is what goes back: what nobody used for a Horizon beyond the near need, but for one cost, which stays for the next
// request until half of the lease's life has passed without one.
func (v View) surplus(p Params, demand limit.Tokens) limit.Tokens {
	switch {
	case v.Left == 0 || v.Waiting > 0 || v.Now < v.settleSoon(p):
		return 0
	case v.Now >= v.AskedAt+p.half() && v.Spent <= v.AskedSpent && demand == 0:
		return v.Left
	case demand == 0:
		return max(v.Left-v.Cost, 0)
	case v.Now-v.LastSpentAt > Horizon/4:
		return 0 // it may be about to end: the look a Horizon after the last use knows
	}
	// In use: half of the demand more than it needs may lie here, for the estimate is only that. Less than one cost is not
	// worth an item.
	keep := max(demand+(demand+1)/2, v.Cost)
	if v.Left-keep < v.Cost {
		return 0
	}
	return v.Left - keep
}

// wantedAt is when the bucket should ask for tokens, if it should; else limit.Never.
func (v View) wantedAt(p Params, demand, ahead limit.Tokens) limit.Micros {
	if v.Waiting > 0 {
		return v.DryUntil
	}
	lookahead := min(p.RoundTrip+slack, Horizon)
	lasts := int64(v.Left)*int64(Horizon) >= int64(demand)*int64(lookahead)
	if ahead == 0 || (lasts && v.Left >= v.Cost) {
		return limit.Never
	}
	return max(v.DryUntil, v.AskedAt+pace)
}

// settleAt is when the bucket must report, to settle what it spent or to renew what is left; limit.Never if it need not.
func (v View) settleAt(p Params) limit.Micros {
	open := max(v.Spent-v.AnsweredSpent, 0)
	unsettled := open > 0 || v.Returned > v.AnsweredReturned || v.Lapsed > v.AnsweredLapsed
	if v.Left == 0 && !unsettled {
		return limit.Never
	}
	at := v.AskedAt + p.half()
	if v.Left > 0 {
		// An answer without a ttl renewed nothing: asking again at once would not either.
		at = min(at, max(v.ExpiresAt-(p.TTL-p.half()), v.settleSoon(p)))
	}
	if unsettled && open >= v.Left {
		at = min(at, v.settleSoon(p))
	}
	return at
}

// lookAfter is how long after an item that is made now the bucket is looked at again: when its tokens have been here for a
// Horizon.
func (v View) lookAfter(p Params) limit.Micros { return min(p.RoundTrip+Horizon, p.half()) }

// due is how long until the next look at a bucket that does nothing now.
func (v View) due(p Params, wanted limit.Micros) limit.Micros {
	next := min(wanted, v.settleAt(p))
	if v.Left > v.Cost {
		look := max(v.settleSoon(p), v.LastSpentAt+Horizon)
		if look <= v.Now {
			look = v.Now + Horizon
		}
		next = min(next, look)
	}
	if next >= limit.Never {
		return Off
	}
	return max(next-v.Now, soonest)
}

// drain gives back everything, wants nothing, and is done when all of it is settled.
func (v View) drain(p Params, demand limit.Micro) Decision {
	d := Decision{Demand: demand, Return: v.Left, Due: Off}
	if v.Left > 0 || v.settleAt(p) < limit.Never {
		d.Ask = true
		d.Due = v.lookAfter(p)
	}
	return d
}

// half is when a lease is renewed, counted from when it was asked for: 40 to 50 % of its life, by key, so that keys which
// were asked for together are not renewed together.
func (p Params) half() limit.Micros {
	const steps = 1024
	return p.TTL*2/5 + p.TTL/10*limit.Micros(p.Spread%steps)/steps
}

// sane bounds what was read from a store and applies what its clock says: a lease past its end has lapsed, whether or not a
// script has written that yet.
func (v View) sane() View {
	for _, amount := range []*limit.Tokens{
		&v.Left, &v.Waiting, &v.Spent, &v.Returned, &v.Lapsed, &v.Denied, &v.AskedSpent, &v.AskedDenied,
		&v.AnsweredSpent, &v.AnsweredReturned, &v.AnsweredLapsed,
	} {
		*amount = min(max(*amount, 0), most)
	}
	v.AskedDemand = min(max(v.AskedDemand, 0), limit.Tokens(most).Micro())
	v.Cost = min(max(v.Cost, 1), most)
	v.Now = min(max(v.Now, 0), limit.Never-24*3600*limit.MicrosPerSecond)
	// A mark ahead of the clock would put a look off for as long; DryUntil and ExpiresAt may be ahead, that is their sense.
	v.AskedAt = min(max(v.AskedAt, 0), v.Now)
	v.LastSpentAt = min(max(v.LastSpentAt, 0), v.Now)
	v.ExpiresAt = min(max(v.ExpiresAt, 0), limit.Never-1)
	v.DryUntil = min(max(v.DryUntil, 0), limit.Never-1)
	if v.ExpiresAt <= v.Now {
		v.Lapsed += v.Left
		v.Left = 0
	}
	return v
}

func (p Params) sane() Params {
	p.TTL = min(max(p.TTL, limit.MicrosPerSecond), 3600*limit.MicrosPerSecond)
	p.RoundTrip = min(max(p.RoundTrip, 0), p.TTL/4)
	p.Deadline = min(max(p.Deadline, soonest), p.TTL)
	return p
}
