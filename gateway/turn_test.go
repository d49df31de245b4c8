package gateway

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const slowQueue = "algorithm: token_bucket, rate: 3/min, burst: 1, max_delay: 30s"

// send posts a body of alice's and answers with the status, 0 where there is none.
func (r *running) send(ctx context.Context, t *testing.T, body string) <-chan int {
	t.Helper()
	status := make(chan int, 1)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.Addr().String()+"/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "key-alice")
	go func() {
		res, err := client().Do(req)
		if err != nil {
			status <- 0
			return
		}
		_ = res.Body.Close()
		status <- res.StatusCode
	}()
	return status
}

// settled waits until so many costs are settled.
func (r *running) settled(t *testing.T, n int) {
	t.Helper()
	eventually(t, strconv.Itoa(n)+" costs are settled", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.AdminAddr().String()+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(r.do(t, req).body)) {
			if strings.HasPrefix(line, "annona_corrections_total") && strings.Contains(line, `outcome="settled"`) {
				return strings.HasSuffix(strings.TrimSpace(line), "} "+strconv.Itoa(n))
			}
		}
		return false
	})
}

// A client that leaves the queue frees its place also where it has sent a body that nobody has asked for yet.
func TestQueueGivesBackThePlaceOfAPost(t *testing.T) {
	g := limited(t, slowQueue, func(http.ResponseWriter, *http.Request) {})
	g.get(t, "/", "X-API-Key", "key-alice")
	ctx, leave := context.WithCancel(t.Context())
	status := g.send(ctx, t, strings.Repeat("prompt ", 1000))
	eventually(t, "it waits", func() bool { return g.queued.Load() == 1 })
	leave()
	<-status
	eventually(t, "its place is free", func() bool {
		return g.queued.Load() == 0 && g.ahead.Load() == 0 && g.alice(t).Reset <= 21_000_000
	})
}

// A body that came while its request waited reaches the upstream whole.
func TestQueuedBodyArrivesWhole(t *testing.T) {
	got := make(chan string, 2)
	g := limited(t, "algorithm: token_bucket, rate: 5/s, burst: 1, max_delay: 30s", func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		got <- string(body) + strconv.FormatInt(r.ContentLength, 10)
		if err != nil {
			t.Error(err)
		}
	})
	for _, body := range []string{"first", strings.Repeat("x", 100_000)} {
		if status := <-g.send(t.Context(), t, body); status != http.StatusOK {
			t.Errorf("%d", status)
		}
		if text := <-got; text != body+strconv.Itoa(len(body)) {
			t.Errorf("the upstream got %d bytes of %d", len(text), len(body))
		}
	}
}

