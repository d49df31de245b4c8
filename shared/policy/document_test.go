package policy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/annona-gateway/annona/shared/limit"
)

// full uses every field that this version supports, and every other known one at its default.
const full = `schema: 1
exempt: []
policies:
  - name: api-per-user
    match: {hosts: [], methods: [GET, POST], paths: ["/v1/*"], headers: {}, query: {}, tiers: [], claims: {}, regions: []}
    key: [user]                       # all parts must be present
    missing: skip
    algorithm: token_bucket
    rate: 100/min
    burst: 200
    max_delay: 0s
    scope: global
    cost: 1
    tiers: {premium: {rate: 1000/min, burst: 2000}, Free.1: {rate: 2/s}}
    overrides: []
    on_failure: {redis: local, allocator: local}
    enforce: 100%
    lease_wait: 500ms
    allotment: 12.5%
    owner: team-x
  - name: everyone
    key: [all]
    missing: deny
    algorithm: token_bucket
    rate: 0/day
    scope: region
    on_loss: full
    on_failure: closed
    enforce: 0 %
`

func mustParse(t testing.TB, source string) *Document {
	t.Helper()
	d, problems := Parse([]byte(source))
	if err := problems.Err(); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestParseReadsEveryField(t *testing.T) {
	d, problems := Parse([]byte(full))
	if len(problems) > 0 {
		t.Fatalf("Parse of a good document says %v", problems)
	}
	want := []*Policy{{
		Name: "api-per-user", Methods: []string{"GET", "POST"}, Paths: []string{"/v1/*"}, Parts: []string{"user"},
		Algorithm: limit.TokenBucket, Budget: limit.Budget{Capacity: 200, Rate: 1_666_666},
		Tiers: map[string]limit.Budget{"premium": {Capacity: 2000, Rate: 16_666_666}, "Free.1": {Capacity: 2, Rate: 2_000_000}},
		Cost:  Cost{Default: 1}, Scope: Global, OnLoss: LossFull, OnRedis: Local, OnAllocator: Local, AllotmentPPM: 125_000, Enforced: true, LeaseWait: 500 * time.Millisecond,
		RateText: "100 per minute", TierText: map[string]string{"premium": "1000 per minute", "Free.1": "2 per second"}, Owner: "team-x",
	}, {
		Name: "everyone", Parts: []string{"all"}, DenyMissing: true, Algorithm: limit.TokenBucket, Scope: RegionOnly, OnLoss: LossFull,
		OnRedis: Closed, OnAllocator: Local, AllotmentPPM: 100_000, RateText: "0 per day",
	}}
	if diff := cmp.Diff(want, d.Policies); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
	if string(d.Source) != full {
		t.Error("Source is not the document as written")
	}
	if d.Policy("everyone") != d.Policies[1] || d.Policy("nobody") != nil {
		t.Error("Policy does not find policies by name")
	}
}

func TestMatchNamesPoliciesAndKeys(t *testing.T) {
	d := mustParse(t, full)
	got, err := d.Match(&Request{Identity: Identity{User: "acme", Tier: "premium", IP: netip.MustParseAddr("10.0.0.1")}, Method: "GET", Path: "/v1/x"})
	if err != nil {
		t.Fatal(err)
	}
	want := []Matched{
		{Policy: d.Policies[0], Variant: "tier:premium", Cost: 1, Fields: []string{"api-per-user", "token_bucket", "user", "acme"}, Display: "user=acme"},
		{Policy: d.Policies[1], Cost: 1, Fields: []string{"everyone", "token_bucket", "all", ""}, Display: "all"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Match (-want +got):\n%s", diff)
	}
}

// The zero LeaseWait is the default, so a written 0 must be something else, and shorter than any answer takes.
func TestParseKeepsNoWaitApartFromTheDefault(t *testing.T) {
	for source, wait := range map[string]bool{policyWith("owner: x"): true, policyWith("lease_wait: 0s"): false} {
		got := mustParse(t, source).Policies[0].LeaseWait
		if (got == 0) != wait || got > time.Microsecond {
			t.Errorf("LeaseWait is %s in\n%s", got, source)
		}
	}
}
