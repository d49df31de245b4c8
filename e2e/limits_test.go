package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annona-gateway/annona/e2e/cluster"
)

// Every limit in one region, with real gateways on a real Redis.

// limitOf is a policy document with one policy for each client.
func limitOf(fields string) string {
	return "schema: 1\npolicies:\n  - {name: p, key: [\"header:X-Client\"], scope: region, on_failure: closed, " + fields + "}\n"
}

// ofAlgorithm are the fields of a limit of n by each algorithm that keeps what was spent for longer than a test takes.
func ofAlgorithm(n int) map[string]string {
	return map[string]string{
		"token_bucket":           fmt.Sprintf("algorithm: token_bucket, rate: 1/day, burst: %d", n),
		"fixed_window":           fmt.Sprintf("algorithm: fixed_window, limit: %d, window: 8760h", n),
		"sliding_window_log":     fmt.Sprintf("algorithm: sliding_window_log, limit: %d, window: 24h", n),
		"sliding_window_counter": fmt.Sprintf("algorithm: sliding_window_counter, limit: %d, window: 720h", n),
	}
}

// Spend 60 of 100, and reload in the middle of the window: 200 leaves 140, 50 none, and 100 again the 40 that there were.
func TestA3_ReloadInTheMiddleOfAWindow(t *testing.T) {
	t.Parallel()
	for algorithm := range ofAlgorithm(0) {
		t.Run(algorithm, func(t *testing.T) {
			t.Parallel()
			of := func(n int) string { return limitOf(ofAlgorithm(n)[algorithm]) }
			a, _ := alone(t, 2, of(100))
			inUse := func(n int) {
				t.Helper()
				a.Reload(of(n))
				for _, g := range a.Gateways {
					cluster.Eventually(t, 10*time.Second, "the reloaded limit", func() bool {
						return cluster.Ask(t.Context(), g, "/", "watcher-"+strconv.Itoa(n)).Header.Get("X-RateLimit-Limit") == strconv.Itoa(n)
					})
				}
			}
			if got := spend(t, a.Gateways[0], "alice", 60); got != 60 {
				t.Fatalf("admitted %d, want 60", got)
			}
			inUse(200)
			if got := cluster.Ask(t.Context(), a.Gateways[1], "/", "alice").Header.Get("X-RateLimit-Remaining"); got != "139" {
				t.Errorf("raised to 200: %s left after one more, want 139", got)
			}
			inUse(50)
			if r := cluster.Ask(t.Context(), a.Gateways[0], "/", "alice"); r.Status != http.StatusTooManyRequests || r.Header.Get("X-RateLimit-Remaining") != "0" {
				t.Errorf("lowered to 50: %d, %s left, want 429 and 0", r.Status, r.Header.Get("X-RateLimit-Remaining"))
			}
			inUse(100)
			<-time.After(1100 * time.Millisecond) // longer than a denial is believed
			if got := spend(t, a.Gateways[1], "alice", 100); got != 39 {
				t.Errorf("100 again: admitted %d, want the 39 that were left", got)
			}
		})
	}
}

