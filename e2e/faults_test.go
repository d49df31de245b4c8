package e2e_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/annona-gateway/annona/e2e/cluster"
	"github.com/annona-gateway/annona/e2e/oracle"
)

// down is how long a killed process stays away: long enough that its absence is felt.
const down = time.Second

// fault breaks something of a running cluster; mend, if there is one, brings it back after down.
type fault struct {
	name  string
	apply func(context.Context, *cluster.Cluster) error
	mend  func(*cluster.Cluster) error
}

// kill is a process killed and started again.
func kill(name string, proc func(*cluster.Cluster) *cluster.Proc) fault {
	return fault{
		name: name,
		apply: func(_ context.Context, c *cluster.Cluster) error {
			proc(c).Kill()
			return nil
		},
		mend: func(c *cluster.Cluster) error { return proc(c).Start() },
	}
}

// faults are what a region's operator must survive.
var faults = []fault{
	kill("agent killed", func(c *cluster.Cluster) *cluster.Proc { return c.Regions[0].Agent }),
	kill("gateway killed", func(c *cluster.Cluster) *cluster.Proc { return c.Regions[0].Gateways[0].Proc }),
	kill("allocator killed", func(c *cluster.Cluster) *cluster.Proc { return c.Allocator }),
	kill("NATS killed", func(c *cluster.Cluster) *cluster.Proc { return c.NATS }),
	kill("Redis killed", func(c *cluster.Cluster) *cluster.Proc { return c.Regions[0].Redis }),
	{name: "FLUSHALL", apply: func(ctx context.Context, c *cluster.Cluster) error {
		client := c.Regions[0].Client()
		defer client.Close()
		return client.FlushAll(ctx).Err()
	}},
}

// during applies f while a load of the given duration runs, and returns what went wrong with it.
func (f fault) during(ctx context.Context, c *cluster.Cluster, duration time.Duration) <-chan error {
	done := make(chan error, 1)
	time.AfterFunc(duration/4, func() {
		err := f.apply(ctx, c)
		if err != nil || f.mend == nil {
			done <- err
			return
		}
		time.AfterFunc(down, func() { done <- f.mend(c) })
	})
	return done
}

// Promise 1 holds through crashes and restarts of anything, and recovery needs no hand.
func TestPromise1ThroughCrashes(t *testing.T) {
	c := shared.cluster(t)
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			key, duration := freshKey(t), 8*time.Second
			broken := f.during(t.Context(), c, duration)
			answers := cluster.Run(t.Context(), everywhere(c, 0, key, "/hundred", 150), duration)[key]
			if err := <-broken; err != nil {
				t.Fatal(err)
			}
			if err := oracle.Bound(answers, 100, 50); err != nil {
				t.Errorf("promise 1: %v", err)
			}
			if n := oracle.Count(answers, http.StatusInternalServerError); n > 0 {
				t.Errorf("%d answers with status 500, want none", n)
			}
			t.Logf("%d admitted, %d denied, %d refused, %d without an answer", oracle.Count(answers, 200),
				oracle.Count(answers, 429), oracle.Count(answers, 503), oracle.Count(answers, 0))
			recovers(t, c)
		})
	}
}

// recovers fails t unless, with no hand, every role is ready again and a fresh client is served in every region.
func recovers(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	if err := c.WaitReady(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	for _, r := range c.Regions {
		for _, g := range r.Gateways {
			key := freshKey(t)
			cluster.Eventually(t, 20*time.Second, "served again in "+r.Name, func() bool {
				return cluster.Get(t.Context(), g, r.Name, key, "/four").Status == http.StatusOK
			})
		}
	}
	if err := c.Age(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
}

// Case 6: the script cache is lost under load → only 200 and 429, nothing charged twice.
func TestCase06ScriptFlushUnderLoad(t *testing.T) {
	c := shared.cluster(t)
	key, duration := freshKey(t), 6*time.Second
	ctx, cancel := context.WithCancel(t.Context())
	flushed := make(chan int, 1)
	go func() {
		client := c.Regions[0].Client()
		defer client.Close()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
				_ = client.ScriptFlush(ctx).Err()
			case <-ctx.Done():
				flushed <- n
				return
			}
		}
	}()
	targets := []cluster.Target{{Gateway: c.Regions[0].Gateways[1], Region: "eu", Key: key, Path: "/hundred", PerSecond: 200}}
	answers := cluster.Run(t.Context(), targets, duration)[key]
	cancel()
	if n := <-flushed; n < 10 {
		t.Fatalf("the cache was flushed %d times, want at least 10", n)
	}
	// Charged twice would show as less admitted than one region gets without the flushes.
	if share := bounded(t, answers, 100, 50, duration); share < 0.86 {
		t.Errorf("admitted %.1f %% of 100 + 50·T, want at least 86 %%", 100*share)
	}
}

// Section 9: Redis stopped × open, closed → 200 marked, 503 as problem+json with Retry-After; and back without a restart.
func TestCase08RedisStopped(t *testing.T) {
	c := shared.cluster(t)
	r := c.Regions[2]
	r.Redis.Kill()
	key := freshKey(t)
	open, header, _ := cluster.Fetch(t.Context(), r.Gateways[0], r.Name, key, "/open")
	if open.Status != http.StatusOK || header.Get("Annona-Degraded") != "redis" {
		t.Errorf("open: status %d, Annona-Degraded %q; want 200 and redis", open.Status, header.Get("Annona-Degraded"))
	}
	closed, header, body := cluster.Fetch(t.Context(), r.Gateways[0], r.Name, key, "/hundred")
	if closed.Status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" ||
		header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("closed: status %d, header %v, body %s; want 503, problem+json, Retry-After", closed.Status, header, body)
	}
	if !cluster.Ready(r.Gateways[0].AdminURL) {
		t.Error("/readyz of a gateway without Redis is not 200")
	}
	if err := r.Redis.Start(); err != nil {
		t.Fatal(err)
	}
	recovers(t, c)
}