// A gateway that ends lets those through whose turn comes in time, and tells the others at once that it does not.
func TestDrainOfAQueue(t *testing.T) {
	server, _ := region(t)
	const document = `schema: 1
policies:
  - {name: p0, key: [user], scope: region, on_failure: closed, algorithm: token_bucket, rate: 1/s, burst: 1, max_delay: 30s, match: {paths: [/soon]}}
  - {name: p1, key: [user], scope: region, on_failure: closed, algorithm: token_bucket, rate: 3/min, burst: 1, max_delay: 30s, match: {paths: [/late]}}
`
	cfg := testConfig(t, document, upstream(t).URL)
	cfg.Drain = DrainConfig{Timeout: 8 * time.Second}
	g := run(t, cfg, openStore(t, server))
	answers := map[string]chan answered{}
	for _, path := range []string{"/soon", "/late"} {
		g.get(t, path, "X-API-Key", "key-alice")
		answers[path] = make(chan answered, 1)
		go func() { answers[path] <- g.get(t, path, "X-API-Key", "key-alice") }()
	}
	eventually(t, "both wait", func() bool { return g.queued.Load() == 2 })
	began := time.Now()
	ended := make(chan error, 1)
	go func() { ended <- g.stop() }()
	of := func(path string) (a answered) {
		t.Helper()
		select {
		case a = <-answers[path]:
		case <-time.After(15 * time.Second):
			t.Fatalf("%s was not answered", path)
		}
		return a
	}
	late := of("/late")
	if took := time.Since(began); late.StatusCode != http.StatusServiceUnavailable || took > 3*time.Second || late.Header.Get("Retry-After") == "" ||
		late.Header.Get("X-Ratelimit-Limit") != "1" || late.problem(t).Type != typeCapacity {
		t.Errorf("whose turn would come too late: %d after %s, %v", late.StatusCode, took, late.Header)
	}
	if soon := of("/soon"); soon.StatusCode != http.StatusOK {
		t.Errorf("whose turn comes in time: %d", soon.StatusCode)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What a candidate would admit is charged to it though the request is denied: else it would seem to admit for ever.
func TestCandidateIsChargedForWhatItWouldAdmit(t *testing.T) {
	server, _ := region(t)
	const document = `schema: 1
policies:
  - {name: current, key: [user], algorithm: fixed_window, limit: 1, window: 720h, scope: region, on_failure: closed}
  - {name: next, candidate_of: current, key: [user], algorithm: token_bucket, rate: 3/day, scope: region, on_failure: closed, cost: {default: 1, actual: X-Cost}}
`
	g := run(t, testConfig(t, document, upstream(t).URL), openStore(t, server))
	for n := range 6 {
		g.get(t, "/", "X-API-Key", "key-alice")
		g.settled(t, min(n+1, 3))
		if report := g.admitter.Rollouts()[0]; report.NewlyAdmitted != int64(min(n, 2)) {
			t.Errorf("after %d requests %d newly admitted, want %d", n+1, report.NewlyAdmitted, min(n, 2))
		}
	}
}

// A client that says in its request what the answer should say gains nothing, also at an upstream that sends back all it gets.
func TestCase11_ClientsSayNoActualCost(t *testing.T) {
	g := limited(t, "algorithm: fixed_window, limit: 1000, window: 720h, cost: {default: 10, actual: X-Actual-Cost}", func(w http.ResponseWriter, r *http.Request) {
		for name, values := range r.Header {
			w.Header()[http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))] = values
		}
		w.Header().Del("Content-Length")
	})
	for i, name := range []string{"X-Actual-Cost", "x-actual-cost", "X_Actual_Cost"} {
		if a := g.get(t, "/", "X-API-Key", "key-alice", name, "0"); a.StatusCode != http.StatusOK || a.Header.Get("X-Actual-Cost") != "" {
			t.Errorf("%s: %d %v", name, a.StatusCode, a.Header)
		}
		if left := g.alice(t).Remaining; int(left) != 1000-10*(i+1) {
			t.Errorf("%s: %d left, want %d", name, left, 1000-10*(i+1))
		}
	}
}

// Case 11: what comes back after the last token lets one more pass, and more than there is room for is capped.
func TestCase11_GiveBacksAreCapped(t *testing.T) {
	for _, algorithm := range []string{"token_bucket, rate: 5/day", "fixed_window, limit: 5, window: 720h", "sliding_window_log, limit: 5, window: 24h", "sliding_window_counter, limit: 5, window: 720h"} {
		var free atomic.Bool
		g := limited(t, "algorithm: "+algorithm+", cost: {default: 1, rules: [{paths: [/all], cost: 5}], actual: X-Actual-Cost}", func(w http.ResponseWriter, _ *http.Request) {
			if free.Load() {
				w.Header().Set("X-Actual-Cost", "0")
			}
		})
		statuses, _ := userGets(t, "alice", 4, g)
		free.Store(true)
		g.get(t, "/", "X-API-Key", "key-alice") // the last, which costs nothing in the end
		eventually(t, algorithm+": it came back", func() bool { return g.alice(t).Remaining == 1 })
		free.Store(false)
		more, _ := userGets(t, "alice", 2, g)
		if !slices.Equal(append(statuses, more...), []int{200, 200, 200, 200, 200, 429}) {
			t.Errorf("%s: %v, then %v", algorithm, statuses, more)
		}
		free.Store(true)
		for range 3 { // each gives back all that there may be
			g.get(t, "/all", "X-API-Key", "key-bob")
			eventually(t, algorithm+": it came back", func() bool { return g.standing(t, "bob").Remaining == 5 })
		}
		free.Store(false)
		if got, _ := userGets(t, "bob", 7, g); count(got, 200) > 5 {
			t.Errorf("%s: %v after give-backs, want 5 at most", algorithm, got)
		}
	}
}

