package ledger

import (
	"fmt"
	"slices"
	"strings"

	"github.com/annona-gateway/annona/shared/limit"
)

// pool is the leased part of one (policy, key)'s global budget.
type pool struct {
	id      poolID
	variant string
	sealed  []byte // the identity behind the key, sealed
	budget  limit.Budget
	level   limit.Tokens // negative after the capacity fell below what was out
	mark    limit.Micros // up to where the refill was credited
	heardAt limit.Micros
	keep    limit.Micros // until when it would not be full by numbers that it had before
	holders []holder     // by region

	dueAt limit.Micros // when time alone changes this pool
	due   int          // its place in the schedule
}

// holder is one region's account in a pool.
type holder struct {
	region, epoch string
	session, seq  uint64
	answer        answer // to seq

	// out is what the session may still spend, at the latest until expiresAt; life is the longest that its answers gave.
	out       limit.Tokens
	expiresAt limit.Micros
	life      limit.Micros
	// orphaned is what replaced sessions may still spend, for a demoted store may serve them yet (C2).
	orphaned     limit.Tokens
	orphansUntil limit.Micros
	orphansLife  limit.Micros
	// writtenOff is what lapsed in this session and was not reported since: it absorbs reports before they lower out (B3).
	writtenOff limit.Tokens

	counters counters // cumulative in the session, as reported last
	totals   totals   // over the pool record's life

	heardAt       limit.Micros
	unmet, demand limit.Tokens
}

// answer is what a seq was answered, for a repeat of it.
type answer struct {
	granted             limit.Tokens
	ttl, dryFor, fitsIn limit.Micros
	level               limit.Tokens
	writtenOff          bool // granted lapsed before it was known whether it arrived
}

// counters are an item's cumulative reports.
type counters struct{ spent, returned, lapsed, denied limit.Tokens }

// totals are what became of everything granted.
type totals struct{ granted, spent, returned, lapsed, voided, denied limit.Tokens }

// held is what h may still spend, of this session and of replaced ones.
func (h *holder) held() limit.Tokens { return h.out + h.orphaned }

// clone copies p for a proposal.
func (p *pool) clone() *pool {
	c := *p
	c.holders = slices.Clone(p.holders)
	return &c
}

// outstanding returns Σ O: what all regions may still spend.
func (p *pool) outstanding() (sum limit.Tokens) {
	for i := range p.holders {
		sum += p.holders[i].held()
	}
	return sum
}

// find returns where region's account is, or belongs, in p.
func (p *pool) find(region string) (int, bool) {
	return slices.BinarySearchFunc(p.holders, region, func(h holder, region string) int { return strings.Compare(h.region, region) })
}

// holder returns region's account, a new one if there is none.
func (p *pool) holder(region string) *holder {
	i, known := p.find(region)
	if !known {
		p.holders = slices.Insert(p.holders, i, holder{region: region})
	}
	return &p.holders[i]
}

// accrued returns the tokens that time brings p up to at, filling as b says, and the mark after them. What is out counts
// against the capacity, so a pool whose tokens are all out gains nothing by waiting. The mark moves by the time that the
// credited tokens took, which keeps the remainder, and never back.
func (p *pool) accrued(at limit.Micros, b limit.Budget) (credited limit.Tokens, mark limit.Micros) {
	if at <= p.mark {
		return 0, p.mark
	}
	room := b.Capacity - p.outstanding() - p.level
	if room <= 0 {
		return 0, at
	}
	// The room is the capacity here, not the pool's own: a level in debt has more room than that.
	whole, took := limit.Budget{Capacity: room, Rate: b.Rate}.Accrued(at - p.mark)
	if whole >= room {
		return room, at
	}
	return whole, p.mark + took
}

// remark returns the mark for a rate that changes at an instant: what accrued since mark at the old rate, less than a token, is
// kept as the time that it takes at the new one. (A mark that stayed would have that time paid at the new rate, however long it
// was; one that moved to the instant would starve a key whose numbers change to and fro.)
func remark(mark, at limit.Micros, accruing, next limit.Rate) limit.Micros {
	if at <= mark {
		return mark
	}
	if next <= 0 {
		return at
	}
	return at - limit.Micros(int64(at-mark)*int64(min(accruing, next))/int64(next))
}

func (p *pool) refill(credited limit.Tokens, mark limit.Micros) {
	p.level += credited
	p.mark = max(p.mark, mark)
}

// check panics if p cannot be: see the package's invariant.
func (p *pool) check() {
	if sum := p.level + p.outstanding(); sum > p.budget.Capacity {
		panic(fmt.Sprintf("ledger: level and leases add up to %d, above the capacity\n%s", sum, p))
	}
	for i := range p.holders {
		h := &p.holders[i]
		t := h.totals
		if h.out < 0 || h.orphaned < 0 || h.writtenOff < 0 || t.granted != t.spent+t.returned+t.lapsed+t.voided+h.held() {
			panic(fmt.Sprintf("ledger: the account of region %s does not add up\n%s", h.region, p))
		}
	}
}
