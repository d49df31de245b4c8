package gateway

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/policy"
)

// limited is a gateway with a Redis of scripts, an upstream, and a policy p0, p1, … of key [user] for each line of fields.
func limited(t *testing.T, fields string, up http.HandlerFunc) *running {
	t.Helper()
	server, _ := region(t)
	return limitedBy(t, server, fields, up)
}

// limitedBy is that with a Redis, and an upstream elsewhere if one is named.
func limitedBy(t *testing.T, server *miniredis.Miniredis, fields string, up http.HandlerFunc, elsewhere ...string) *running {
	t.Helper()
	document := "schema: 1\npolicies:\n"
	for i, each := range strings.Split(fields, "\n") {
		document += "  - {name: p" + strconv.Itoa(i) + ", key: [user], scope: region, on_failure: closed, " + each + "}\n"
	}
	if len(elsewhere) > 0 {
		return run(t, testConfig(t, document, elsewhere[0]), openStore(t, server))
	}
	upstream := httptest.NewServer(up)
	t.Cleanup(upstream.Close)
	return run(t, testConfig(t, document, upstream.URL), openStore(t, server))
}

// alice is how her client stands with the first policy.
func (r *running) alice(t *testing.T) admit.Standing {
	t.Helper()
	return r.standing(t, "alice")
}

func (r *running) standing(t *testing.T, user string) admit.Standing {
	t.Helper()
	standing, err := r.admitter.Usage(t.Context(), "p0", policy.Identity{User: user, Tier: "free"})
	if err != nil {
		t.Fatal(err)
	}
	return standing
}

// begin sends a request of alice's, whose answer may still go on.
func (r *running) begin(ctx context.Context, t *testing.T, path string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "key-alice")
	return client().Do(req)
}

// Every algorithm tells a client the same things in the same way.
func TestEveryAlgorithmTellsLimitAndRemainder(t *testing.T) {
	for _, row := range []struct{ fields, policy, detail string }{
		{"algorithm: token_bucket, rate: 3/h", `"p0";q=3;w=3600`, "Limit p0: 3 per hour."},
		{"algorithm: fixed_window, limit: 3, window: 720h", `"p0";q=3;w=2592000`, "Limit p0: 3 per 30 days."},
		{"algorithm: fixed_window, limit: 3, window: month, timezone: Europe/Rome", `"p0";q=3;w=2`, "Limit p0: 3 per month."},
		{"algorithm: sliding_window_log, limit: 3, window: 1h", `"p0";q=3;w=3600`, "Limit p0: 3 per hour."},
		{"algorithm: sliding_window_counter, limit: 3, window: 1h", `"p0";q=3;w=3600`, "Limit p0: 3 per hour."},
	} {
		t.Run(row.fields, func(t *testing.T) {
			g := limited(t, row.fields, func(http.ResponseWriter, *http.Request) {})
			for n := range 4 {
				a := g.get(t, "/", "X-API-Key", "key-alice")
				if want := strconv.Itoa(max(0, 2-n)); a.Header.Get("X-Ratelimit-Limit") != "3" || a.Header.Get("X-Ratelimit-Remaining") != want ||
					!strings.HasPrefix(a.Header.Get("Ratelimit-Policy"), row.policy) || a.Header.Get("X-Ratelimit-Reset") == "0" {
					t.Errorf("request %d: %v, want %s of 3 left", n, a.Header, want)
				}
				if n < 3 {
					if a.StatusCode != http.StatusOK {
						t.Errorf("request %d: %d", n, a.StatusCode)
					}
					continue
				}
				p := a.problem(t)
				after, err := strconv.Atoi(a.Header.Get("Retry-After"))
				if a.StatusCode != http.StatusTooManyRequests || err != nil || after < 1 || !strings.HasPrefix(p.Detail, row.detail) {
					t.Errorf("request %d: %d, Retry-After %q, %q, want %q", n, a.StatusCode, a.Header.Get("Retry-After"), p.Detail, row.detail)
				}
			}
		})
	}
}

// Policies of different algorithms: who is denied by one is charged by none.
func TestLayersOfAlgorithmsChargeAllOrNone(t *testing.T) {
	g := limited(t, "algorithm: sliding_window_log, limit: 5, window: 1h\nalgorithm: fixed_window, limit: 2, window: 24h\nalgorithm: concurrency, limit: 3",
		func(http.ResponseWriter, *http.Request) {})
	statuses, last := userGets(t, "alice", 4, g)
	if !slices.Equal(statuses, []int{200, 200, 429, 429}) || !slices.Equal(last.problem(t).Violated, []string{"p1"}) {
		t.Errorf("got %v, violated %v, want the second policy's 2", statuses, last.problem(t).Violated)
	}
	if left := g.alice(t).Remaining; left != 3 {
		t.Errorf("the first policy has %d of 5 left, want 3: a denied request costs nothing", left)
	}
}

