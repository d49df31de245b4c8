package admit_test

import (
	"testing"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// Section 8: remaining is what is held here and the pool as last heard, with its refill since; reset is until full again or,
// denied, until the cost fits. 100 tokens at 10/s: each region keeps 5, the pool has 90 at 9/s.
func TestReports(t *testing.T) {
	const token, second = limit.MicroPerToken, limit.MicrosPerSecond
	for name, row := range map[string]struct {
		outcome   bucket.Outcome
		state     bucket.State
		scope     string
		remaining limit.Tokens
		reset     limit.Micros
	}{
		"pool never heard of counts full": {bucket.Admitted, bucket.State{Level: 4 * token, PoolAge: -1}, "global", 94, 600_000},
		"pool as heard":                   {bucket.Admitted, bucket.State{Level: 4*token + 999_999, Left: 3, PoolLevel: 20}, "global", 27, 7_200_001},
		"pool has refilled since":         {bucket.Admitted, bucket.State{PoolLevel: 20, PoolAge: 2 * second}, "global", 38, 6_200_000},
		"pool refills to its cap only":    {bucket.Admitted, bucket.State{PoolLevel: 20, PoolAge: 3600 * second}, "global", 90, second},
		"debt is not negative":            {bucket.Admitted, bucket.State{Level: -7 * token, PoolLevel: -5}, "global", 0, 10 * second},
		"never above capacity":            {bucket.Admitted, bucket.State{Level: 5 * token, Left: 90, PoolLevel: 90}, "global", 100, 0},
		"denied is below cost":            {bucket.Denied, bucket.State{Lacking: true, PoolAge: -1, RetryIn: 1_500_000}, "global", 0, 1_500_000},
		"scope region has no pool":        {bucket.Admitted, bucket.State{Level: 30 * token, PoolAge: -1}, "region", 30, 7 * second},
		"denied by another policy":        {bucket.Denied, bucket.State{Level: 30 * token, PoolAge: -1}, "region", 30, 7 * second},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, func(_ int, r bucket.Request) (bucket.Verdict, error) {
				v := bucket.Verdict{Outcome: row.outcome, States: []bucket.State{row.state}}
				for range r.Charges[1:] {
					v.States = append(v.States, bucket.State{Lacking: true})
				}
				return v, nil
			}, rule("p", row.scope, "closed", ""), rule("other", "region", "closed", ""))
			r := b.decide(t.Context(), t).Reports[0]
			if r.Remaining != row.remaining || r.Reset != row.reset {
				t.Errorf("remaining %d, reset %d, want %d and %d", r.Remaining, r.Reset, row.remaining, row.reset)
			}
		})
	}
}

// A limit of 0 denies all and divides by nothing.
func TestDenyAll(t *testing.T) {
	b := newBench(t, always(bucket.Denied, "p"), "  - {name: p, key: [all], algorithm: token_bucket, rate: 0/s, scope: global, on_failure: closed}\n")
	r := b.decide(t.Context(), t).Reports[0]
	if r.Remaining != 0 || r.Limit.Capacity != 0 || !r.Violated {
		t.Errorf("report = %+v, want nothing of nothing, violated", r)
	}
}
