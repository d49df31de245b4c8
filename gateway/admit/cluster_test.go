package admit_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/policy"
)

// TestBreakerOfOneNodeOfACluster: while one node of three stands still its keys are refused, soon without waiting; those of the others
// are all admitted; and it is asked again when it is back.
func TestBreakerOfOneNodeOfACluster(t *testing.T) {
	redis := buckettest.StartCluster(t, 3, false, "--cluster-node-timeout", "60000")
	store, err := bucket.Open(bucket.Config{Mode: "cluster", Addrs: redis.Addrs(), Timeout: 250 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	ctx, stop := context.WithCancel(t.Context())
	var ticks sync.WaitGroup
	t.Cleanup(func() { stop(); ticks.Wait() })
	ticks.Go(func() { store.Ticks(ctx, func() int { return 32 }) })
	b := newBench(t, gone, rule("p", "region", "closed", ""))
	counted := &counting{Store: store}
	a := admit.New(counted, admit.Options{Region: "eu", Telemetry: b.tel})
	a.Use(b.Snapshot())
	ask := func(user int) admit.Decision {
		d, err := a.Decide(t.Context(), &policy.Request{Identity: policy.Identity{User: strconv.Itoa(user)}})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	const users = 60
	everybody := func() (served int) { // denied is served, too: who polls uses a budget up
		for user := range users {
			if ask(user).Answer != admit.Refused {
				served++
			}
		}
		return served
	}
	everyoneIsServed := func() error {
		if got := everybody(); got != users {
			return errors.New(strconv.Itoa(got) + " are served")
		}
		return nil
	}
	if err := buckettest.Poll(t.Context(), 10*time.Second, everyoneIsServed); err != nil {
		t.Fatal(err)
	}
	redis.Nodes[2].Pause()
	first := everybody() // five of them wait for the timeout, then the breaker knows
	begun, failed := time.Now(), counted.failed.Load()
	for range 5 {
		if again := everybody(); again != first || again < users/3 || again == users {
			t.Errorf("%d of %d served, then %d", first, users, again)
		}
	}
	probes := int64(time.Since(begun)/(500*time.Millisecond)) + 2
	if got := counted.failed.Load() - failed; got > probes {
		t.Errorf("%d takes failed at the silent node, want at most %d probes", got, probes)
	}
	redis.Nodes[2].Resume()
	if err := buckettest.Poll(t.Context(), 10*time.Second, everyoneIsServed); err != nil {
		t.Errorf("after it is back: %v", err)
	}
}
