package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// operate sends a request to the admin port and reads the answer into v, unless nil.
func (r *running) operate(t *testing.T, method, path, body string, v any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+r.AdminAddr().String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	a := r.do(t, req)
	if v != nil {
		if err := json.Unmarshal(a.body, v); err != nil {
			t.Fatalf("%s %s: %d %s: %v", method, path, a.StatusCode, a.body, err)
		}
	}
	return a.StatusCode
}

// A client that runs into a limit again and again is banned at that policy for a time, by denials from memory too, and until an
// operator ends it.
func TestBanAfterDenials(t *testing.T) {
	g := limited(t, "algorithm: fixed_window, limit: 2, window: 720h, ban: {denials: 3, within: 1h, for: 2h}", func(http.ResponseWriter, *http.Request) {})
	statuses, _ := userGets(t, "alice", 4, g)
	if !slices.Equal(statuses, []int{200, 200, 429, 429}) {
		t.Fatalf("got %v", statuses)
	}
	var a answered
	eventually(t, "she is banned", func() bool {
		a = g.get(t, "/", "X-API-Key", "key-alice")
		return a.StatusCode == http.StatusTooManyRequests && a.problem(t).Type == typeAbuse
	})
	if p := a.problem(t); p.RetryAfter < 7000 || p.RetryAfter > 8000 || !slices.Equal(p.Violated, []string{"p0"}) || strings.Contains(p.Detail, "alice") {
		t.Errorf("the problem of a banned client: %+v", p)
	}
	if b := g.get(t, "/", "X-API-Key", "key-bob"); b.StatusCode != http.StatusOK {
		t.Errorf("another client got %d", b.StatusCode)
	}
	var bans BansAnswer
	if status := g.operate(t, http.MethodGet, "/v1/bans", "", &bans); status != http.StatusOK || len(bans.Items) != 1 ||
		bans.Items[0].Policy != "p0" || !strings.Contains(bans.Items[0].Identity, "alice") {
		t.Fatalf("GET /v1/bans: %d %+v", status, bans)
	}
	id := bans.Items[0].ID
	if status := g.operate(t, http.MethodDelete, "/v1/bans/"+id, "", nil); status != http.StatusNoContent {
		t.Errorf("DELETE /v1/bans/{id}: %d", status)
	}
	if status := g.operate(t, http.MethodDelete, "/v1/bans/"+id, "", nil); status != http.StatusNotFound {
		t.Errorf("again: %d, want 404", status)
	}
	if p := g.get(t, "/", "X-API-Key", "key-alice").problem(t); p.Type != typeQuota {
		t.Errorf("after the ban: %s, want the quota that is used up", p.Type)
	}
}

// A blocked identity is answered 403 before anything else, at every gateway of the region, also while Redis is out.
func TestBlockedIdentity(t *testing.T) {
	server, _ := region(t)
	a := run(t, testConfig(t, perUser, upstream(t).URL), openStore(t, server))
	b := run(t, testConfig(t, perUser, upstream(t).URL), openStore(t, server))
	var block BlockAnswer
	if status := a.operate(t, http.MethodPost, "/v1/blocks", `{"identity": {"user": "alice"}, "reason": "ticket 7", "for": 3600}`, &block); status != http.StatusCreated ||
		block.Identity != "user=alice" || block.Until == nil {
		t.Fatalf("POST /v1/blocks: %d %+v", status, block)
	}
	for _, g := range []*running{a, b} {
		eventually(t, "the block is known", func() bool {
			return g.get(t, "/", "X-API-Key", "key-alice").StatusCode == http.StatusForbidden
		})
		if got := g.get(t, "/no/route/needed", "X-API-Key", "key-alice"); got.problem(t).Title != "Forbidden" || got.Header.Get("X-Ratelimit-Limit") != "" {
			t.Errorf("blocked: %s", got.body)
		}
		if got := g.get(t, "/", "X-API-Key", "key-bob"); got.StatusCode != http.StatusOK {
			t.Errorf("another client got %d", got.StatusCode)
		}
		if log := g.log.String(); strings.Contains(log, "alice") {
			t.Errorf("the log names the client: %s", log)
		}
	}
	var list BlocksAnswer
	if status := b.operate(t, http.MethodGet, "/v1/blocks", "", &list); status != http.StatusOK || len(list.Items) != 1 || list.Items[0].Reason != "ticket 7" {
		t.Errorf("GET /v1/blocks: %d %+v", status, list)
	}
	server.SetError("LOADING out")
	if got := b.get(t, "/", "X-API-Key", "key-alice"); got.StatusCode != http.StatusForbidden {
		t.Errorf("while Redis is out: %d", got.StatusCode)
	}
	server.SetError("")
	if status := b.operate(t, http.MethodDelete, "/v1/blocks/"+block.ID, "", nil); status != http.StatusNoContent {
		t.Errorf("DELETE: %d", status)
	}
	eventually(t, "the block is gone", func() bool { return a.get(t, "/", "X-API-Key", "key-alice").StatusCode == http.StatusOK })
}

