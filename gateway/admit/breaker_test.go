package admit_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/policy"
)

var errSilent = fmt.Errorf("%w: take: %w", bucket.ErrCouldNotAsk, context.DeadlineExceeded)

// replied is what a server says that is there and will not.
type replied struct{ error }

func (replied) RedisError() {}

// hanging answers nothing while it is out, each take after the timeout.
func hanging(out *atomic.Bool) func(int, bucket.Request) (bucket.Verdict, error) {
	return func(_ int, r bucket.Request) (bucket.Verdict, error) {
		if out.Load() {
			pass(50 * time.Millisecond)
			return bucket.Verdict{}, errSilent
		}
		return verdict(bucket.Admitted, r, 0), nil
	}
}

func TestBreakerAsksASilentStoreByProbesOnly(t *testing.T) {
	var out atomic.Bool
	b := newBench(t, hanging(&out), rule("p", "region", "closed", ""))
	synctest.Test(t, func(t *testing.T) {
		out.Store(true)
		slow := 0
		for range 10_000 { // ten seconds and the probes' time
			start := time.Now()
			if d := b.decide(t.Context(), t); d.Answer != admit.Refused || !errors.Is(d.Cause, bucket.ErrCouldNotAsk) {
				t.Fatalf("Decide = %v, %v, want refused", d.Answer, d.Cause)
			}
			if time.Since(start) > 0 {
				slow++
			}
			pass(time.Millisecond)
		}
		if got := len(b.taker.got); got != slow || got < 10 || got > 5+22 {
			t.Errorf("%d takes reached the store, %d requests waited; want the first 5 and two probes a second", got, slow)
		}
		out.Store(false)
		back := time.Now()
		for b.decide(t.Context(), t).Answer != admit.Admitted {
			pass(time.Millisecond)
		}
		if took := time.Since(back); took > time.Second {
			t.Errorf("recovery took %v, want at most 1s", took)
		}
		before := len(b.taker.got)
		b.decide(t.Context(), t)
		if len(b.taker.got) != before+1 {
			t.Error("the breaker did not close after the probe")
		}
	})
}

// While a probe is under way everybody else goes without, however many there are.
func TestBreakerProbesOneAtATime(t *testing.T) {
	var out atomic.Bool
	out.Store(true)
	b := newBench(t, hanging(&out), rule("p", "region", "closed", ""))
	synctest.Test(t, func(t *testing.T) {
		for range 5 {
			b.decide(t.Context(), t)
		}
		pass(600 * time.Millisecond)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { b.decide(t.Context(), t) })
		}
		all.Wait()
		if got := len(b.taker.got); got != 6 {
			t.Errorf("%d takes, want 5 and one probe", got)
		}
	})
}

// A server that says no is there; what was never sent and a client that left say nothing about it.
func TestBreakerCountsOnlySilence(t *testing.T) {
	for name, err := range map[string]error{
		"an error as answer": fmt.Errorf("%w: take: %w", bucket.ErrCouldNotAsk, replied{errors.New("OOM")}),
		"a bad request":      fmt.Errorf("%w: take: sealed identity too long", bucket.ErrCouldNotAsk),
	} {
		b := newBench(t, func(int, bucket.Request) (bucket.Verdict, error) { return bucket.Verdict{}, err }, rule("p", "region", "closed", ""))
		for range 20 {
			b.decide(t.Context(), t)
		}
		if len(b.taker.got) != 20 {
			t.Errorf("%s: %d of 20 takes reached the store", name, len(b.taker.got))
		}
	}
	b := newBench(t, func(int, bucket.Request) (bucket.Verdict, error) { return bucket.Verdict{}, errSilent }, rule("p", "region", "closed", ""))
	left, leave := context.WithCancel(t.Context())
	leave()
	for range 20 {
		b.decide(left, t)
	}
	if len(b.taker.got) != 20 {
		t.Errorf("clients that left: %d of 20 takes reached the store", len(b.taker.got))
	}
}

// split is a store of two nodes, one of which is out. Shards are known by their parity.
type split struct{ taker }

func (*split) Node(shard int) string { return strconv.Itoa(shard % 2) }

type nodeError struct{ error }

