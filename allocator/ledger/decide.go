package ledger

import (
	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// proposal is one item on its way to a decision. It works on a copy of the pool and brings that up to date, step by step,
// with the steps that Apply takes: what is decided is what would be if the facts so far were true.
type proposal struct {
	at limit.Micros
	c  Command
	p  *pool
	h  *holder // the region's account in p
	f  *factpb.Decided
}

// Decide says what c does and what its item is answered. It changes nothing. A repeat of the last item is answered as it was,
// and a refused one counts for nothing: both without a fact.
func (l *Ledger) Decide(c Command) ([]*factpb.Fact, *leasepb.Answer) {
	at := max(c.At, l.now)
	if lease.CheckItem(c.Item) != nil || c.Epoch == "" || c.Region == "" {
		return nil, refused(c.Item, leasepb.Refusal_REFUSAL_INVALID)
	}
	id := poolID{policy: c.Item.GetPolicy(), key: lease.KeyOf(c.Item)}
	known := l.pools[id]
	if refusal := l.refuse(at, known, c); refusal != leasepb.Refusal_REFUSAL_UNSPECIFIED {
		return nil, refused(c.Item, refusal)
	}
	if known != nil {
		if i, heard := known.find(c.Region); heard && known.holders[i].epoch == c.Epoch {
			switch h := &known.holders[i]; {
			case c.Item.GetSession() < h.session:
				return nil, refused(c.Item, leasepb.Refusal_REFUSAL_OLD_SESSION)
			case c.Item.GetSession() > h.session:
				// A new session of the same epoch.
			case c.Item.GetSeq() < h.seq:
				return nil, refused(c.Item, leasepb.Refusal_REFUSAL_OLD_SEQ)
			case c.Item.GetSeq() == h.seq:
				return nil, h.answer.to(c.Item)
			}
		}
	}
	return l.propose(at, id, known, c)
}

// refuse returns why c cannot be decided whatever it says.
func (l *Ledger) refuse(at limit.Micros, known *pool, c Command) leasepb.Refusal {
	r := l.regions[c.Region]
	switch {
	case r == nil && len(l.regions) >= MaxRegions:
		return leasepb.Refusal_REFUSAL_BUSY
	case r != nil && r.epoch != c.Epoch && r.refuses(at, c.Epoch):
		return leasepb.Refusal_REFUSAL_OLD_SESSION
	case r != nil && r.epoch != c.Epoch && !r.mayBegin(at):
		return leasepb.Refusal_REFUSAL_BUSY
	case known == nil && len(l.pools) >= MaxPools:
		return leasepb.Refusal_REFUSAL_BUSY
	}
	return leasepb.Refusal_REFUSAL_UNSPECIFIED
}

// propose decides an item that is neither refused at sight nor a repeat.
func (l *Ledger) propose(at limit.Micros, id poolID, known *pool, c Command) ([]*factpb.Fact, *leasepb.Answer) {
	pr := &proposal{at: at, c: c, f: &factpb.Decided{
		Policy: c.Item.GetPolicy(), Key: c.Item.GetKey(), Region: c.Region,
		Session: c.Item.GetSession(), Seq: c.Item.GetSeq(),
		Spent: c.Item.GetSpent(), Returned: c.Item.GetReturned(), Lapsed: c.Item.GetLapsed(), Denied: c.Item.GetDenied(),
	}}
	if r := l.regions[c.Region]; r == nil || r.epoch != c.Epoch {
		pr.f.Epoch = c.Epoch
	}
	var facts []*factpb.Fact
	if known == nil {
		pr.open(id, l.unknown(at, c.Terms.Pool))
	} else {
		pr.p = known.clone()
		if lapsed := pr.p.lapses(at, known.budget.Min(c.Terms.Pool)); lapsed != nil {
			facts = append(facts, &factpb.Fact{AtUs: int64(at), What: &factpb.Fact_Lapsed{Lapsed: lapsed}})
			pr.p.lapse(lapsed)
		}
		pr.numbers()
	}
	pr.session()
	if !pr.settle() {
		return nil, refused(c.Item, leasepb.Refusal_REFUSAL_INVALID)
	}
	pr.grant()
	facts = append(facts, &factpb.Fact{AtUs: int64(at), What: &factpb.Fact_Decided{Decided: pr.f}})
	return facts, pr.h.answer.to(c.Item)
}

// open decides what a pool that nobody knows starts with.
func (pr *proposal) open(id poolID, fresh *pool) {
	pr.f.Opens = true
	pr.f.Numbers = numbersOf(pr.c)
	pr.f.Sealed = pr.c.Item.GetSealed()
	pr.f.Refilled, pr.f.MarkUs = int64(fresh.level), int64(fresh.mark)
	pr.p = &pool{id: id, due: -1, mark: fresh.mark}
	pr.p.tune(pr.f)
}

// numbers refills the pool and, where its numbers changed, goes on from the smaller of the old and the new: a capacity that
// fell takes what is too much from the level, which may make it negative, and one that grew adds nothing (A2, B1).
func (pr *proposal) numbers() {
	old, now := pr.p.budget, pr.c.Terms.Pool
	if now != old || pr.c.Item.GetVariant() != pr.p.variant {
		pr.f.Numbers = numbersOf(pr.c)
	}
	if len(pr.p.sealed) == 0 {
		pr.f.Sealed = pr.c.Item.GetSealed()
	}
	credited, mark := pr.p.accrued(pr.at, old.Min(now))
	if now.Rate != old.Rate {
		mark = remark(mark, pr.at, old.Rate, now.Rate)
	}
	pr.f.Refilled, pr.f.MarkUs = int64(credited), int64(mark)
	pr.f.Cut = int64(max(0, pr.p.level+credited+pr.p.outstanding()-now.Capacity))
	pr.p.tune(pr.f)
}

// session finds the region's account, and begins a session where the item names a new one.
func (pr *proposal) session() {
	i, known := pr.p.find(pr.c.Region)
	if !known || pr.p.holders[i].epoch != pr.c.Epoch || pr.p.holders[i].session != pr.c.Item.GetSession() {
		pr.f.Begins = true
	}
	pr.h = pr.p.holder(pr.c.Region)
	pr.h.begin(pr.f, pr.c.Epoch)
}

func numbersOf(c Command) *factpb.Numbers {
	return &factpb.Numbers{Variant: c.Item.GetVariant(), Capacity: int64(c.Terms.Pool.Capacity), Rate: int64(c.Terms.Pool.Rate)}
}

// to writes a as the answer to item.
func (a answer) to(item *leasepb.Item) *leasepb.Answer {
	return &leasepb.Answer{
		Key: item.GetKey(), Policy: item.GetPolicy(), Session: item.GetSession(), Seq: item.GetSeq(), Window: item.GetWindow(),
		Granted: int64(a.granted), TtlUs: int64(a.ttl), DryForUs: int64(a.dryFor), FitsInUs: int64(a.fitsIn),
		PoolLevel: int64(a.level),
	}
}

func refused(item *leasepb.Item, why leasepb.Refusal) *leasepb.Answer {
	return &leasepb.Answer{
		Key: item.GetKey(), Policy: item.GetPolicy(), Session: item.GetSession(), Seq: item.GetSeq(), Window: item.GetWindow(),
		Refusal: why,
	}
}
