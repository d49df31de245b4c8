package e2e_test

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/annona-gateway/annona/e2e/cluster"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

// One region by itself, as a team with one region runs it: gateway.yaml, Redis and nothing else. Every row here has real
// processes of its own.

// bucketOf is a policy document with one policy for each client.
func bucketOf(rate string, burst int, more string) string {
	return fmt.Sprintf("schema: 1\npolicies:\n  - {name: p, key: [\"header:X-Client\"], algorithm: token_bucket, rate: %s, burst: %d, scope: region%s}\n",
		rate, burst, more)
}

const (
	closed = ", on_failure: closed"
	quiet  = "access_log: off\ndrain: {delay: 0s}"
)

// alone is n gateways on a Redis of their own.
func alone(t *testing.T, n int, policies string) (*cluster.Alone, *buckettest.Server) {
	t.Helper()
	server := buckettest.StartRedis(t)
	return cluster.StartAlone(t, shared.bin, server.Addr, n, policies, quiet), server
}

// spend asks until who is denied, at most so many times, and returns how often it was admitted. What cannot be asked yet is asked
// again: a store that begins anew needs a moment.
func spend(t *testing.T, g *cluster.Gateway, who string, most int) (admitted int) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	for admitted < most && time.Now().Before(end) {
		switch r := cluster.Ask(t.Context(), g, "/", who); r.Status {
		case http.StatusOK:
			admitted++
		case http.StatusTooManyRequests:
			return admitted
		case http.StatusServiceUnavailable:
		default:
			t.Fatalf("status %d: %s", r.Status, r.Body)
		}
	}
	return admitted
}

// One token, two gateways, both at once: exactly one admits, ten thousand times.
func TestOneTokenTwoGateways(t *testing.T) {
	t.Parallel()
	a, _ := alone(t, 2, bucketOf("1/day", 1, closed))
	const rounds, atOnce = 10_000, 16
	var next, decided, wrong atomic.Int64
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for decided.Load() < rounds && next.Load() < 2*rounds {
				round := next.Add(1)
				var admitted, denied atomic.Int64
				var both sync.WaitGroup
				for _, g := range a.Gateways {
					both.Go(func() {
						switch cluster.Ask(t.Context(), g, "/", strconv.FormatInt(round, 10)).Status {
						case http.StatusOK:
							admitted.Add(1)
						case http.StatusTooManyRequests:
							denied.Add(1)
						}
					})
				}
				both.Wait()
				// One that could not be asked on a busy machine is no verdict; two admitted, or two denied, is a wrong one.
				if admitted.Load() > 1 || denied.Load() > 1 {
					wrong.Add(1)
				}
				if admitted.Load()+denied.Load() == 2 {
					decided.Add(1)
				}
			}
		})
	}
	all.Wait()
	if wrong.Load() > 0 || decided.Load() < rounds {
		t.Errorf("%d of %d rounds admitted both or none; want none of %d", wrong.Load(), decided.Load(), rounds)
	}
}

// Rate 30/min, burst 6: q = 6, X-RateLimit-Limit 6, w = 12; and Retry-After keeps its word for 300 lone clients at once.
func TestRetryAfterKeepsItsWordFor300(t *testing.T) {
	t.Parallel()
	a, _ := alone(t, 1, bucketOf("30/min", 6, closed))
	var kept atomic.Int64
	var all sync.WaitGroup
	for i := range 300 {
		all.Go(func() {
			who := "client-" + strconv.Itoa(i)
			r := cluster.Ask(t.Context(), a.Gateways[0], "/", who)
			if r.Header.Get("X-RateLimit-Limit") != "6" || r.Header.Get("RateLimit-Policy") != `"p";q=6;w=12` {
				t.Errorf("headers %v, want a limit of 6, q=6 and w=12", r.Header)
			}
			for tries := 0; r.Status != http.StatusTooManyRequests && tries < 20; tries++ {
				r = cluster.Ask(t.Context(), a.Gateways[0], "/", who)
			}
			wait, err := strconv.Atoi(r.Header.Get("Retry-After"))
			if err != nil || wait < 1 || wait > 4 {
				t.Errorf("status %d, Retry-After %q, want 1 to 4 s", r.Status, r.Header.Get("Retry-After"))
				return
			}
			<-time.After(time.Duration(wait) * time.Second) // the wait is the promise
			if got := cluster.Ask(t.Context(), a.Gateways[0], "/", who); got.Status == http.StatusOK {
				kept.Add(1)
			}
		})
	}
	all.Wait()
	if kept.Load() != 300 {
		t.Errorf("the word was kept for %d of 300", kept.Load())
	}
}