// FLUSHALL × on_loss, by algorithm.
func TestE3_LossByAlgorithm(t *testing.T) {
	t.Parallel()
	for algorithm, fields := range ofAlgorithm(5) {
		for loss, want := range map[string]int{"full": 5, "empty": 0} {
			t.Run(algorithm+", "+loss, func(t *testing.T) {
				t.Parallel()
				a, _ := alone(t, 1, limitOf(fields+", on_loss: "+loss))
				a.Age(t.Context())
				if got := spend(t, a.Gateways[0], "alice", 10); got != 5 {
					t.Fatalf("admitted %d before the loss, want 5", got)
				}
				if err := a.Client().FlushAll(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				<-time.After(1100 * time.Millisecond) // longer than a denial is believed
				if got := spend(t, a.Gateways[0], "alice", 10); got != want {
					t.Errorf("admitted %d after it, want %d", got, want)
				}
			})
		}
	}
}

// slow has n requests of a client at the upstream for so long, and ends when the last is answered, or ctx ends. Each asks until it
// is admitted: a store that has just begun, and slots that are just coming back, need a moment.
func slow(ctx context.Context, g *cluster.Gateway, who string, n int, hold time.Duration) *sync.WaitGroup {
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil && cluster.Ask(ctx, g, "/?hold="+hold.String(), who).Status != http.StatusOK {
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	return &all
}

// Two gateways and one slot, asked for at the same instant again and again: never two at a time.
func TestOneSlotTwoGateways(t *testing.T) {
	t.Parallel()
	a, _ := alone(t, 2, limitOf("algorithm: concurrency, limit: 1"))
	var admitted atomic.Int64
	for round := range 200 {
		who := "client-" + strconv.Itoa(round)
		var both sync.WaitGroup
		var now atomic.Int64
		for _, g := range a.Gateways {
			both.Go(func() {
				if cluster.Ask(t.Context(), g, "/?hold=100ms", who).Status == http.StatusOK {
					now.Add(1)
				}
			})
		}
		both.Wait()
		if now.Load() > 1 {
			t.Fatalf("round %d: %d admitted at the same time, of 1 slot", round, now.Load())
		}
		admitted.Add(now.Load())
	}
	if admitted.Load() != 200 {
		t.Errorf("admitted in %d of 200 rounds", admitted.Load())
	}
}

// B8: a gateway that is killed holds its slots for another 10 s, and no longer.
func TestB8_SlotsOfAKilledGateway(t *testing.T) {
	t.Parallel()
	a, _ := alone(t, 2, limitOf("algorithm: concurrency, limit: 3"))
	victim, other := a.Gateways[0], a.Gateways[1]
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	slow(ctx, victim, "alice", 3, 9*time.Second)
	denied := func() bool { return cluster.Ask(t.Context(), other, "/", "alice").Status == http.StatusTooManyRequests }
	cluster.Eventually(t, 10*time.Second, "all slots are held", denied)
	victim.Kill()
	killed := time.Now()
	stop()
	if !denied() {
		t.Error("a slot was free at the kill")
	}
	cluster.Eventually(t, 20*time.Second, "the slots are free", func() bool { return !denied() })
	if after := time.Since(killed); after < 8*time.Second || after > 13*time.Second {
		t.Errorf("free after %s, want about 10 s: the last renewal was up to a second old", after)
	}
}

// Held slots outlive a reload, raised and lowered: nothing is minted and nothing lost.
func TestReloadWhileSlotsAreHeld(t *testing.T) {
	t.Parallel()
	of := func(n int) string { return limitOf("algorithm: concurrency, limit: " + strconv.Itoa(n)) }
	a, _ := alone(t, 1, of(3))
	g := a.Gateways[0]
	held := slow(t.Context(), g, "alice", 3, 7*time.Second)
	status := func() int { return cluster.Ask(t.Context(), g, "/?hold=1ms", "alice").Status }
	cluster.Eventually(t, 5*time.Second, "all slots are held", func() bool { return status() == http.StatusTooManyRequests })
	a.Reload(of(4))
	cluster.Eventually(t, 3*time.Second, "one more slot", func() bool { return status() == http.StatusOK })
	a.Reload(of(2))
	cluster.Eventually(t, 3*time.Second, "none of 2", func() bool { return status() == http.StatusTooManyRequests })
	held.Wait()
	two := slow(t.Context(), g, "alice", 2, 5*time.Second)
	cluster.Eventually(t, 4*time.Second, "both slots are held", func() bool { return status() == http.StatusTooManyRequests })
	two.Wait()
	cluster.Eventually(t, 5*time.Second, "free again", func() bool { return status() == http.StatusOK })
}

// A queue over two gateways is one: admitted are those whose turn comes within max_delay, at the rate, also over a reload.
func TestReloadInTheMiddleOfAQueue(t *testing.T) {
	t.Parallel()
	of := func(rate int) string {
		return limitOf(fmt.Sprintf("algorithm: token_bucket, rate: %d/s, burst: 1, max_delay: 3s", rate))
	}
	a, _ := alone(t, 2, of(4))
	var admitted atomic.Int64
	began := time.Now()
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if cluster.Ask(t.Context(), a.Gateways[i%2], "/", "alice").Status == http.StatusOK {
				admitted.Add(1)
			}
		})
	}
	<-time.After(500 * time.Millisecond)
	a.Reload(of(2)) // who stands in the queue keeps its turn; nobody joins before their debt is paid
	all.Wait()
	took := time.Since(began).Seconds()
	if n, most := admitted.Load(), int64(1+4*(took+3)); n < 12 || n > most {
		t.Errorf("admitted %d in %.1f s, want 12 or more and at most %d", n, took, most)
	}
	for _, g := range a.Gateways {
		if r := cluster.Ask(t.Context(), g, "/", "bob"); r.Status != http.StatusOK {
			t.Errorf("another client got %d", r.Status)
		}
	}
}
