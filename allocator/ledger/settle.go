package ledger

import (
	"github.com/annona-gateway/annona/allocator/ledger/factpb"
	"github.com/annona-gateway/annona/shared/limit"
)

// settle decides what the item's reports change; false if they contradict what was granted, and then nothing may change.
func (pr *proposal) settle() bool {
	h, f := pr.h, pr.f
	left := limit.Tokens(pr.c.Item.GetLeft())
	if f.Begins {
		f.Foreign = int64(left)
		pr.p.settle(h, f)
		return true
	}
	if grant := h.answer.granted; grant > 0 && pr.c.Item.GetApplied() < h.seq {
		// The answer to the last seq never arrived, and now that a newer one was sent the bucket applies it no more (C3).
		if h.answer.writtenOff {
			f.Unwritten = int64(grant)
		} else {
			f.Voided = int64(grant)
		}
	}
	spent := limit.Tokens(f.Spent) - h.counters.spent
	returned := limit.Tokens(f.Returned) - h.counters.returned
	lapsed := limit.Tokens(f.Lapsed) - h.counters.lapsed
	off := h.writtenOff - limit.Tokens(f.Unwritten)
	out := h.out - limit.Tokens(f.Voided)
	switch {
	case spent < 0 || returned < 0 || lapsed < 0 || limit.Tokens(f.Denied) < h.counters.denied:
		return false // a counter fell
	case spent+returned+lapsed > out+off:
		return false // more than was granted
	}
	// Which of the reported tokens are written-off ones nobody can tell. That returned ones are is assumed first, for only
	// they would give credit: a token once written off must never come back into the level (B3).
	returned, off = absorb(returned, off)
	lapsed, off = absorb(lapsed, off)
	spent, off = absorb(spent, off)
	f.SettledSpent, f.SettledReturned, f.SettledLapsed = int64(spent), int64(returned), int64(lapsed)
	f.Absorbed = int64(h.writtenOff-off) - f.Unwritten
	// What it has left beyond its account comes from a journal that is lost. It is as good as written off.
	f.Foreign = int64(max(0, left-off-(out-spent-returned-lapsed)))
	pr.p.settle(h, f)
	return true
}

// absorb takes from report what off covers, and returns what is left of both.
func absorb(report, off limit.Tokens) (reportLeft, offLeft limit.Tokens) {
	covered := min(report, off)
	return report - covered, off - covered
}

// settle makes true what f says about the tokens that h had: the void, the reports, the counters.
func (p *pool) settle(h *holder, f *factpb.Decided) {
	voided, returned := limit.Tokens(f.GetVoided()), limit.Tokens(f.GetSettledReturned())
	spent, lapsed := limit.Tokens(f.GetSettledSpent()), limit.Tokens(f.GetSettledLapsed())
	h.out -= voided + spent + returned + lapsed
	p.level += voided + returned
	h.writtenOff += limit.Tokens(f.GetForeign() - f.GetUnwritten() - f.GetAbsorbed())
	h.totals.voided += voided
	h.totals.spent += spent
	h.totals.returned += returned
	h.totals.lapsed += lapsed
	now := counters{
		spent: limit.Tokens(f.GetSpent()), returned: limit.Tokens(f.GetReturned()),
		lapsed: limit.Tokens(f.GetLapsed()), denied: limit.Tokens(f.GetDenied()),
	}
	if f.GetBegins() && f.GetSeq() == 1 {
		h.counters.denied = 0 // nothing of this session was ever reported, so what was denied already is news
	} else if f.GetBegins() {
		h.counters.denied = now.denied
	}
	h.totals.denied += now.denied - h.counters.denied
	h.counters = now
}

// begin makes true what f says about h's session. A new one takes its reports so far as the baseline, and what the one before
// had out stays out until it would have lapsed. (Voiding it, or taking its tail of reports, would trust the store that was
// replaced to be silent already; a demoted one may not be.)
func (h *holder) begin(f *factpb.Decided, epoch string) {
	h.epoch, h.session = epoch, f.GetSession()
	if !f.GetBegins() {
		return
	}
	if h.out > 0 {
		h.orphaned += h.out
		h.orphansUntil = max(h.orphansUntil, h.expiresAt)
		h.orphansLife = max(h.orphansLife, h.life)
	}
	h.out, h.expiresAt, h.life = 0, 0, 0
	h.writtenOff = 0
	h.answer = answer{}
}
