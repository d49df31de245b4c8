package ledger

import (
	"container/heap"
	"fmt"
	"slices"

	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/limit"
)

// applyBegun opens a writer's term on a new clock. Ages are kept, instants are not: every mark is moved so that what had
// passed at the last fact has passed now, and the gap since, which nobody measured, brings nothing.
func (l *Ledger) applyBegun(at limit.Micros, f *factpb.Begun) {
	shift, life := at-l.now, limit.Micros(f.GetLifeUs())
	l.now = at
	l.terms = append(l.terms, f.GetLost()...)
	l.terms = append(l.terms, f.GetTerm())
	l.terms = slices.Delete(l.terms, 0, max(0, len(l.terms)-MaxTerms))
	if f.GetEmpty() {
		l.emptied, l.emptyAt = true, at+life
		clear(l.regions)
		clear(l.pools)
		l.due = nil
		return
	}
	l.emptyAt += shift
	for _, r := range l.regions {
		r.heardAt += shift
		for i := range r.replaced {
			r.replaced[i].at += shift
		}
	}
	for _, p := range l.due {
		p.begin(shift, at, life)
		p.check()
	}
	heap.Init(&l.due)
}

// begin moves p's instants to the new writer's clock and restarts its leases.
func (p *pool) begin(shift, at, life limit.Micros) {
	p.mark += shift
	p.heardAt += shift
	p.keep = min(p.keep+shift, limit.Never)
	for i := range p.holders {
		h := &p.holders[i]
		h.heardAt += shift
		if h.out > 0 {
			h.life = max(h.life, life)
			h.expiresAt = at + h.life
		}
		if h.orphaned > 0 {
			h.orphansLife = max(h.orphansLife, life)
			h.orphansUntil = at + h.orphansLife
		}
	}
	p.dueAt = p.nextDue()
}

// applyDecided makes one item's decision true.
func (l *Ledger) applyDecided(at limit.Micros, f *factpb.Decided) {
	r := l.regions[f.GetRegion()]
	if epoch := f.GetEpoch(); epoch != "" {
		if r == nil {
			r = &region{}
			l.regions[f.GetRegion()] = r
		}
		r.begin(at, epoch)
	}
	id := idOf(f.GetPolicy(), f.GetKey())
	p := l.pools[id]
	if f.GetOpens() {
		p = &pool{id: id, due: -1, mark: limit.Micros(f.GetMarkUs())}
		l.pools[id] = p
	}
	if p == nil || r == nil {
		panic(fmt.Sprintf("ledger: a fact about a pool or a region that no fact opened: %v; the journal is not whole", f))
	}
	r.heardAt = at
	p.tune(f)
	h := p.holder(f.GetRegion())
	h.begin(f, r.epoch)
	p.settle(h, f)
	p.answer(at, h, f)
	p.check()
	l.due.put(p)
}

// tune makes true what f says about p's numbers and what time brought.
func (p *pool) tune(f *factpb.Decided) {
	p.refill(limit.Tokens(f.GetRefilled()), limit.Micros(f.GetMarkUs()))
	if n := f.GetNumbers(); n != nil {
		p.keep = max(p.keep, p.fullAt())
		p.variant = n.GetVariant()
		p.budget = limit.Budget{Capacity: limit.Tokens(n.GetCapacity()), Rate: limit.Rate(n.GetRate())}
	}
	if sealed := f.GetSealed(); len(sealed) > 0 {
		p.sealed = sealed
	}
	p.level -= limit.Tokens(f.GetCut())
}

func (l *Ledger) applyLapsed(f *factpb.Lapsed) {
	p := l.pools[idOf(f.GetPolicy(), f.GetKey())]
	if p == nil {
		panic(fmt.Sprintf("ledger: a lapse in a pool that no fact opened: %v; the journal is not whole", f))
	}
	p.lapse(f)
	p.check()
	l.due.put(p)
}

func (l *Ledger) applyForgotten(f *factpb.Forgotten) {
	id := idOf(f.GetPolicy(), f.GetKey())
	if p := l.pools[id]; p != nil {
		heap.Remove(&l.due, p.due)
		delete(l.pools, id)
	}
}

func idOf(policy string, key []byte) poolID {
	return poolID{policy: policy, key: limit.Key(key)}
}
