package ledger

import (
	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/limit"
)

const (
	// shortestDry is how soon a region is let ask again at the earliest: a dry pool refills in crumbs, and a request for each
	// would be one message a crumb. It is less where the whole pool refills in less than four times that.
	shortestDry limit.Micros = 100_000
	// longestDryBeside is how late a region is let ask again while others hold tokens: they may come back any time.
	longestDryBeside limit.Micros = limit.MicrosPerSecond
)

// grant decides the answer.
func (pr *proposal) grant() {
	item, t, f, p, h := pr.c.Item, pr.c.Terms, pr.f, pr.p, pr.h
	cost := max(limit.Tokens(item.GetCost()), 1)
	want, waiting := limit.Tokens(item.GetWant()), limit.Tokens(item.GetWaiting())
	// A lease is renewed whole, so nothing may be renewed, hence nothing granted, while the region may hold tokens that are in
	// no account here: ones written off, or a lost journal's. They are over within one life, and reported then. Nor while
	// the level is in debt: that would carry leases of a larger pool on (B2).
	renews := !item.GetDraining() && p.level >= 0 && h.writtenOff == 0 && t.Weights[pr.c.Region] > 0
	if item.GetDraining() {
		want, waiting = 0, 0
	}
	var granted limit.Tokens
	if renews {
		granted = pr.share(want, waiting, cost)
		f.TtlUs = int64(t.TTL)
	}
	f.Granted = int64(granted)
	f.Unmet, f.Demand = int64(want-granted), item.GetDemand()
	if renews && h.out+granted > 0 {
		f.LifeUs = int64(t.life())
		f.ExpiresAtUs = int64(max(h.expiresAt, pr.at+t.life()))
	}
	level := p.level - granted
	f.PoolLevel = int64(max(level, 0))
	fits := p.fitsIn(pr.at, level, cost)
	f.FitsInUs = int64(fits)
	f.DryForUs = int64(p.dryFor(fits, p.outstanding() > h.held()))
	if !renews && f.DryForUs == 0 {
		f.DryForUs = int64(shortestDry)
	}
	p.answer(pr.at, h, f)
}

// share returns how many tokens the region gets: what waits is served first, what is asked for ahead of need gets a small part
// of the rest, and neither more than the region's fair part of the whole; all in whole costs, for a part of a cost
// serves nobody, and a single cost that waits gets it while there is one (DESIGN.md 4, B6).
func (pr *proposal) share(want, waiting, cost limit.Tokens) limit.Tokens {
	level := pr.p.level
	if want <= 0 || level < cost {
		return 0
	}
	waiting = whole(min(waiting, want, level), cost)
	ahead := min(want-waiting, level-waiting, level/limit.Tokens(2*max(1, len(pr.c.Terms.Weights))))
	granted := whole(min(waiting+ahead, pr.fair(want)-pr.h.held()), cost)
	if granted < cost && waiting >= cost {
		return cost
	}
	return max(granted, 0)
}

// whole rounds amount down to whole costs.
func whole(amount, cost limit.Tokens) limit.Tokens { return amount - amount%cost }

// fair returns the region's part of all that is in the pool or out, by weighted max-min division over the regions heard within
// the horizon. What a silent region holds is in the whole, but it asks for nothing.
func (pr *proposal) fair(want limit.Tokens) limit.Tokens {
	demands := make([]limit.Demand, 0, len(pr.p.holders))
	own := 0
	for i := range pr.p.holders {
		h := &pr.p.holders[i]
		weight := pr.c.Terms.Weights[h.region]
		switch {
		case h == pr.h:
			own = len(demands)
			demands = append(demands, limit.Demand{Weight: weight, Want: h.held() + want})
		case pr.at-h.heardAt <= Horizon:
			demands = append(demands, limit.Demand{Weight: weight, Want: h.held() + h.unmet})
		}
	}
	return limit.MaxMin(pr.p.level+pr.p.outstanding(), demands)[own]
}

// fitsIn returns how long until the refill alone has brought a pool with level left one more cost; 0 where it has one.
func (p *pool) fitsIn(at limit.Micros, level, cost limit.Tokens) limit.Micros {
	switch {
	case level >= cost:
		return 0
	case cost > p.budget.Capacity:
		return lease.MaxDuration
	}
	return min(max(p.budget.TimeTo((cost-level).Micro())-(at-p.mark), 1), lease.MaxDuration)
}

// dryFor returns for how long asking again is in vain, given what fitsIn returned; besides is true where others hold tokens.
func (p *pool) dryFor(fits limit.Micros, besides bool) limit.Micros {
	if fits == 0 {
		return 0
	}
	dry := max(fits, min(shortestDry, p.budget.TimeTo(p.budget.Capacity.Micro())/4))
	if besides {
		dry = min(dry, longestDryBeside)
	}
	return min(dry, lease.MaxDuration)
}

// answer makes true what f says about h's lease and remembers it as the answer to its seq.
func (p *pool) answer(at limit.Micros, h *holder, f *factpb.Decided) {
	granted := limit.Tokens(f.GetGranted())
	p.level -= granted
	h.out += granted
	h.totals.granted += granted
	h.seq = f.GetSeq()
	h.answer = answer{
		granted: granted, ttl: limit.Micros(f.GetTtlUs()), dryFor: limit.Micros(f.GetDryForUs()),
		fitsIn: limit.Micros(f.GetFitsInUs()), level: limit.Tokens(f.GetPoolLevel()),
	}
	if f.GetLifeUs() > 0 {
		h.life = max(h.life, limit.Micros(f.GetLifeUs()))
		h.expiresAt = limit.Micros(f.GetExpiresAtUs())
	}
	if h.out == 0 {
		h.expiresAt, h.life = 0, 0
	}
	h.heardAt, p.heardAt = at, at
	h.unmet, h.demand = limit.Tokens(f.GetUnmet()), limit.Tokens(f.GetDemand())
}