// FLUSHALL and a restart without data × on_loss: full begins full, empty begins empty; never a 500, and no hand helps.
func TestE3_RedisThatLostAll(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *cluster.Alone, *buckettest.Server){
		"FLUSHALL": func(t *testing.T, a *cluster.Alone, _ *buckettest.Server) {
			t.Helper()
			if err := a.Client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		},
		"restart": func(_ *testing.T, _ *cluster.Alone, s *buckettest.Server) { s.Restart() },
	} {
		for loss, want := range map[string]int{"full": 5, "empty": 0} {
			t.Run(name+", "+loss, func(t *testing.T) {
				t.Parallel()
				a, server := alone(t, 1, bucketOf("5/day", 5, closed+", on_loss: "+loss))
				a.Age(t.Context())
				if got := spend(t, a.Gateways[0], "alice", 10); got != 5 {
					t.Fatalf("admitted %d before the loss, want 5", got)
				}
				lose(t, a, server)
				if !cluster.Ready(a.Gateways[0].AdminURL) {
					t.Error("/readyz is not 200 at the loss")
				}
				<-time.After(1100 * time.Millisecond) // longer than a denial is believed (1 s)
				if got := spend(t, a.Gateways[0], "alice", 10); got != want {
					t.Errorf("admitted %d after it, want %d", got, want)
				}
				if r := cluster.Ask(t.Context(), a.Gateways[0], "/", "alice"); r.Status != http.StatusTooManyRequests || r.Degraded() != "" {
					t.Errorf("then %d, degraded %q, want 429", r.Status, r.Degraded())
				}
			})
		}
	}
}

// A replica that is promoted without its last writes: it is another server, with what it knows. Nobody gets more than that.
func TestE1_PromotedReplicaThatLostWrites(t *testing.T) {
	t.Parallel()
	master, replica := buckettest.StartRedis(t), buckettest.StartRedis(t)
	behind := cluster.NewSwitch(t, master.Addr)
	a := cluster.StartAlone(t, shared.bin, behind.Addr(), 1, bucketOf("10/day", 10, closed), quiet)
	g, second := a.Gateways[0], replica.Client()
	if got := spend(t, g, "alice", 3); got != 3 {
		t.Fatalf("admitted %d, want 3", got)
	}
	host, port, _ := net.SplitHostPort(master.Addr)
	if err := second.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, 10*time.Second, "the replica follows", func() bool {
		info, err := second.Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	if err := second.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	if got := spend(t, g, "alice", 4); got != 4 { // these the replica never hears of
		t.Fatalf("admitted %d more, want 4", got)
	}
	master.Kill()
	behind.To(replica.Addr)
	began := time.Now()
	if got := spend(t, g, "alice", 20); got != 7 {
		t.Errorf("admitted %d after the failover, want the 7 that the replica knows of", got)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("recovered after %s", took)
	}
	if n, ok := cluster.Metric(t.Context(), g, "annona_store_epoch_begun_total", `reason="server"`); !ok || n == 0 {
		t.Error("no epoch was begun for the other server")
	}
	if !cluster.Ready(g.AdminURL) {
		t.Error("/readyz is not 200")
	}
}

// A step of the server's clock by an hour, either way, that no process has seen adds at most 2 s of refill, and the gateway is
// back by itself. (Steps that one sees: the scripts' conformance suite, on a clock that can be set.)
func TestE2_ClockStep(t *testing.T) {
	t.Parallel()
	for name, step := range map[string]time.Duration{"forth": time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const rate, burst = 5, 100
			a, _ := alone(t, 1, bucketOf("5/s", burst, closed))
			g := a.Gateways[0]
			empty := func() (admitted int) {
				for range 3 { // what refilled while it was emptied, too
					admitted += spend(t, g, "alice", 2*burst)
				}
				return admitted
			}
			empty()
			began := time.Now()
			g.Kill()
			a.StepClock(t.Context(), step)
			if err := g.Start(); err != nil {
				t.Fatal(err)
			}
			cluster.Eventually(t, 15*time.Second, "asked again", func() bool {
				return cluster.Ask(t.Context(), g, "/", "somebody-else").Status == http.StatusOK
			})
			admitted := empty()
			most := rate*(time.Since(began).Seconds()+2) + 1
			if float64(admitted) > most {
				t.Errorf("admitted %d within %s of the step, want at most %.0f", admitted, time.Since(began), most)
			}
			cluster.Eventually(t, 10*time.Second, "refilling again", func() bool {
				return cluster.Ask(t.Context(), g, "/", "alice").Status == http.StatusOK
			})
			if n, ok := cluster.Metric(t.Context(), g, "annona_store_epoch_begun_total", `reason="clock"`); !ok || n == 0 {
				t.Error("the step was not noticed")
			}
		})
	}
}

