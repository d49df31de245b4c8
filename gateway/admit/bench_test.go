package admit_test

import (
	"context"
	"io"
	"testing"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// admits is a Taker that admits, without a receipt, and keeps nothing.
type admits struct{}

func (admits) Take(_ context.Context, r bucket.Request) (bucket.Verdict, error) {
	return bucket.Verdict{Outcome: bucket.Admitted, States: make([]bucket.State, len(r.Charges))}, nil
}

// BenchmarkDecide is a decision without the store: with plain token buckets only, and beside it with what owes something afterwards.
func BenchmarkDecide(b *testing.B) {
	secret, err := limit.NewSecret([]byte("sixteen bytes at least"))
	if err != nil {
		b.Fatal(err)
	}
	for name, rules := range map[string]string{
		"plain": "  - {name: p, key: [user], algorithm: token_bucket, rate: 10/s, scope: region, on_failure: closed}\n" +
			"  - {name: q, key: [all], algorithm: token_bucket, rate: 10/s, scope: region, on_failure: closed}\n",
		"corrected": "  - {name: p, key: [user], algorithm: token_bucket, rate: 10/s, scope: region, on_failure: closed, cost: {actual: X-Cost}}\n" +
			"  - {name: q, key: [all], algorithm: fixed_window, limit: 10, window: 1h, scope: region, on_failure: closed, ban: {denials: 9, within: 1m, for: 1m}}\n",
	} {
		doc, problems := policy.Parse([]byte("schema: 1\npolicies:\n" + rules))
		if doc == nil {
			b.Fatal(problems)
		}
		a := admit.New(admits{}, admit.Options{Region: "eu", Telemetry: telemetry.ForTest(io.Discard)})
		a.Use(admit.Compile(doc, nil, "eu", secret))
		r := &policy.Request{Identity: policy.Identity{User: "alice", Tier: "free"}, Method: "GET", Path: "/"}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d, err := a.Decide(b.Context(), r)
				if err != nil || d.Answer != admit.Admitted {
					b.Fatal(d, err)
				}
				d.Hold.End(admit.Ended{Status: 200})
			}
		})
	}
}