// Case 18: a daily quota begins anew once, at the midnight of its zone, also on days on which clocks are changed.
func TestCase18_DailyQuotaOfAZone(t *testing.T) {
	server, _ := region(t)
	at := func(text string) {
		now, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		server.SetTime(now)
	}
	at("2026-03-28T22:59:58Z") // two seconds before Rome's midnight
	g := run(t, testConfig(t, `schema: 1
policies:
  - {name: p0, key: [user], scope: region, on_failure: closed, algorithm: fixed_window, limit: 2, window: day, timezone: Europe/Rome}
`, upstream(t).URL), openStore(t, server))
	ask := func() (a answered) { // until the store's clock is vouched for
		eventually(t, "an answer", func() bool {
			a = g.get(t, "/", "X-API-Key", "key-alice")
			return a.StatusCode != http.StatusServiceUnavailable
		})
		return a
	}
	two := func(when string) {
		t.Helper()
		eventually(t, when+": the quota begins anew", func() bool { return ask().StatusCode == http.StatusOK })
		if second, third := ask().StatusCode, ask().StatusCode; second != http.StatusOK || third != http.StatusTooManyRequests {
			t.Errorf("%s: then %d and %d, want 200 and 429", when, second, third)
		}
	}
	none := func(when, now string) {
		t.Helper()
		at(now)
		<-time.After(1100 * time.Millisecond) // longer than a denial is believed
		if a := ask(); a.StatusCode != http.StatusTooManyRequests {
			t.Errorf("%s: %d, want 429", when, a.StatusCode)
		}
	}
	two("on the first day")
	if after, err := strconv.Atoi(ask().Header.Get("Retry-After")); err != nil || after < 2 || after > 3 {
		t.Errorf("Retry-After %d, want the two seconds to midnight", after)
	}
	none("a second before midnight", "2026-03-28T22:59:59Z")
	at("2026-03-28T23:00:00Z")
	two("on the day of 23 hours")
	none("a second before it ends", "2026-03-29T21:59:59Z")
	at("2026-03-29T22:00:00Z")
	two("on the day after")
}

// A window that has ended before the answer told its cost is not corrected, and the new one is not either.
func TestCostOfAWindowThatHasEnded(t *testing.T) {
	server, _ := region(t)
	release := make(chan struct{})
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			<-release
			w.Header().Set("X-Actual-Cost", "0")
		}
	})
	server.SetTime(time.Date(2026, 5, 1, 11, 59, 59, 0, time.UTC))
	g := limitedBy(t, server, "algorithm: fixed_window, limit: 10, window: 1h, cost: {default: 4, actual: X-Actual-Cost}", up)
	slow := make(chan answered, 1)
	go func() { slow <- g.get(t, "/slow", "X-API-Key", "key-alice") }()
	eventually(t, "the slow one is charged", func() bool { return g.alice(t).Remaining == 6 })
	server.SetTime(time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC))
	g.get(t, "/", "X-API-Key", "key-alice")
	close(release)
	<-slow
	g.settled(t, 1)
	if left := g.alice(t).Remaining; left != 6 {
		t.Errorf("%d left in the new window, want 6", left)
	}
}

