package lessor_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/annona-gateway/annona/allocator/journal/journaltest"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/policy"
)

// A3: a record outlives its policy. What a region reports and returns under a policy that is gone is settled, by the last numbers,
// and nothing is granted or renewed; a key that nobody knows is refused as before.
func TestA3_AGonePolicyIsSettledAndNothingGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory, log := &journaltest.Memory{}, &syncBuffer{}
		var gone atomic.Bool
		cfg := config(memory, log)
		cfg.Documents = func() (*policy.Document, *policy.Regions) {
			document, regions := documents()
			if gone.Load() {
				document.Policies = document.Policies[1:]
			}
			return document, regions
		}
		r := startWith(t, memory, cfg, log)
		key := keyOf(0, 1)
		if got := r.ask(envelope("eu", 0, want(key, 1, 5))).GetAnswers()[0].GetGranted(); got != 5 {
			t.Fatalf("granted %d, want 5", got)
		}
		gone.Store(true)
		back := want(key, 2, 3)
		back.Spent, back.Returned = 2, 3
		reply := r.ask(envelope("eu", 0, back, want(keyOf(0, 2), 1, 1)))
		known, unknown := reply.GetAnswers()[0], reply.GetAnswers()[1]
		if known.GetRefusal() != leasepb.Refusal_REFUSAL_UNSPECIFIED || known.GetGranted() != 0 || known.GetTtlUs() != 0 {
			t.Errorf("the report of a gone policy's lease is answered %v, want it settled and nothing granted or renewed", known)
		}
		if unknown.GetRefusal() != leasepb.Refusal_REFUSAL_UNKNOWN_POLICY {
			t.Errorf("a new key of a gone policy is answered %v, want unknown policy", unknown)
		}
		for _, pool := range r.books(0).Pools(0) {
			for _, holding := range pool.Holdings {
				if holding.Outstanding != 0 || holding.Spent != 2 || holding.Returned != 3 {
					t.Errorf("the account says %+v, want 2 spent, 3 returned and nothing out", holding)
				}
			}
		}
	})
}