// A queue: requests wait for their turns, and the one beyond max_delay is denied.
func TestQueueWaitsForTurns(t *testing.T) {
	g := limited(t, "algorithm: token_bucket, rate: 2/s, burst: 1, max_delay: 1s", func(http.ResponseWriter, *http.Request) {})
	var group sync.WaitGroup
	var statuses [4]int
	begun := time.Now()
	for i := range statuses {
		group.Go(func() { statuses[i] = g.get(t, "/", "X-API-Key", "key-alice").StatusCode })
	}
	group.Wait()
	// One at once, one after 0.5 s, one after 1 s; a fourth would wait 1.5 s, unless this machine took half a second for it.
	if took := time.Since(begun); count(statuses[:], 200) < 3 || took < 900*time.Millisecond {
		t.Errorf("%v in %s, want three by turns", statuses, took)
	}
}

// Who leaves a queue frees its place: nobody waits behind a client that is gone.
func TestQueueGivesBackThePlaceOfWhoLeaves(t *testing.T) {
	var reached atomic.Int64
	g := limited(t, "algorithm: token_bucket, rate: 3/min, burst: 1, max_delay: 30s", func(http.ResponseWriter, *http.Request) { reached.Add(1) })
	g.get(t, "/", "X-API-Key", "key-alice")
	for range 3 { // each takes the one place, and leaves
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan int, 1)
		join := func() {
			status := 0
			if res, err := g.begin(ctx, t, "/"); err == nil {
				status = res.StatusCode
				_ = res.Body.Close()
			}
			ended <- status
		}
		go join()
		eventually(t, "the request waits for its turn", func() bool {
			select {
			case status := <-ended:
				if status != http.StatusTooManyRequests { // it may come a moment before the gateway knows of the free place
					t.Fatalf("it got %d", status)
				}
				go join()
			default:
			}
			return g.queued.Load() == 1
		})
		if a := g.get(t, "/", "X-API-Key", "key-alice"); a.StatusCode != http.StatusTooManyRequests {
			t.Errorf("a second one in the queue got %d", a.StatusCode)
		}
		leave()
		if status := <-ended; status != 0 {
			t.Errorf("the client that left was answered %d", status)
		}
		eventually(t, "its place is free", func() bool { return g.queued.Load() == 0 && g.alice(t).Reset <= 21_000_000 })
	}
	if reached.Load() != 1 {
		t.Errorf("the upstream saw %d requests, want the first only", reached.Load())
	}
}

// Slots: as many requests at a time as the limit says, streams until their end, and each slot is free again once.
func TestSlotsEndWithTheirRequests(t *testing.T) {
	release := make(chan struct{})
	g := limited(t, "algorithm: concurrency, limit: 2", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/slow" {
			return
		}
		_, _ = io.WriteString(w, "begun")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	ctx, leave := context.WithCancel(t.Context())
	one, err1 := g.begin(ctx, t, "/slow")
	two, err2 := g.begin(t.Context(), t, "/slow")
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	defer one.Body.Close()
	defer two.Body.Close()
	third := g.get(t, "/", "X-API-Key", "key-alice")
	if one.StatusCode != http.StatusOK || two.StatusCode != http.StatusOK || third.StatusCode != http.StatusTooManyRequests {
		t.Fatalf("two streams and a third got %d, %d, %d", one.StatusCode, two.StatusCode, third.StatusCode)
	}
	if got := third.Header.Get("Ratelimit-Policy"); got != `"p0";q=2` {
		t.Errorf("RateLimit-Policy = %s, want no window", got)
	}
	leave()
	eventually(t, "the slot of the client that left is free", func() bool {
		return g.get(t, "/", "X-API-Key", "key-alice").StatusCode == http.StatusOK
	})
	close(release)
	if body, err := io.ReadAll(two.Body); string(body) != "begun" || err != nil {
		t.Errorf("the other stream: %q, %v", body, err)
	}
	eventually(t, "both slots are free", func() bool { return g.alice(t).Remaining == 2 })
}

// An upstream says what a request did cost, in a header or in the trailer of a stream; a failure costs nothing where it is refunded.
func TestCostIsCorrectedAfterTheAnswer(t *testing.T) {
	g := limited(t, "algorithm: fixed_window, limit: 1000, window: 720h, cost: {default: 10, actual: X-Actual-Cost, refund: [503]}",
		func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/header":
				w.Header().Set("X-Actual-Cost", "3")
			case "/trailer":
				w.Header().Set("Trailer", "X-Actual-Cost")
				_, _ = io.WriteString(w, "tokens of a stream")
				_ = http.NewResponseController(w).Flush()
				w.Header().Set("X-Actual-Cost", "25")
			case "/rubbish":
				w.Header().Set("X-Actual-Cost", "-5")
			case "/failed":
				w.WriteHeader(http.StatusServiceUnavailable)
			case "/free":
				w.Header().Set("X-Actual-Cost", "0")
			}
		})
	want := int64(1000)
	for _, row := range []struct {
		path string
		cost int64
	}{{"/none", 10}, {"/header", 3}, {"/trailer", 25}, {"/rubbish", 10}, {"/failed", 0}, {"/free", 0}, {"/header", 3}} {
		g.get(t, row.path, "X-API-Key", "key-alice")
		want -= row.cost
		eventually(t, row.path+" did cost what it should", func() bool { return int64(g.alice(t).Remaining) == want })
	}
}
