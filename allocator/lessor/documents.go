package lessor

import (
	"errors"

	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// errNoRegions: nothing can be divided before it is known over whom.
var errNoRegions = errors.New("there is no regions document yet; the allocator writes it at its first start")

// numbers is what a shard computed from the documents in force; it is thrown away with them.
type numbers struct {
	policies *policy.Document
	regions  *policy.Regions
	terms    ledger.Terms // without the pool
	reply    *leasepb.Regions
	pools    map[variant]limit.Budget // by what was asked for and exists
}

// variant names one set of numbers of one policy.
type variant struct{ policy, variant string }

// current returns the numbers of the documents in force, or errNoRegions.
func (s *shard) current() (*numbers, error) {
	policies, regions := s.lessor.cfg.Documents()
	if regions == nil {
		return nil, errNoRegions
	}
	if n := s.loop.numbers; n != nil && n.policies == policies && n.regions == regions {
		return n, nil
	}
	s.loop.numbers = &numbers{
		policies: policies,
		regions:  regions,
		terms:    termsOf(regions),
		reply:    replyOf(regions),
		pools:    map[variant]limit.Budget{},
	}
	return s.loop.numbers, nil
}

// termsFor returns the terms for an item, or why it can not be decided here.
func (n *numbers) termsFor(item *leasepb.Item) (ledger.Terms, leasepb.Refusal) {
	terms := n.terms
	asked := variant{item.GetPolicy(), item.GetVariant()}
	pool, known := n.pools[asked]
	if !known {
		if n.policies == nil {
			return terms, leasepb.Refusal_REFUSAL_UNKNOWN_POLICY
		}
		p := n.policies.Policy(asked.policy)
		if p == nil || p.Scope != policy.Global || p.Algorithm != limit.TokenBucket {
			return terms, leasepb.Refusal_REFUSAL_UNKNOWN_POLICY
		}
		budget, exists := p.BudgetOf(asked.variant)
		if !exists {
			return terms, leasepb.Refusal_REFUSAL_UNKNOWN_POLICY
		}
		pool = n.regions.Split(p).Pool(budget)
		n.pools[asked] = pool
	}
	terms.Pool = pool
	return terms, leasepb.Refusal_REFUSAL_UNSPECIFIED
}

func termsOf(regions *policy.Regions) ledger.Terms {
	return ledger.Terms{
		Weights:  regions.Weights(),
		TTL:      limit.Micros(regions.Times.TTL.Microseconds()),
		Margin:   limit.Micros(regions.Times.Margin.Microseconds()),
		DriftPPM: regions.Times.DriftPPM,
	}
}

// replyOf is the regions document as every answer carries it.
func replyOf(regions *policy.Regions) *leasepb.Regions {
	reply := &leasepb.Regions{
		Revision:      regions.Revision,
		ContactUs:     regions.Times.Contact.Microseconds(),
		TtlUs:         regions.Times.TTL.Microseconds(),
		MarginUs:      regions.Times.Margin.Microseconds(),
		DriftPpm:      regions.Times.DriftPPM,
		StandingForUs: regions.Times.StandingFor.Microseconds(),
		DemotedForUs:  regions.Times.DemotedFor.Microseconds(),
		Shards:        uint32(regions.Shards), // the document's check allows 1 to 1024
	}
	for _, region := range regions.Regions {
		reply.Regions = append(reply.Regions, &leasepb.Region{Name: region.Name, Weight: region.Weight})
	}
	return reply
}
