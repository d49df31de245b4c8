package admit

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

const (
	// maxLocal is how many keys decide locally at a time. The one that was asked for longest ago makes room and would begin
	// empty again: whoever floods with invented keys takes tokens from others, never adds any.
	maxLocal = 1 << 16
	// countedFor is over how long before the last count of gateways the largest one holds (PROTOCOL.md E7). An outage of the
	// store does not age it.
	countedFor = 10 * time.Minute
)

// local decides while the region's Redis cannot be asked, for policies that chose so: each of a region's gateways spends from
// its own part of what the region keeps for a key, which begins empty with the outage (PROTOCOL.md E7). What all gateways
// admit in this way is at most that allotment more than the limit, for Redis does not hear of it.
type local struct {
	gateways atomic.Int64 // the largest count that holds; 0: none was ever read
	// outages has a number for each shard: odd while takes there end unanswered, even while they are answered.
	outages [bucket.MaxShards]atomic.Uint64

	count struct {
		sync.Mutex

		read []counted // falling counts, oldest first: the first is the largest
	}
	mu struct {
		sync.Mutex

		parts *simplelru.LRU[limit.Key, *part]
		// held are the slots that this process gave, by key: as many keys at most as requests are in flight. They outlive an outage.
		held map[limit.Key]limit.Tokens
	}
}

type counted struct {
	at       time.Time
	gateways int64
}

// part is one key's budget in this gateway, in one outage of its shard.
type part struct {
	outage uint64
	budget limit.Budget
	level  limit.Micro
	mark   time.Time
}

func newLocal() *local {
	l := &local{}
	parts, err := simplelru.NewLRU[limit.Key, *part](maxLocal, nil)
	if err != nil {
		panic(err) // the size is not positive
	}
	l.mu.parts, l.mu.held = parts, map[limit.Key]limit.Tokens{}
	return l
}

// SetGateways tells how many gateways the region's Redis has heard of lately, this one included.
func (a *Admitter) SetGateways(n int) { a.local.counted(time.Now(), int64(max(n, 1))) }

func (l *local) counted(now time.Time, n int64) {
	l.count.Lock()
	defer l.count.Unlock()
	read := l.count.read
	for len(read) > 0 && read[len(read)-1].gateways <= n {
		read = read[:len(read)-1]
	}
	read = append(read, counted{now, n})
	for now.Sub(read[0].at) > countedFor {
		read = read[1:]
	}
	l.count.read = read
	l.gateways.Store(read[0].gateways)
}

// answered notes that the shards of claims can be asked: the next outage begins from empty.
func (l *local) answered(claims []*claim) {
	for _, c := range claims {
		outage := &l.outages[c.charge.Shard]
		if n := outage.Load(); n%2 == 1 {
			outage.CompareAndSwap(n, n+1)
		}
	}
}

// outage returns the number of the outage that shard is in.
func (l *local) outage(shard int) uint64 {
	outage := &l.outages[shard]
	n := outage.Load()
	if n%2 == 0 {
		outage.CompareAndSwap(n, n+1)
	}
	return n | 1
}

// can tells whether c can be decided here: somebody counted the gateways, and a part of c's budget is not smaller than its cost.
func (l *local) can(c *claim) bool {
	n := l.gateways.Load()
	return n > 0 && c.localBudget(n).Capacity >= c.charge.Cost
}

// localBudget is one gateway's part of c's budget, of n. What counts by a window becomes a bucket of half the part that refills
// half of it in a window: in no window it admits more than the part. Slots are the part's, for none is given back by time.
func (c *claim) localBudget(n int64) limit.Budget {
	own, gateways := c.parts.own, limit.Tokens(n)
	switch c.charge.Algorithm {
	case limit.TokenBucket:
		return limit.Budget{Capacity: own.Capacity / gateways, Rate: own.Rate / limit.Rate(n)}
	case limit.Concurrency:
		return limit.Budget{Capacity: own.Capacity / gateways}
	default:
		half := min(own.Capacity/gateways/2, limit.MaxTokens)
		seconds := (c.charge.Window.Longest() + limit.MicrosPerSecond - 1) / limit.MicrosPerSecond
		return limit.Budget{Capacity: half, Rate: limit.Rate(half.Micro()) / limit.Rate(seconds)}
	}
}

