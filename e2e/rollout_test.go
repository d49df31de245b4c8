package e2e_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/annona-gateway/annona/e2e/cluster"
)

// A limit is rolled out step by step: in another region first, in shadow, for a share of the clients, for all; meanwhile a candidate
// beside it reports.
func TestRollout(t *testing.T) {
	t.Parallel()
	of := func(more string) string {
		return `schema: 1
policies:
  - {name: p, key: ["header:X-Client"], scope: region, on_failure: closed, algorithm: fixed_window, limit: 1, window: 8760h` + more + `}
  - {name: next, candidate_of: p, key: ["header:X-Client"], scope: region, on_failure: closed, algorithm: sliding_window_log, limit: 2, window: 24h}
`
	}
	a, _ := alone(t, 1, of(", match: {regions: [us]}"))
	g := a.Gateways[0]
	// denied is which of 60 clients are denied their second request. A client's first has made its bucket.
	denied := func() (who map[int]bool) {
		t.Helper()
		who = map[int]bool{}
		for i := range 60 {
			for range 2 {
				var status int
				cluster.Eventually(t, 10*time.Second, "an answer", func() bool {
					status = cluster.Ask(t.Context(), g, "/", "client-"+strconv.Itoa(i)).Status
					return status == http.StatusOK || status == http.StatusTooManyRequests
				})
				who[i] = who[i] || status == http.StatusTooManyRequests
			}
			if !who[i] {
				delete(who, i)
			}
		}
		return who
	}
	// reload waits until a limit that only the new document has is told; it is no limit of those clients.
	steps := 0
	reload := func(more string) {
		t.Helper()
		steps++
		mark := strconv.Itoa(1000 + steps)
		a.Reload(of(more) + `  - {name: mark, match: {paths: [/mark]}, key: [all], scope: region, on_failure: closed, algorithm: fixed_window, limit: ` + mark + `, window: 24h}
`)
		cluster.Eventually(t, 10*time.Second, "the document is in use", func() bool {
			return cluster.Ask(t.Context(), g, "/mark", "").Header.Get("X-RateLimit-Limit") == mark
		})
	}
	if who := denied(); len(who) != 0 {
		t.Errorf("in another region only: %d clients were denied", len(who))
	}
	reload(", enforce: 0%")
	if who := denied(); len(who) != 0 {
		t.Errorf("in shadow: %d clients were denied", len(who))
	}
	if n, ok := cluster.Metric(t.Context(), g, "annona_decisions_total", `policy="p"`, `outcome="shadow_denied"`); !ok || n != 60 {
		t.Errorf("in shadow: %.0f would have been denied, want the second request of each of 60", n)
	}
	reload(", enforce: 50%")
	half := denied()
	if len(half) < 15 || len(half) > 45 {
		t.Errorf("for 50 %%: %d of 60 clients were denied", len(half))
	}
	reload(", match: {regions: [eu]}")
	if all := denied(); len(all) != 60 {
		t.Errorf("for all, here: %d of 60 were denied", len(all))
	}
	for i := range denied() {
		delete(half, i)
	}
	if len(half) != 0 {
		t.Errorf("clients that were denied at 50 %% are not at 100 %%: %v", half)
	}
	reported(t, g, 240)
}

// reported checks that the candidate next has been put so many requests.
func reported(t *testing.T, g *cluster.Gateway, requests int64) {
	t.Helper()
	report := cluster.Ask(t.Context(), &cluster.Gateway{URL: g.AdminURL}, "/v1/candidates", "")
	var page struct {
		Items []struct {
			Candidate string `json:"candidate"`
			Requests  int64  `json:"requests"`
		} `json:"items"`
	}
	if err := json.Unmarshal([]byte(report.Body), &page); err != nil || len(page.Items) != 1 || page.Items[0].Candidate != "next" || page.Items[0].Requests != requests {
		t.Errorf("GET /v1/candidates: %d %s %v, want one report of %d requests", report.Status, report.Body, err, requests)
	}
}