func TestBlocksThatCannotBe(t *testing.T) {
	server, _ := region(t)
	g := run(t, testConfig(t, perUser, upstream(t).URL), openStore(t, server))
	for _, body := range []string{
		`{}`, `{"identity": {}}`, `{"identity": {"user": "a", "ip": "192.0.2.1"}}`, `{"identity": {"tier": "free"}}`, `{"identity": {"ip": "x"}}`,
		`{"identity": {"user": "a"}, "for": -1}`, `{"identity": {"user": "a"}, "for": 99999999999}`, `{"identity": {"user": "a"}, "until": "x"}`,
		`{"identity": {"user": "a"}, "reason": "` + strings.Repeat("x", 300) + `"}`,
	} {
		if status := g.operate(t, http.MethodPost, "/v1/blocks", body, nil); status != http.StatusBadRequest {
			t.Errorf("%s: %d, want 400", body, status)
		}
	}
	for _, path := range []string{"/v1/blocks/nothing", "/v1/bans/00", "/v1/blocks/" + strings.Repeat("0", 32)} {
		if status := g.operate(t, http.MethodDelete, path, "", nil); status != http.StatusNotFound {
			t.Errorf("DELETE %s: %d, want 404", path, status)
		}
	}
}

// A candidate decides beside the current policy, harms nobody, and its report counts what would be different.
func TestCandidateReport(t *testing.T) {
	server, _ := region(t)
	const document = `schema: 1
policies:
  - {name: current, key: [user], algorithm: fixed_window, limit: 3, window: 720h, scope: region, on_failure: closed}
  - {name: stricter, candidate_of: current, key: [user], algorithm: sliding_window_log, limit: 2, window: 24h, scope: region, on_failure: closed}
  - {name: looser, candidate_of: current, key: [user], algorithm: token_bucket, rate: 100/h, scope: region, on_failure: closed}
`
	g := run(t, testConfig(t, document, upstream(t).URL), openStore(t, server))
	statuses, last := userGets(t, "alice", 5, g)
	if !slices.Equal(statuses, []int{200, 200, 200, 429, 429}) || strings.Contains(fmt.Sprint(last.Header), "stricter") {
		t.Fatalf("got %v %v, want the current policy's 3 and no word of candidates", statuses, last.Header)
	}
	var report CandidatesAnswer
	if status := g.operate(t, http.MethodGet, "/v1/candidates", "", &report); status != http.StatusOK || len(report.Items) != 2 {
		t.Fatalf("GET /v1/candidates: %d %+v", status, report)
	}
	for i, want := range []CandidateAnswer{
		{Candidate: "stricter", CandidateOf: "current", Requests: 5, NewlyDenied: 1},
		{Candidate: "looser", CandidateOf: "current", Requests: 5, NewlyAdmitted: 2},
	} {
		got := report.Items[i]
		if len(got.Examples) != int(want.NewlyDenied+want.NewlyAdmitted) || got.Examples[0].KeyID == "" {
			t.Errorf("%s has the examples %+v", got.Candidate, got.Examples)
		}
		if got.Candidate != want.Candidate || got.CandidateOf != want.CandidateOf || got.Requests != want.Requests ||
			got.NewlyDenied != want.NewlyDenied || got.NewlyAdmitted != want.NewlyAdmitted {
			t.Errorf("report %+v, want %+v", got, want)
		}
	}
}

// An address is blocked in whatever form it is written, by its network, and a client that is exempt from policies all the same.
func TestBlockedAddress(t *testing.T) {
	for _, row := range []struct{ body, identity string }{
		{`{"identity": {"ip": "::ffff:127.0.0.1"}}`, "ip=127.0.0.1"},
		{`{"identity": {"ip": "127.0.0.1"}}`, "ip=127.0.0.1"},
		{`{"identity": {"user": "alice"}}`, "user=alice"},
		{`{"identity": {"api_key": "key-alice"}}`, ""},
	} {
		server, _ := region(t)
		g := run(t, testConfig(t, strings.Replace(perUser, "policies:", "exempt: [{user: alice}]\npolicies:", 1), upstream(t).URL), openStore(t, server))
		if a := g.get(t, "/", "X-API-Key", "key-alice"); a.StatusCode != http.StatusOK {
			t.Fatalf("before: %d", a.StatusCode)
		}
		var block BlockAnswer
		if status := g.operate(t, http.MethodPost, "/v1/blocks", row.body, &block); status != http.StatusCreated || block.Until != nil ||
			(row.identity != "" && block.Identity != row.identity) || strings.Contains(block.Identity, "key-alice") {
			t.Errorf("%s: %d %+v", row.body, status, block)
		}
		eventually(t, "the block is known", func() bool {
			return g.get(t, "/", "X-API-Key", "key-alice").StatusCode == http.StatusForbidden
		})
	}
}
