package ledger

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"github.com/annona-gateway/annona/shared/limit"
)

// Holding is what one region holds of a pool.
type Holding struct {
	Region, Epoch                            string
	Session, Seq                             uint64
	Outstanding                              limit.Tokens // what it may still spend, that of replaced sessions included
	ExpiresAt, HeardAt                       limit.Micros // of the writer's clock; ExpiresAt is 0 where nothing is out
	Granted, Spent, Returned, Lapsed, Denied limit.Tokens // over the pool record's life
	Voided                                   limit.Tokens // grants that never arrived, back in the level
	Demand, Want                             limit.Tokens // as reported last; Want is what was asked for and not granted
}

// Pool is one pool as operators see it. For each holding, Granted = Spent + Returned + Lapsed + Voided + Outstanding.
type Pool struct {
	Policy, Variant string
	Key             limit.Key
	Sealed          []byte
	Budget          limit.Budget
	Level           limit.Tokens // at the instant asked about
	Holdings        []Holding    // by region
}

// Pools returns every pool at an instant, refilled up to it, sorted by policy and key.
func (l *Ledger) Pools(at limit.Micros) []Pool {
	pools := make([]Pool, 0, len(l.pools))
	for _, p := range l.pools {
		pools = append(pools, p.view(at))
	}
	slices.SortFunc(pools, func(a, b Pool) int {
		return poolID{a.Policy, a.Key}.compare(poolID{b.Policy, b.Key})
	})
	return pools
}

// Pool returns one pool at an instant; false where nothing is known of it, which is to say that it is full.
func (l *Ledger) Pool(at limit.Micros, policy string, key limit.Key) (Pool, bool) {
	p := l.pools[poolID{policy: policy, key: key}]
	if p == nil {
		return Pool{}, false
	}
	return p.view(at), true
}

func (p *pool) view(at limit.Micros) Pool {
	credited, _ := p.accrued(at, p.budget)
	v := Pool{
		Policy: p.id.policy, Variant: p.variant, Key: p.id.key, Sealed: p.sealed,
		Budget: p.budget, Level: p.level + credited, Holdings: make([]Holding, len(p.holders)),
	}
	for i := range p.holders {
		h, t := &p.holders[i], p.holders[i].totals
		v.Holdings[i] = Holding{
			Region: h.region, Epoch: h.epoch, Session: h.session, Seq: h.seq,
			Outstanding: h.held(), ExpiresAt: max(h.expiresAt, h.orphansUntil), HeardAt: h.heardAt,
			Granted: t.granted, Spent: t.spent, Returned: t.returned, Lapsed: t.lapsed, Voided: t.voided, Denied: t.denied,
			Demand: h.demand, Want: h.unmet,
		}
	}
	return v
}

func (id poolID) compare(other poolID) int {
	return cmp.Or(strings.Compare(id.policy, other.policy), bytes.Compare(id.key[:], other.key[:]))
}