// take charges all claims or none at this gateway's parts, leaves their states, and tells whether it did.
func (l *local) take(claims []*claim) bool {
	now, n := time.Now(), l.gateways.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	fits := true
	parts := make([]*part, len(claims))
	for i, c := range claims {
		p := l.partLocked(c, now, n)
		parts[i] = p
		need := c.charge.Cost.Micro() - p.level
		c.asked, c.charge.Waits = true, 0
		c.state = bucket.State{Lacking: need > 0, RetryIn: p.timeTo(c, need), Heard: -1}
		fits = fits && need <= 0
	}
	for i, c := range claims {
		p := parts[i]
		if fits {
			p.level -= c.charge.Cost.Micro()
			if c.charge.Algorithm == limit.Concurrency {
				c.localSlots = c.charge.Cost
				l.mu.held[c.charge.Key] += c.localSlots
			}
		}
		c.state.Level = p.level
		c.state.Remaining = max(0, p.level).Whole()
		c.state.Reset = p.timeTo(c, p.budget.Capacity.Micro()-p.level)
	}
	return fits
}

// timeTo is how long until so much has come. Nobody knows when a slot is given back: at any moment.
func (p *part) timeTo(c *claim, need limit.Micro) limit.Micros {
	if c.charge.Algorithm == limit.Concurrency {
		return 0
	}
	return p.budget.TimeTo(need)
}

// partLocked returns c's part as it is at now: empty where this is the first request for its key in the outage.
func (l *local) partLocked(c *claim, now time.Time, gateways int64) *part {
	outage, budget := l.outage(c.charge.Shard), c.localBudget(gateways)
	if c.charge.Algorithm == limit.Concurrency { // no record to lose: whoever floods with keys frees no slots
		return &part{budget: budget, level: (budget.Capacity - l.mu.held[c.charge.Key]).Micro()}
	}
	p, known := l.mu.parts.Get(c.charge.Key)
	if !known {
		p = &part{}
		l.mu.parts.Add(c.charge.Key, p)
	}
	if p.outage != outage {
		*p = part{outage: outage, budget: budget, mark: now}
		return p
	}
	// Changed numbers go on from what the smaller of old and new held until now, and never add a token (A2).
	level, took := p.budget.Min(budget).Refill(p.level, limit.Micros(now.Sub(p.mark).Microseconds()))
	if p.budget != budget {
		took = limit.Micros(now.Sub(p.mark).Microseconds())
	}
	p.level, p.budget = min(level, budget.Capacity.Micro()), budget
	p.mark = p.mark.Add(time.Duration(took) * time.Microsecond)
	return p
}

// release gives back the slots of a request that has ended.
func (l *local) release(c *claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.held[c.charge.Key] -= c.localSlots; l.mu.held[c.charge.Key] <= 0 {
		delete(l.mu.held, c.charge.Key)
	}
}

// decideLocally answers for claims whose store cannot be asked, where no policy among them is closed: the local ones decide,
// the open ones let pass. It is false where one of them can only answer as closed, and where it would deny after a take of
// which nobody knows whether it charged: what is denied costs nothing (PROTOCOL.md E5).
func (a *Admitter) decideLocally(ctx context.Context, s *Snapshot, claims []*claim, cause error) (Decision, bool) {
	asking := make([]*claim, 0, len(claims))
	for _, c := range claims {
		c.asked, c.passed = false, c.policy.OnRedis == policy.Open
		switch {
		case c.policy.OnRedis == policy.Closed, c.policy.OnRedis == policy.Local && !a.local.can(c):
			return Decision{}, false
		case c.policy.OnRedis == policy.Local:
			asking = append(asking, c)
		}
	}
	d := Decision{Answer: Admitted, Degraded: DegradedRedis}
	if len(asking) > 0 && !a.local.take(asking) {
		if !uncharged(cause) {
			return Decision{}, false
		}
		d.Answer = Denied
	}
	if d.Answer == Admitted {
		d.Hold = a.hold(claims)
	}
	for _, c := range claims {
		a.degraded(ctx, DegradedRedis, c)
		r := c.report(d.Answer)
		switch {
		case d.Answer == Admitted && c.passed:
			a.count(ctx, s, c, countOpen)
		case d.Answer == Admitted:
			a.count(ctx, s, c, countAdmitted)
		case r.Violated:
			a.count(ctx, s, c, countDenied)
			d.RetryIn = max(d.RetryIn, r.Reset)
		}
		d.Reports = append(d.Reports, r)
	}
	return d, true
}
