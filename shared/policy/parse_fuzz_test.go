package policy

import (
	"strings"
	"testing"

	"github.com/annona-gateway/annona/shared/limit"
)

// FuzzParse: no input panics, every problem has a place and says what to do, and what is accepted is a document that keeps
// its promises to whoever matches and counts with it.
func FuzzParse(f *testing.F) {
	for _, source := range []string{full, "", "- a", "a: b: c", "[", "{\"schema\":1,\"policies\":[]}", policyWith("burst: 0"), policyWith("<<: *a"), overridden, policyWith(costly), exempting("{ip: 10.0.0.0/8}, {\"claim:o\": a}"), keyed(`"header:X-A", "query:q"`, "enforce: 5%"),
		policyWith("match: {hosts: [\"*.a\"], headers: {X: [a, b]}, query: {q: \"*\"}, tiers: [t], claims: {c: d}, regions: [eu]}"),
		"a: \"\t\"", "? a\n: b", quota("month", "timezone: Europe/Rome", "anchor: 28"), quota("week", "anchor: sun", "tiers: {a: {limit: 5}}"), quota("90s"),
		regional("algorithm: sliding_window_log", "limit: 10", "window: 1h", "ban: {denials: 1, within: 1m, for: 1h}"),
		regional("algorithm: concurrency", "limit: 10", "overrides: [{key: {user: a}, limit: 5}]"), regional("algorithm: sliding_window_counter", "limit: 10", "window: 1ms"),
		regional("algorithm: token_bucket", "rate: 5/s", "max_delay: 2s", "cost: {default: 2, actual: X-Cost, refund: [503]}", "candidate_of: p")} {
		f.Add([]byte(source))
	}
	f.Fuzz(func(t *testing.T, source []byte) {
		d, problems := Parse(source)
		if (d == nil) != problems.Refused() {
			t.Fatalf("document %v with problems %v", d, problems)
		}
		for _, p := range problems {
			if p.Line < 1 || p.Column < 1 || p.Message == "" || p.Remedy == "" || strings.ContainsAny(p.String()+p.Path, "\n\r") {
				t.Errorf("problem %q", p)
			}
		}
		if d == nil {
			return
		}
		names := map[string]bool{}
		for _, p := range d.Policies {
			if p.Name == "" || names[p.Name] || len(p.Parts) == 0 || p.OnRedis == "" || p.OnAllocator == "" {
				t.Errorf("policy %+v", p)
			}
			names[p.Name] = true
			bucket := p.Algorithm == limit.TokenBucket
			if p.Window.IsZero() == p.Algorithm.Windowed() || p.MaxDelay < 0 || p.MaxDelay > MaxDelay || (!bucket || p.MaxDelay > 0) && p.Scope != RegionOnly {
				t.Errorf("policy %s is a %s of %s, delays up to %s, in scope %s", p.Name, p.Algorithm, p.Window, p.MaxDelay, p.Scope)
			}
			if p.CandidateOf != "" && (p.Enforced || d.Policy(p.CandidateOf) == nil) {
				t.Errorf("policy %s is a candidate of %s, enforced: %t", p.Name, p.CandidateOf, p.Enforced)
			}
			for _, variant := range p.Variants() {
				b, ok := p.BudgetOf(variant)
				if !ok || b.Capacity < 0 || b.Capacity > p.Algorithm.MaxN() || b.Rate < 0 || b.Rate > limit.MaxRate || (bucket && b.Rate == 0 && b.Capacity > 0) || (!bucket && b.Rate != 0) {
					t.Errorf("policy %s %q has %v, %t", p.Name, variant, b, ok)
				}
				if most := p.MaxCost(); most < 1 || (b.Capacity > 0 && most > b.Capacity) {
					t.Errorf("policy %s %q has %v for a cost of up to %d", p.Name, variant, b, most)
				}
			}
		}
		if _, err := d.Match(&Request{Method: "GET", Path: "/"}); err != nil && !strings.Contains(err.Error(), ErrMissing.Error()) {
			t.Error(err)
		}
	})
}