func (nodeError) Node() string    { return "1" }
func (e nodeError) Unwrap() error { return e.error }

func TestBreakerTakesNoOtherNodeAlong(t *testing.T) {
	b := newBench(t, gone, rule("p", "region", "closed", ""))
	store := &split{taker{answer: func(_ int, r bucket.Request) (bucket.Verdict, error) {
		for _, c := range r.Charges {
			if c.Shard%2 == 1 {
				return bucket.Verdict{}, nodeError{errSilent}
			}
		}
		return verdict(bucket.Admitted, r, 0), nil
	}}}
	two := admit.New(store, admit.Options{Region: "eu", Telemetry: b.tel})
	two.Use(b.Snapshot())
	var admitted, refused int
	for i := range 400 {
		d, err := two.Decide(t.Context(), &policy.Request{Identity: policy.Identity{User: strconv.Itoa(i)}})
		switch {
		case err != nil:
			t.Fatal(err)
		case d.Answer == admit.Admitted:
			admitted++
		default:
			refused++
		}
	}
	if reached := len(store.got); admitted < 100 || refused < 100 || reached > admitted+6 {
		t.Errorf("%d admitted, %d refused, %d takes; want one node's all admitted and the other's left alone", admitted, refused, reached)
	}
}

// counting counts the takes that reach a store, and those of them that fail.
type counting struct {
	*bucket.Store

	takes, failed atomic.Int64
}

func (c *counting) Take(ctx context.Context, r bucket.Request) (bucket.Verdict, error) {
	c.takes.Add(1)
	v, err := c.Store.Take(ctx, r)
	if err != nil {
		c.failed.Add(1)
	}
	return v, err
}

// Case 7: a paused Redis costs the first requests and the probes their timeout, and everybody else nothing; it is asked again
// as soon as it answers.
func TestCase07_SlowStore(t *testing.T) {
	const pause, rate, timeout = 3 * time.Second, 1000, 50 * time.Millisecond
	server := buckettest.StartRedis(t)
	store, err := bucket.Open(bucket.Config{Addrs: []string{server.Addr}, Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b := newBench(t, gone, rule("p", "region", "{redis: open}", ""))
	counted := &counting{Store: store}
	a := admit.New(counted, admit.Options{Region: "eu", Telemetry: b.tel})
	a.Use(b.Snapshot())
	ask := func() admit.Decision {
		d, err := a.Decide(t.Context(), &policy.Request{Identity: policy.Identity{User: "alice"}})
		if err != nil {
			t.Error(err)
		}
		return d
	}
	if err := buckettest.Poll(t.Context(), 5*time.Second, func() error { return ask().Cause }); err != nil {
		t.Fatal(err)
	}
	if err := server.Client().Do(t.Context(), "CLIENT", "PAUSE", "60000", "ALL").Err(); err != nil {
		t.Fatal(err)
	}
	before, goroutines, most := counted.failed.Load(), runtime.NumGoroutine(), 0
	var all sync.WaitGroup
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for end := time.Now().Add(pause); time.Now().Before(end); <-tick.C {
		all.Go(func() {
			if d := ask(); d.Answer != admit.Admitted {
				t.Errorf("on_failure open answered %v", d.Answer)
			}
		})
		most = max(most, runtime.NumGoroutine()-goroutines)
	}
	all.Wait()
	// The first timeout's worth of requests, twice over for a slow machine, and two probes a second.
	if failed := counted.failed.Load() - before; failed == 0 || failed > 2*rate/20+2*3+5 {
		t.Errorf("%d requests paid for the pause, want about those of the first %s and the probes", failed, timeout)
	}
	if most > 500 {
		t.Errorf("%d goroutines more than before at one time", most)
	}
	server.Restart() // nobody can unpause over a paused server; a restart is recovery, too
	back := time.Now()
	recovered := func() error {
		if d := ask(); d.Degraded != "" {
			return errors.New("still degraded")
		}
		return nil
	}
	if err := buckettest.Poll(t.Context(), 10*time.Second, recovered); err != nil {
		t.Fatalf("no recovery without restart: %v", err)
	}
	t.Logf("recovered %s after the server", time.Since(back))
}
