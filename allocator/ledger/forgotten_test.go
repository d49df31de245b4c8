package ledger

import (
	"testing"

	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// A2, A3: a pool that is full of smaller numbers is not forgotten before the larger ones that it had would have filled it: when
// they come back, an unknown pool would be full of them. (One user, two tiers: the free one must not refill the premium one.)
func TestA3_APoolIsNotForgottenFullOfSmallerNumbers(t *testing.T) {
	d := newDesk()
	large, small := limit.Budget{Capacity: 1800, Rate: 16 * limit.MicroPerToken}, limit.Budget{Capacity: 5, Rate: 5 * limit.MicroPerToken}
	item := func(b limit.Budget, variant string, seq uint64, spent, want int64) int64 {
		d.terms.Pool = b
		facts, answer := d.Decide(Command{At: d.at, Region: "eu", Epoch: "e", Terms: d.terms, Item: &leasepb.Item{
			Policy: worldPolicy, Key: keyOf(1), Variant: variant, Session: 1, Seq: seq, Applied: seq - 1,
			Spent: spent, Want: want, Waiting: want, Cost: 1,
		}})
		for _, fact := range facts {
			d.Apply(fact)
		}
		return answer.GetGranted()
	}
	granted := item(large, "tier:premium", 1, 0, 1800)
	item(large, "tier:premium", 2, granted, 0)
	item(small, "", 3, granted, 0)
	begin := d.at
	for range 70 {
		d.at += limit.MicrosPerSecond
		for _, fact := range d.Sweep(d.at, 100) {
			d.Apply(fact)
		}
	}
	again := item(large, "tier:premium", 4, granted, 1800)
	if most := 1800 + 16*int64(d.at-begin)/limit.MicrosPerSecond; granted+again > most {
		t.Errorf("%d and, 70 s later, %d granted; the larger numbers allow %d", granted, again, most)
	}
}
