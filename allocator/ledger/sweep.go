package ledger

import (
	"cmp"
	"slices"

	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/limit"
)

// Sweep decides what time alone brings: leases that lapsed by at, and idle full pools to forget. It decides at most as
// many facts as most says, and looks only at pools that are due. Apply its facts and sweep again for the rest.
func (l *Ledger) Sweep(at limit.Micros, most int) []*factpb.Fact {
	at = max(at, l.now)
	due := l.due.until(at, most)
	slices.SortFunc(due, func(a, b *pool) int {
		return cmp.Or(cmp.Compare(a.dueAt, b.dueAt), a.id.compare(b.id))
	})
	facts := make([]*factpb.Fact, len(due))
	for i, p := range due {
		facts[i] = &factpb.Fact{AtUs: int64(at)}
		if lapsed := p.lapses(at, p.budget); lapsed != nil {
			facts[i].What = &factpb.Fact_Lapsed{Lapsed: lapsed}
			continue
		}
		facts[i].What = &factpb.Fact_Forgotten{Forgotten: &factpb.Forgotten{Policy: p.id.policy, Key: p.id.key[:]}}
	}
	return facts
}

// lapses returns what of p has run out at an instant, nil if nothing. The refill comes first: until now those tokens may
// have been spent, and counted against the capacity.
func (p *pool) lapses(at limit.Micros, b limit.Budget) *factpb.Lapsed {
	var regions []*factpb.Written
	for i := range p.holders {
		h := &p.holders[i]
		written := &factpb.Written{Region: h.region}
		if h.out > 0 && at >= h.expiresAt {
			written.Outstanding = int64(h.out)
		}
		if h.orphaned > 0 && at >= h.orphansUntil {
			written.Orphaned = int64(h.orphaned)
		}
		if written.Outstanding+written.Orphaned > 0 {
			regions = append(regions, written)
		}
	}
	if regions == nil {
		return nil
	}
	credited, mark := p.accrued(at, b)
	return &factpb.Lapsed{
		Policy: p.id.policy, Key: p.id.key[:], Refilled: int64(credited), MarkUs: int64(mark), Regions: regions,
	}
}

// lapse makes f true. What lapsed counts as spent; it never comes back into the level.
func (p *pool) lapse(f *factpb.Lapsed) {
	p.refill(limit.Tokens(f.GetRefilled()), limit.Micros(f.GetMarkUs()))
	for _, written := range f.GetRegions() {
		h := p.holder(written.GetRegion())
		out, orphaned := limit.Tokens(written.GetOutstanding()), limit.Tokens(written.GetOrphaned())
		h.totals.lapsed += out + orphaned
		if out > 0 {
			h.out -= out
			h.writtenOff += out
			h.answer.writtenOff = true
			h.expiresAt, h.life = 0, 0
		}
		if orphaned > 0 {
			h.orphaned -= orphaned
			h.orphansUntil, h.orphansLife = 0, 0
		}
	}
}
