package gateway

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/policy"
)

// region is a Redis of scripts, with a store for the test's own use.
func region(t *testing.T) (*miniredis.Miniredis, *bucket.Store) {
	t.Helper()
	server := miniredis.RunT(t)
	server.ClockTTL(true)
	return server, openStore(t, server)
}

func openStore(t *testing.T, server *miniredis.Miniredis) *bucket.Store {
	t.Helper()
	s, err := bucket.Open(bucket.Config{Addrs: []string{server.Addr()}, Timeout: 5 * time.Second, ServerID: "embedded"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// userGets sends n requests of user in turn through the gateways and returns the statuses.
func userGets(t *testing.T, user string, n int, gateways ...*running) (statuses []int, last answered) {
	t.Helper()
	for i := range n {
		last = gateways[i%len(gateways)].get(t, "/", "X-API-Key", "key-"+user)
		statuses = append(statuses, last.StatusCode)
	}
	return statuses, last
}

func count(statuses []int, status int) (n int) {
	for _, s := range statuses {
		if s == status {
			n++
		}
	}
	return n
}

// Case 10: a request that the narrow policy denies costs the broad one nothing.
func TestCase10_NarrowDenialDoesNotBurnTheBroadRule(t *testing.T) {
	server, _ := region(t)
	const document = `schema: 1
policies:
  - {name: org, key: [all], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: closed}
  - {name: user, key: [user], algorithm: token_bucket, rate: 5/min, scope: region, on_failure: closed}
`
	g := run(t, testConfig(t, document, upstream(t).URL), openStore(t, server))
	one, last := userGets(t, "user1", 8, g)
	if count(one, 200) != 5 || count(one, 429) != 3 {
		t.Errorf("user1 got %v, want 5 admitted and 3 denied", one)
	}
	if p := last.problem(t); !slices.Equal(p.Violated, []string{"user"}) {
		t.Errorf("violated %v, want user only", p.Violated)
	}
	two, last := userGets(t, "user2", 5, g)
	if count(two, 200) != 5 {
		t.Errorf("user2 got %v, want 5 admitted", two)
	}
	if got := last.Header.Get("Ratelimit"); !strings.HasPrefix(got, `"org";r=0;`) {
		t.Errorf("RateLimit = %s, want org at its end", got)
	}
	if three, last := userGets(t, "user3", 1, g); three[0] != 429 || !slices.Equal(last.problem(t).Violated, []string{"org"}) {
		t.Errorf("user3 got %v, want a denial by org", three)
	}
}

// Case 3: one token, two gateways of one region in turn.
func TestCase03_TwoGatewaysOneToken(t *testing.T) {
	server, _ := region(t)
	document := strings.ReplaceAll(perUser, "10/min", "1/h")
	a := run(t, testConfig(t, document, upstream(t).URL), openStore(t, server))
	b := run(t, testConfig(t, document, upstream(t).URL), openStore(t, server))
	for i := range 30 {
		got := []*running{a, b}[i%2].get(t, "/", "X-API-Key", "key-alice")
		want := http.StatusTooManyRequests
		if i == 0 {
			want = http.StatusOK
		}
		if got.StatusCode != want || got.Header.Get("X-Ratelimit-Remaining") != "0" {
			t.Errorf("request %d: status %d, remaining %s, want %d and 0", i, got.StatusCode, got.Header.Get("X-Ratelimit-Remaining"), want)
		}
	}
}

func TestBelowTheLimitNothingIsDenied(t *testing.T) {
	server, _ := region(t)
	g := run(t, testConfig(t, strings.ReplaceAll(perUser, "10/min", "50/h"), upstream(t).URL), openStore(t, server))
	var group sync.WaitGroup
	var admitted atomic.Int64
	for range 50 {
		group.Go(func() {
			if g.get(t, "/", "X-API-Key", "key-alice").StatusCode == http.StatusOK {
				admitted.Add(1)
			}
		})
	}
	group.Wait()
	if admitted.Load() != 50 {
		t.Errorf("admitted %d, want all of 50", admitted.Load())
	}
	if got := g.get(t, "/", "X-API-Key", "key-alice").StatusCode; got != http.StatusTooManyRequests {
		t.Errorf("the 51st got %d, want 429", got)
	}
}

// Case 8: Redis gone means what each policy says, never a 500, and recovery needs no hand.
func TestCase08_RedisGone(t *testing.T) {
	const document = `schema: 1
policies:
  - {name: may-pass, match: {paths: ["/open/*"]}, key: [user], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: {redis: open, allocator: local}}
  - {name: must-ask, match: {paths: ["/closed/*"]}, key: [user], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: closed}
`
	server, _ := region(t)
	g := run(t, testConfig(t, document, upstream(t).URL), openStore(t, server))
	get := func(path string) answered { return g.get(t, path, "X-API-Key", "key-a") }
	if a, b := get("/open/x"), get("/closed/x"); a.StatusCode != http.StatusOK || b.StatusCode != http.StatusOK || a.Header.Get("Annona-Degraded") != "" {
		t.Fatalf("with Redis: %d %d", a.StatusCode, b.StatusCode)
	}
	server.Close()
	if a := get("/open/x"); a.StatusCode != http.StatusOK || a.Header.Get("Annona-Degraded") != "redis" {
		t.Errorf("open: status %d, degraded %q, want 200 marked", a.StatusCode, a.Header.Get("Annona-Degraded"))
	}
	if a := get("/closed/x"); a.StatusCode != http.StatusServiceUnavailable || a.problem(t).Type != typeCapacity || a.Header.Get("Retry-After") == "" {
		t.Errorf("closed: status %d, want 503 with Retry-After", a.StatusCode)
	}
	if a := get("/other"); a.StatusCode != http.StatusOK {
		t.Errorf("no policy: status %d, want 200", a.StatusCode)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are asked about again", func() bool {
		a, b := get("/open/x"), get("/closed/x")
		return a.Header.Get("Annona-Degraded") == "" && b.StatusCode != http.StatusServiceUnavailable
	})
}

func TestReloadThroughARealMirror(t *testing.T) {
	server, store := region(t)
	g := run(t, testConfig(t, perUser, upstream(t).URL), openStore(t, server))
	eventually(t, "the gateway hears changes", func() bool { return server.PubSubNumSub("annona:1:mirror")["annona:1:mirror"] == 1 })
	if err := store.SetMirror(t.Context(), bucket.Mirror{PolicyRevision: 1, Policy: []byte(strings.ReplaceAll(perUser, "10/min", "25/min"))}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the mirrored limit is in use", func() bool {
		return g.get(t, "/", "X-API-Key", "key-reload").Header.Get("X-Ratelimit-Limit") == "25"
	})
	eventually(t, "the gateway is registered with its revision", func() bool {
		list, err := store.Gateways(t.Context())
		return err == nil && len(list) == 1 && list[0].Fingerprint == g.secret.Fingerprint()
	})
}

// agent answers every demand at once with granted tokens, as a region's agent and the allocator would.
func agent(t *testing.T, store *bucket.Store, granted int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	var busy sync.WaitGroup
	fill := func(a bucket.Announcement) {
		views, err := store.Views(ctx, []bucket.Ref{a.Ref})
		if err != nil || views[0].InFlight || granted == 0 {
			return
		}
		asked, err := store.Ask(ctx, []bucket.Plan{{View: views[0], Want: 1, Waiting: 1, Deadline: time.Second}})
		if err != nil || asked[0] == nil {
			return
		}
		_, _ = store.Fill(ctx, []bucket.Grant{{
			Ref: a.Ref, Epoch: asked[0].Epoch, Session: asked[0].Item.GetSession(), Seq: asked[0].Item.GetSeq(),
			Granted: 3, TTL: 10 * time.Second, PoolLevel: 6,
		}})
		granted -= 3
	}
	var mu sync.Mutex
	go func() {
		ended <- store.Demands(ctx, func(a bucket.Announcement) {
			busy.Go(func() { mu.Lock(); defer mu.Unlock(); fill(a) })
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Demands: %v", err)
		}
		busy.Wait()
	})
}

// The whole way of a lease as a gateway sees it: an empty allotment, a wait, a fill, and the waiting requests pass; when
// nothing more is granted they are denied at the end of their wait.
func TestWaitForALease(t *testing.T) {
	server, store := region(t)
	encoded, err := policy.EncodeRegions(&policy.Regions{
		Regions: []policy.Region{{Name: "eu", Weight: 1}, {Name: "us", Weight: 1}}, Shards: 4, Times: policy.DefaultTimes(),
	})
	if err != nil {
		t.Fatal(err)
	}
	document := strings.NewReplacer("scope: region", "scope: global", "rate: 10/min", "rate: 90/h, allotment: 1%, lease_wait: 2s").Replace(perUser)
	if err := store.SetMirror(t.Context(), bucket.Mirror{PolicyRevision: 1, Policy: []byte(document), RegionsRevision: 1, Regions: encoded}); err != nil {
		t.Fatal(err)
	}
	agent(t, store, 9)
	g := run(t, testConfig(t, "", upstream(t).URL), openStore(t, server))
	eventually(t, "the agent hears demand", func() bool { return server.PubSubNumSub("annona:1:demand")["annona:1:demand"] == 1 })
	eventually(t, "the gateway hears fills", func() bool { return server.PubSubNumSub("annona:1:fills")["annona:1:fills"] == 1 })
	var group sync.WaitGroup
	var admitted atomic.Int64
	start := time.Now()
	for range 9 {
		group.Go(func() {
			if g.get(t, "/", "X-API-Key", "key-alice").StatusCode == http.StatusOK {
				admitted.Add(1)
			}
		})
	}
	group.Wait()
	if admitted.Load() != 9 {
		t.Errorf("admitted %d, want all of the 9 that were leased", admitted.Load())
	}
	if admitted.Load() == 9 {
		if a := g.get(t, "/", "X-API-Key", "key-alice"); a.StatusCode != http.StatusTooManyRequests || a.Header.Get("X-Ratelimit-Remaining") != "0" {
			t.Errorf("without an answer: status %d, remaining %s", a.StatusCode, a.Header.Get("X-Ratelimit-Remaining"))
		}
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v, far above two waits for a lease", took)
	}
}
