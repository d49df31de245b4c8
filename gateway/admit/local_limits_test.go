package admit_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// E7: a gateway of two admits by itself at most its half of what a window allows, in any window, wherever that begins.
func TestE7_LocalWindowsKeepTheirBound(t *testing.T) {
	for _, algorithm := range []string{
		"fixed_window, limit: 40, window: 20s", "sliding_window_log, limit: 40, window: 20s", "sliding_window_counter, limit: 40, window: 20s",
	} {
		t.Run(algorithm, func(t *testing.T) {
			b := newBench(t, gone, "  - {name: p, key: [user], algorithm: "+algorithm+", scope: region, on_failure: {redis: local}}\n")
			synctest.Test(t, func(t *testing.T) {
				b.SetGateways(2)
				random := rand.New(rand.NewPCG(4, 2))
				var at []time.Time
				for range 3000 {
					pass(time.Duration(random.ExpFloat64() * float64(200*time.Millisecond)))
					if random.IntN(100) == 0 {
						pass(30 * time.Second) // a rest, after which most comes at once
					}
					if b.decide(t.Context(), t).Answer == admit.Admitted {
						at = append(at, time.Now())
					}
				}
				if len(at) < 200 {
					t.Errorf("%d admitted of 3000; want what a tenth of a second's rate brings at least", len(at))
				}
				for i := range at {
					n := 0
					for _, other := range at[i:] {
						if other.Sub(at[i]) < 20*time.Second {
							n++
						}
					}
					if n > 20 {
						t.Fatalf("%d admitted within 20 s, want at most 20", n)
					}
				}
			})
		})
	}
}

// E7: a gateway of two has half the slots by itself, at any time: also over outages that come and go, and beside floods of keys.
// Who is denied hears that a slot may be free at any moment.
func TestE7_LocalSlotsAreNeverMoreThanTheirPart(t *testing.T) {
	var out atomic.Bool
	synctest.Test(t, func(t *testing.T) {
		s := &settler{}
		b, stop := slotBenchOf(t, s, func(n int, r bucket.Request) (bucket.Verdict, error) {
			if out.Load() {
				return gone(n, r)
			}
			return slotVerdict(r), nil
		}, "  - {name: slots, key: [user], algorithm: concurrency, limit: 4, scope: region, on_failure: {redis: local}}\n")
		b.SetGateways(2)
		out.Store(true)
		one, two := b.decide(t.Context(), t), b.decide(t.Context(), t)
		if one.Answer != admit.Admitted || two.Answer != admit.Admitted || one.Degraded != admit.DegradedRedis || one.Reports[0].Reset != 0 {
			t.Fatalf("%v, %v, %+v; want both of two slots", one.Answer, two.Answer, one.Reports)
		}
		denied := func(when string) {
			t.Helper()
			if d := b.decide(t.Context(), t); d.Answer != admit.Denied || d.RetryIn > limit.MicrosPerSecond {
				t.Errorf("%s: %v, retry in %d µs; want denied, for a moment", when, d.Answer, d.RetryIn)
			}
		}
		denied("a third")
		for range 3 {
			out.Store(false)
			pass(time.Second)
			b.decide(t.Context(), t).Hold.End(admit.Ended{Status: 200})
			out.Store(true)
			denied("in the next outage")
		}
		b.Flood(1<<16 + 1)
		denied("after a flood of keys")
		one.Hold.End(admit.Ended{Status: 200})
		one.Hold.End(admit.Ended{Status: 200})
		if three := b.decide(t.Context(), t); three.Answer != admit.Admitted {
			t.Errorf("after one has ended: %v", three.Answer)
		}
		denied("and then")
		stop()
	})
}

// A queue does not wait while Redis is out: what the gateway's part has is admitted, and the rest is denied.
func TestE7_NoQueueInLocalMode(t *testing.T) {
	b := newBench(t, gone, "  - {name: q, key: [user], algorithm: token_bucket, rate: 10/s, burst: 10, max_delay: 10s, scope: region, on_failure: {redis: local}}\n")
	synctest.Test(t, func(t *testing.T) {
		b.SetGateways(1)
		b.decide(t.Context(), t)
		pass(500 * time.Millisecond)
		admitted := 0
		for range 20 {
			if d := b.decide(t.Context(), t); d.Answer == admit.Admitted {
				admitted++
				if d.Hold.Delay() != 0 {
					t.Errorf("a request waits %s", d.Hold.Delay())
				}
			}
		}
		if admitted != 5 {
			t.Error(fmt.Sprint(admitted, " admitted, want the 5 of half a second"))
		}
	})
}