// An upgraded connection holds its slot until it is closed.
func TestSlotOfAnUpgradedConnection(t *testing.T) {
	g := limited(t, "algorithm: concurrency, limit: 1", echoLines)
	conn, _ := upgraded(t, g)
	if a := g.get(t, "/", "X-API-Key", "key-a"); a.StatusCode != http.StatusTooManyRequests {
		t.Errorf("beside it: %d, want 429", a.StatusCode)
	}
	_ = conn.Close()
	eventually(t, "its slot is free", func() bool {
		again, err := http.NewRequestWithContext(t.Context(), http.MethodHead, "http://"+g.Addr().String()+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		again.Header.Set("X-Api-Key", "key-a")
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		res, err := client().Do(again.WithContext(ctx))
		if err != nil {
			return true // it goes on at the upstream
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// A stream of a language model over gRPC tells in its trailers what it did cost.
func TestGRPCTrailersTellTheCost(t *testing.T) {
	server, _ := region(t)
	g := limitedBy(t, server, "algorithm: fixed_window, limit: 1000, window: 720h, cost: {default: 10, actual: X-Tokens}", nil, grpcUpstream(t))
	if a := call(t, h2c(t, nil), "http://"+g.Addr().String(), "key-alice"); a.Trailer.Get("Grpc-Status") != "0" {
		t.Fatalf("%v %v", a.Header, a.Trailer)
	}
	eventually(t, "its trailers are heard", func() bool { return g.alice(t).Remaining == 1000-42 })
}

// A gateway that keeps as many waiting as it can refuses the next, which gets its place back and is told its limits.
func TestQueueOfAGatewayIsBounded(t *testing.T) {
	g := limited(t, slowQueue, func(http.ResponseWriter, *http.Request) {})
	g.get(t, "/", "X-API-Key", "key-alice")
	g.queued.Store(maxQueued)
	a := g.get(t, "/", "X-API-Key", "key-alice")
	if p := a.problem(t); a.StatusCode != http.StatusServiceUnavailable || p.Type != typeCapacity || !strings.Contains(p.Detail, "turn") ||
		a.Header.Get("X-Ratelimit-Limit") != "1" || g.queued.Load() != maxQueued {
		t.Errorf("%d %+v %v, %d wait", a.StatusCode, p, a.Header, g.queued.Load())
	}
	eventually(t, "its place is free", func() bool { return g.alice(t).Reset <= 21_000_000 })
}

// The same of a log, by a clock that goes on: after a step, entries count as if they had come with it (PROTOCOL.md E2).
func TestRetryAfterOfALogKeepsItsWord(t *testing.T) {
	g := limited(t, "algorithm: sliding_window_log, limit: 3, window: 2s", func(http.ResponseWriter, *http.Request) {})
	statuses, last := userGets(t, "alice", 4, g)
	after, err := strconv.Atoi(last.Header.Get("Retry-After"))
	if !slices.Equal(statuses, []int{200, 200, 200, 429}) || err != nil || after < 2 || after > 3 {
		t.Fatalf("%v, Retry-After %q", statuses, last.Header.Get("Retry-After"))
	}
	<-time.After(time.Duration(after) * time.Second)
	if a := g.get(t, "/", "X-API-Key", "key-alice"); a.StatusCode != http.StatusOK {
		t.Errorf("after %d s: %d", after, a.StatusCode)
	}
}

// A lone client that waits as long as it is told is admitted then, and not a second before.
func TestRetryAfterOfWindowsKeepsItsWord(t *testing.T) {
	for _, row := range []struct {
		fields string
		after  int
	}{
		{"algorithm: fixed_window, limit: 3, window: 1m", 53},
		{"algorithm: sliding_window_counter, limit: 3, window: 1m", 73}, // a third of the window after: ceil(3 · 2/3) = 2
		{"algorithm: fixed_window, limit: 3, window: 5s, ban: {denials: 1, within: 1m, for: 40s}", 40},
	} {
		t.Run(row.fields, func(t *testing.T) {
			server, _ := region(t)
			begun := time.Date(2026, 5, 1, 12, 0, 5, 0, time.UTC)
			server.SetTime(begun)
			lone := func() *running { // which remembers no denial
				g := limitedBy(t, server, row.fields, func(http.ResponseWriter, *http.Request) {})
				g.fields.Store(&fields{sets: HeaderSets{HeadersX}, now: time.Now, random: func() float64 { return 0 }})
				return g
			}
			ask := func(g *running) (a answered) {
				eventually(t, "an answer", func() bool {
					a = g.get(t, "/", "X-API-Key", "key-alice")
					return a.StatusCode != http.StatusServiceUnavailable
				})
				return a
			}
			g := lone()
			for range 3 {
				ask(g)
			}
			server.SetTime(begun.Add(2 * time.Second))
			a := ask(g)
			if banned := strings.Contains(row.fields, "ban"); banned {
				a = ask(lone())
			}
			after, err := strconv.Atoi(a.Header.Get("Retry-After"))
			if a.StatusCode != http.StatusTooManyRequests || err != nil || after != row.after {
				t.Fatalf("%d, Retry-After %q, want %d", a.StatusCode, a.Header.Get("Retry-After"), row.after)
			}
			server.SetTime(begun.Add(time.Duration(1+after) * time.Second))
			if b := ask(lone()); b.StatusCode != http.StatusTooManyRequests {
				t.Errorf("a second before: %d, want 429", b.StatusCode)
			}
			server.SetTime(begun.Add(time.Duration(2+after) * time.Second))
			if b := ask(lone()); b.StatusCode != http.StatusOK {
				t.Errorf("after %d s: %d %s, want 200", after, b.StatusCode, b.body)
			}
		})
	}
}
