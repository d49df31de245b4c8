package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/policy"
)

// CASES 11, from a stranger: whatever it says of its cost is neither an error nor a credit, and no upstream hears it.
func TestCase11_CostOfAStranger(t *testing.T) {
	var cost atomic.Int64
	store := &fakeStore{take: func(r bucket.Request) (bucket.Verdict, error) {
		cost.Store(int64(r.Charges[0].Cost))
		return admitAll(r)
	}}
	g := run(t, testConfig(t, strings.Replace(perUser, "missing: skip", "cost: {default: 3, header: X-Cost, max: 5}", 1), upstream(t).URL), store)
	for _, value := range []string{"-1", "NaN", "99999999999999999999", "1", ""} {
		got := g.get(t, "/", "X-API-Key", "key-acme", "X-Cost", value).echoed(t)
		if _, forwarded := got.Header["X-Cost"]; forwarded || cost.Load() != 3 {
			t.Errorf("X-Cost %q: charged %d, forwarded %t", value, cost.Load(), forwarded)
		}
	}
}

// CASES 11, from a peer that is trusted: what cannot be a cost is a 400.
func TestCase11_CostOfATrustedPeer(t *testing.T) {
	if status, _ := statusOf(fmt.Errorf("policy p: %w: -1", policy.ErrCost)); status != http.StatusBadRequest {
		t.Errorf("a cost that can be none is a %d", status)
	}
}

// The request that policies see is the one that was sent: host, query, headers and region.
func TestPoliciesSeeTheWholeRequest(t *testing.T) {
	store := &fakeStore{take: admitAll}
	document := strings.Replace(perUser, "missing: skip",
		"match: {hosts: [\"*.example\"], methods: [GET], paths: [\"/v1/*\"], headers: {X-Plan: free}, query: {q: \"1\"}, tiers: [free], regions: [eu]}", 1)
	g := run(t, testConfig(t, document, upstream(t).URL), store)
	ask := func(host, path, plan string) bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = host
		req.Header.Set("X-Plan", plan)
		req.Header.Set("X-API-Key", "key-acme")
		return g.do(t, req).Header.Get("X-Ratelimit-Limit") != ""
	}
	for name, row := range map[string]struct {
		host, path, plan string
		want             bool
	}{
		"all":           {"A.example:80", "/v1/x?q=1", "free", true},
		"another host":  {"example", "/v1/x?q=1", "free", false},
		"another query": {"a.example", "/v1/x?q=2", "free", false},
		"another plan":  {"a.example", "/v1/x?q=1", "paid", false},
		"another path":  {"a.example", "/v2/x?q=1", "free", false},
		"a spelling":    {"a.example", "/v2/..//v1/%78?q=%31", "free", true},
	} {
		if got := ask(row.host, row.path, row.plan); got != row.want {
			t.Errorf("%s: the policy applies: %t, want %t", name, got, row.want)
		}
	}
}