// A lone gateway that was away for ten seconds finds every balance.
func TestE3_LoneGatewayAwayForTenSeconds(t *testing.T) {
	t.Parallel()
	a, _ := alone(t, 1, bucketOf("5/day", 5, closed))
	g := a.Gateways[0]
	for i := range 20 {
		if got := spend(t, g, fmt.Sprint("client-", i), i%6); got != i%6 {
			t.Fatalf("client %d: admitted %d", i, got)
		}
	}
	g.Kill()
	<-time.After(10 * time.Second)
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, 15*time.Second, "ready", func() bool { return cluster.Ready(g.AdminURL) })
	for i := range 20 {
		if got := spend(t, g, fmt.Sprint("client-", i), 10); got != 5-i%6 {
			t.Errorf("client %d: %d left, want %d", i, got, 5-i%6)
		}
	}
}

// Spend 60 of 100, and reload: unchanged, 40 are left; 200, 140; 50, none and not −10, so that 100 gives nothing back at once. A
// hundred reloads a second add nothing. Two gateways that load the documents in any order share one quota.
func TestA3_ReloadsAddNothing(t *testing.T) {
	t.Parallel()
	of := func(n int) string { return bucketOf("1/day", n, closed) }
	a, _ := alone(t, 2, of(100))
	left := func(who string) (least int) {
		least = -1
		for _, g := range a.Gateways {
			if r := cluster.Ask(t.Context(), g, "/", who); r.Status == http.StatusOK {
				least, _ = strconv.Atoi(r.Header.Get("X-RateLimit-Remaining"))
			}
		}
		return least
	}
	inUse := func(n int) {
		t.Helper()
		for _, g := range a.Gateways {
			cluster.Eventually(t, 10*time.Second, fmt.Sprintf("limit %d in use", n), func() bool {
				return cluster.Ask(t.Context(), g, "/", "watcher-"+strconv.Itoa(n)).Header.Get("X-RateLimit-Limit") == strconv.Itoa(n)
			})
		}
	}
	for i, who := range []string{"alice", "bob", "carol"} {
		if got := spend(t, a.Gateways[i%2], who, 60); got != 60 {
			t.Fatalf("%s: admitted %d, want 60", who, got)
		}
	}
	a.Reload(of(100) + "# unchanged\n")
	if got := left("alice"); got != 38 {
		t.Errorf("unchanged: %d left after two more, want 38", got)
	}
	a.Reload(of(200))
	inUse(200)
	if got := left("bob"); got != 138 {
		t.Errorf("raised to 200: %d left after two more, want 138", got)
	}
	a.Reload(of(50))
	inUse(50)
	if r := cluster.Ask(t.Context(), a.Gateways[0], "/", "carol"); r.Status != http.StatusTooManyRequests || r.Header.Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("lowered to 50: %d, remaining %s, want 429 and 0", r.Status, r.Header.Get("X-RateLimit-Remaining"))
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := range 200 {
		a.Reload(of(50 + i%2))
		<-tick.C
		if r := cluster.Ask(t.Context(), a.Gateways[i%2], "/", "carol"); r.Status == http.StatusOK {
			t.Fatalf("reload %d brought a token", i)
		}
	}
}

// SIGTERM: /readyz says 503 while clients are still served, and the process ends by itself with everything answered.
func TestDrainUnderLoad(t *testing.T) {
	t.Parallel()
	server := buckettest.StartRedis(t)
	a := cluster.StartAlone(t, shared.bin, server.Addr, 1, bucketOf("1000000/s", 1_000_000, closed),
		"access_log: off\ndrain: {delay: 2s, timeout: 15s}")
	g := a.Gateways[0]
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, 5*time.Second, "unready", func() bool { return !cluster.Ready(g.AdminURL) })
	served := 0
	for began := time.Now(); time.Since(began) < time.Second; served++ {
		if r := cluster.Ask(t.Context(), g, "/", "alice"); r.Status != http.StatusOK {
			t.Fatalf("request %d while draining: %d %s", served, r.Status, r.Body)
		}
	}
	if !cluster.Becomes(10*time.Second, g.Ended) {
		t.Error("the process does not end")
	}
}
