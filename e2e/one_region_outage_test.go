package e2e_test

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/e2e/cluster"
)

// byMode has one path for each failure mode.
const byMode = `schema: 1
policies:
  - {name: opened, match: {paths: [/open]}, key: ["header:X-Client"], algorithm: token_bucket, rate: 10/s, burst: 20, scope: region, on_failure: {redis: open}}
  - {name: shut, match: {paths: [/closed]}, key: ["header:X-Client"], algorithm: token_bucket, rate: 10/s, burst: 20, scope: region, on_failure: closed}
  - {name: own, match: {paths: [/local]}, key: ["header:X-Client"], algorithm: token_bucket, rate: 10/s, burst: 20, scope: region, on_failure: {redis: local}}
`

// Case 8: Redis stopped × open, closed, local: 200 and marked; 503, a problem with Retry-After; each gateway's part of the limit.
// Never a 500, ready throughout, and back without a hand.
func TestCase08_RedisStoppedByMode(t *testing.T) {
	t.Parallel()
	a, server := alone(t, 2, byMode)
	served := func(g *cluster.Gateway) {
		t.Helper()
		for _, path := range []string{"/open", "/closed", "/local"} {
			cluster.Eventually(t, 15*time.Second, "asked at "+path, func() bool {
				r := cluster.Ask(t.Context(), g, path, "alice")
				return r.Status == http.StatusOK && r.Degraded() == ""
			})
		}
	}
	for _, g := range a.Gateways {
		served(g)
	}
	// The gateways count each other every five seconds; both must know of both.
	cluster.Eventually(t, 10*time.Second, "two are registered", func() bool {
		n, err := a.Client().HLen(t.Context(), "annona:1:gateways").Result()
		return err == nil && n >= 2
	})
	<-time.After(5100 * time.Millisecond)
	server.Kill()
	began := time.Now()
	var local, refused [2]int
	for time.Since(began) < 4*time.Second {
		for i, g := range a.Gateways {
			for _, path := range []string{"/open", "/closed", "/local"} {
				r := cluster.Ask(t.Context(), g, path, "alice")
				switch {
				case r.Status == http.StatusServiceUnavailable && (path == "/closed" || refused[i] < 5):
					if r.Header.Get("Retry-After") == "" || r.Header.Get("Content-Type") != "application/problem+json" {
						t.Fatalf("%s: 503 %v %s", path, r.Header, r.Body)
					}
					if path == "/local" {
						refused[i]++ // on its way when the connection broke: nobody knows whether it was charged
					}
				case path == "/closed" || r.Degraded() != "redis":
					t.Fatalf("%s: %d, degraded %q", path, r.Status, r.Degraded())
				case path == "/open" && r.Status != http.StatusOK, r.Status == http.StatusInternalServerError:
					t.Fatalf("%s: %d %s", path, r.Status, r.Body)
				case path == "/local" && r.Status == http.StatusOK:
					local[i]++
				}
			}
			if !cluster.Ready(g.AdminURL) {
				t.Fatal("/readyz is not 200")
			}
		}
	}
	// 10/s over two gateways, from empty.
	most := int(5*time.Since(began).Seconds()) + 1
	for i, n := range local {
		if n < 5 || n > most {
			t.Errorf("gateway %d admitted %d by itself, want some and at most %d", i, n, most)
		}
	}
	server.Restart()
	for _, g := range a.Gateways {
		served(g)
	}
}

// Case 7: Redis paused for ten seconds at 1,000 requests a second: the added latency is within the timeout, goroutines and memory
// stay flat, nobody is answered 500, /readyz is 200 throughout, and nothing has to be restarted.
func TestCase07_RedisPausedForTenSeconds(t *testing.T) {
	const timeout, pause, rate = 250 * time.Millisecond, 10 * time.Second, 1000
	const noise = 50 * time.Millisecond // of a machine with two busy cores
	a, server := alone(t, 1, byMode)
	g, control := a.Gateways[0], server.Client()
	before := load(t, g, 2*time.Second, rate)
	if err := control.Do(t.Context(), "CLIENT", "PAUSE", pause.Milliseconds(), "ALL").Err(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var watched sync.WaitGroup
	var goroutines, memory []float64
	ready := true
	watched.Go(func() {
		for time.Since(began) < pause-time.Second {
			n, ok1 := cluster.Metric(t.Context(), g, "go_goroutines")
			m, ok2 := cluster.Metric(t.Context(), g, "go_memstats_heap_inuse_bytes")
			ready = ready && ok1 && ok2 && cluster.Ready(g.AdminURL)
			if time.Since(began) > time.Second {
				goroutines, memory = append(goroutines, n), append(memory, m)
			}
			<-time.After(200 * time.Millisecond)
		}
	})
	during := load(t, g, pause-time.Second, rate)
	watched.Wait()
	t.Logf("p50 %s, p99 %s with Redis; p50 %s, p99 %s, longest %s while it is paused; %0.f to %0.f goroutines, %.1f to %.1f MiB", at(before, 50),
		at(before, 99), at(during, 50), at(during, 99), at(during, 100), slices.Min(goroutines), slices.Max(goroutines),
		slices.Min(memory)/(1<<20), slices.Max(memory)/(1<<20))
	// Those that were asked in the first timeout's time pay it, and one in each probe's. All others pay nothing.
	if added := at(during, 99) - max(at(before, 99), noise); added > timeout {
		t.Errorf("added p99 %s, want at most the timeout of %s", added, timeout)
	}
	if added := at(during, 50) - at(before, 50); added > noise {
		t.Errorf("added p50 %s, want none", added)
	}
	if !ready {
		t.Error("/readyz or /metrics did not answer 200 throughout")
	}
	if most := slices.Max(goroutines); most > 600 {
		t.Errorf("%0.f goroutines, want as many as a busy gateway has", most)
	}
	half := len(memory) / 2
	if early, late := slices.Max(memory[:half]), slices.Max(memory[half:]); late > 1.5*early+(16<<20) {
		t.Errorf("memory grew from %.1f to %.1f MiB", early/(1<<20), late/(1<<20))
	}
	cluster.Eventually(t, 15*time.Second, "asked again", func() bool {
		return cluster.Ask(t.Context(), g, "/closed", "somebody").Status == http.StatusOK
	})
	if r := cluster.Ask(t.Context(), g, "/open", "somebody-else"); r.Status != http.StatusOK || r.Degraded() != "" {
		t.Errorf("after it: %d, degraded %q", r.Status, r.Degraded())
	}
}

// load sends requests to the policy that is open, each at its time, and returns how long each took, in order of length.
func load(t *testing.T, g *cluster.Gateway, duration time.Duration, perSecond int) []time.Duration {
	t.Helper()
	took := make([]time.Duration, int(duration.Seconds())*perSecond)
	var all sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for i := range took {
		all.Go(func() {
			r := cluster.Ask(t.Context(), g, "/open", "client-"+string(rune('a'+i%26))+strings.Repeat("x", i%100))
			took[i] = r.Took
			if r.Status != http.StatusOK && r.Status != http.StatusTooManyRequests {
				t.Errorf("status %d: %s", r.Status, r.Body)
			}
		})
		<-tick.C
	}
	all.Wait()
	slices.Sort(took)
	return took
}

// at is a percentile of durations in order.
func at(took []time.Duration, percent int) time.Duration { return took[(len(took)-1)*percent/100] }
