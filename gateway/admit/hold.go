package admit

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// Settler takes what comes after a take. A region's Redis is one.
type Settler interface {
	GiveBack(ctx context.Context, backs []bucket.Back) ([]bucket.Credited, error)
	Correct(ctx context.Context, corrections []bucket.Correction) error
	Hold(ctx context.Context, h bucket.Holder, shards int) error
	Renew(ctx context.Context, h bucket.Holder, shards int) (gone []int, err error)
}

// correctFor is for how long after its take a request's cost may be corrected. What is given back later finds nothing: a bucket
// keeps no account of takes for ever. What is charged later is charged.
const correctFor = time.Hour

// Hold is what a request still owes: a turn to wait for, slots that end with it, a cost that its answer may correct. It is ended
// exactly once, by Abandon or End; a nil Hold owes nothing. Up to then it is one goroutine's.
type Hold struct {
	admitter *Admitter
	claims   []*claim // with a receipt, or with a slot of this process
	delay    time.Duration
	keepers  []*keeper // of the slots: one, or two where the holder changed between two takes
	once     sync.Once
}

// Ended is what became of a request that was forwarded.
type Ended struct {
	// Status is the answer's, whoever made it; 0 where there was none.
	Status int
	// Said returns the values of a header or trailer of the answer, by its canonical name.
	Said func(name string) []string
}

// Delay is how long the request waits for its turn, from its decision on.
func (h *Hold) Delay() time.Duration {
	if h == nil {
		return 0
	}
	return h.delay
}

// OnLost has f called, at most once, when the request's slots can be kept no longer: others may have them, so it must end. Slots
// of policies that only report end nothing.
func (h *Hold) OnLost(f func()) {
	if h == nil {
		return
	}
	once := sync.OnceFunc(f)
	for _, k := range h.keepers {
		k.onLost(h, once)
	}
}

// Abandon ends an admitted request that was never forwarded: it costs nothing, and its place is free.
func (h *Hold) Abandon() {
	h.end(func(*claim) (limit.Tokens, bool) { return 0, true })
}

// End ends a request that was forwarded, or denied: its slots are free, and its cost becomes what its answer says.
func (h *Hold) End(e Ended) {
	h.end(func(c *claim) (limit.Tokens, bool) { return h.admitter.costOf(c, e) })
}

func (h *Hold) end(cost func(*claim) (limit.Tokens, bool)) {
	if h == nil {
		return
	}
	h.once.Do(func() {
		var s settlement
		for _, c := range h.claims {
			switch actual, changed := cost(c); {
			case c.localSlots > 0:
				h.admitter.local.release(c)
			case c.charge.Algorithm == limit.Concurrency:
				s.slots = append(s.slots, bucket.Back{Receipt: c.receipt, Tokens: c.receipt.FromPart})
			case changed || c.charge.Algorithm == limit.TokenBucket: // which keeps account of the takes that may be corrected
				s.corrections = append(s.corrections, bucket.Correction{Charge: c.charge, Receipt: c.receipt, Actual: actual})
			}
		}
		for _, k := range h.keepers {
			k.ended(h)
		}
		h.admitter.settler.settle(s)
	})
}

// costOf says what a request did cost at c's policy, and whether that is another cost than the one charged. What an upstream says
// comes before what its status means.
func (a *Admitter) costOf(c *claim, e Ended) (limit.Tokens, bool) {
	if name := c.policy.Cost.Actual; name != "" && e.Said != nil {
		actual, said, err := c.policy.ActualCost(e.Said(name))
		switch {
		case err != nil:
			a.settler.misread(err)
		case said:
			return actual, actual != c.charge.Cost
		}
	}
	if c.policy.Cost.Refunds(e.Status) {
		return 0, true
	}
	return c.charge.Cost, false
}

// hold returns what the claims of an admitted request owe, nil if nothing. Only those that enforce make it wait.
func (a *Admitter) hold(claims []*claim) *Hold {
	var h *Hold
	var delay time.Duration
	for _, c := range claims {
		if !c.shadow {
			delay = max(delay, time.Duration(c.state.Delay)*time.Microsecond)
		}
		if c.receipt.Epoch == "" && c.localSlots == 0 {
			continue
		}
		if h == nil {
			h = &Hold{admitter: a}
		}
		h.claims = append(h.claims, c)
		if c.keeper != nil {
			c.keeper.begun(h, c)
			h.keptBy(c.keeper)
		}
	}
	if h != nil {
		h.delay = delay
	}
	return h
}

func (h *Hold) keptBy(k *keeper) {
	if !slices.Contains(h.keepers, k) {
		h.keepers = append(h.keepers, k)
	}
}

// join joins what a request owes that was decided in several takes.
func (h *Hold) join(other *Hold) *Hold {
	switch {
	case h == nil:
		return other
	case other == nil:
		return h
	}
	h.claims = append(h.claims, other.claims...)
	for _, k := range other.keepers {
		k.moved(other, h)
		h.keptBy(k)
	}
	return h
}

// giveBackFor is for how long c's take may be given back; 0 where it never is.
func (c *claim) giveBackFor() time.Duration {
	switch {
	case c.policy.Cost.Actual != "" || len(c.policy.Cost.Refund) > 0:
		return correctFor
	case c.charge.MaxDelay > 0 && c.charge.Cost > 0:
		return min(c.charge.MaxDelay+time.Second, 24*time.Hour)
	}
	return 0
}
