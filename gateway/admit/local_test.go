package admit_test

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// outages is a store that is out while it is told to be.
func outages(out *atomic.Bool) func(int, bucket.Request) (bucket.Verdict, error) {
	return func(n int, r bucket.Request) (bucket.Verdict, error) {
		if out.Load() {
			return gone(n, r)
		}
		return verdict(bucket.Admitted, r, 0), nil
	}
}

// admits counts how many of n requests are admitted.
func (b *bench) admits(t *testing.T, n int) (admitted int) {
	t.Helper()
	for range n {
		if b.decide(t.Context(), t).Answer == admit.Admitted {
			admitted++
		}
	}
	return admitted
}

// E7: a gateway's part is its region's own, by the largest number of gateways, from empty. Region eu keeps 20 of 100 tokens at
// 2 of 10 a second of a global budget with allotment 40 %, all of it where the scope is region.
func TestE7_LocalSpendsItsPartFromEmpty(t *testing.T) {
	for name, row := range map[string]struct {
		rule     string
		gateways int
		inSecond int // after the first second
		inAnHour int
	}{
		"global, alone":    {rule("p", "global", "{redis: local, allocator: local}", "allotment: 40%"), 1, 2, 20},
		"global, of two":   {rule("p", "global", "{redis: local, allocator: local}", "allotment: 40%"), 2, 1, 10},
		"region, of three": {rule("p", "region", "{redis: local}", ""), 3, 3, 33},
		"region, alone":    {rule("p", "region", "{redis: local}", ""), 1, 10, 100},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, gone, row.rule)
			synctest.Test(t, func(t *testing.T) {
				b.SetGateways(row.gateways)
				first := b.decide(t.Context(), t)
				if first.Answer != admit.Denied || first.Degraded != admit.DegradedRedis || first.RetryIn <= 0 {
					t.Errorf("first = %v, degraded %q, retry in %d; want denied, for the part begins empty", first.Answer, first.Degraded, first.RetryIn)
				}
				pass(time.Duration(first.RetryIn) * time.Microsecond)
				if got := b.decide(t.Context(), t); got.Answer != admit.Admitted || got.Degraded != admit.DegradedRedis {
					t.Errorf("after the told time: %v, want admitted and marked", got.Answer)
				}
				pass(time.Second - time.Duration(first.RetryIn)*time.Microsecond)
				if got := 1 + b.admits(t, 50); got != row.inSecond {
					t.Errorf("%d admitted in the first second, want %d", got, row.inSecond)
				}
				pass(time.Hour)
				if got := b.admits(t, 200); got != row.inAnHour {
					t.Errorf("%d admitted after an idle hour, want %d", got, row.inAnHour)
				}
			})
			if !b.counted("annona_decisions", `outcome="admitted"`) || !b.counted("annona_degraded", `dependency="redis"`, `policy="p"`) {
				t.Errorf("local admissions are not metered:\n%s", b.metrics())
			}
		})
	}
}

func TestE7_LocalWithoutACountIsClosed(t *testing.T) {
	b := newBench(t, gone, rule("p", "region", "{redis: local}", ""))
	if d := b.decide(t.Context(), t); d.Answer != admit.Refused {
		t.Errorf("without a count: %v, want refused", d.Answer)
	}
	b.SetGateways(101) // 100 tokens over 101 gateways are none
	if d := b.decide(t.Context(), t); d.Answer != admit.Refused {
		t.Errorf("without a whole token for each gateway: %v, want refused", d.Answer)
	}
}

// The largest count of the ten minutes before the last one holds; an outage, in which nobody counts, does not age it.
func TestE7_LargestCountHoldsForTenMinutes(t *testing.T) {
	b := newBench(t, gone, rule("p", "region", "{redis: local}", ""))
	full := func() int {
		b.admits(t, 1) // begins the key's part
		pass(time.Hour)
		return b.admits(t, 200)
	}
	synctest.Test(t, func(t *testing.T) {
		b.SetGateways(4)
		pass(5 * time.Minute)
		b.SetGateways(2)
		if got := full(); got != 25 {
			t.Errorf("%d admitted, want 25: there were four gateways", got)
		}
		b.SetGateways(2)
		if got := full(); got != 50 {
			t.Errorf("%d admitted, want 50: ten minutes are over", got)
		}
		b.SetGateways(5)
		if got := full(); got != 20 {
			t.Errorf("%d admitted, want 20: there are five", got)
		}
	})
}

// What was kept in one outage, and the time between two, are no tokens in the next.
func TestLocalBeginsEachOutageEmpty(t *testing.T) {
	var out atomic.Bool
	b := newBench(t, outages(&out), rule("p", "region", "{redis: local}", ""))
	synctest.Test(t, func(t *testing.T) {
		b.SetGateways(1)
		for range 3 {
			out.Store(true)
			if got := b.admits(t, 3); got != 0 {
				t.Errorf("%d admitted at the start of an outage, want 0", got)
			}
			pass(time.Minute)
			if got := b.admits(t, 3); got != 3 {
				t.Errorf("%d of 3 admitted within an outage", got)
			}
			out.Store(false)
			pass(time.Second) // until a breaker would have probed
			if d := b.decide(t.Context(), t); d.Answer != admit.Admitted || d.Degraded != "" {
				t.Errorf("after the outage: %v, degraded %q", d.Answer, d.Degraded)
			}
		}
	})
}

// All or nothing, over the modes: one closed refuses; a local one that lacks denies, and then none is charged.
func TestLocalWithOtherModes(t *testing.T) {
	local := rule("narrow", "region", "{redis: local}", "tiers: {free: {rate: 1/s, burst: 1}}") + rule("broad", "region", "{redis: local}", "")
	closed := newBench(t, gone, local, rule("shut", "region", "closed", ""))
	closed.SetGateways(1)
	if d := closed.decide(t.Context(), t); d.Answer != admit.Refused || len(d.Reports) != 3 {
		t.Errorf("with a closed one: %v, want refused", d.Answer)
	}
	b := newBench(t, gone, local, rule("free", "region", "{redis: open}", ""))
	synctest.Test(t, func(t *testing.T) {
		b.SetGateways(1)
		b.admits(t, 1)
		pass(10 * time.Second)
		for range 100 {
			d := b.decide(t.Context(), t)
			if d.Answer == admit.Admitted {
				continue
			}
			narrow, broad, free := d.Reports[0], d.Reports[1], d.Reports[2]
			if !narrow.Violated || narrow.Remaining != 0 || broad.Violated || free.Violated || d.RetryIn != limit.MicrosPerSecond {
				t.Fatalf("denied with %+v, want only the narrow one violated", d)
			}
			if broad.Remaining != 99 || free.Remaining != 100 {
				t.Fatalf("remaining %d and %d, want 99 of the broad one and all of the open one", broad.Remaining, free.Remaining)
			}
		}
	})
}

// A take that may have charged is refused where this gateway's part lacks, never denied; what the part holds it admits.
func TestE5_LocalDeniesNothingThatMayHaveBeenCharged(t *testing.T) {
	unknown := func(int, bucket.Request) (bucket.Verdict, error) { return bucket.Verdict{}, errUnknown }
	b := newBench(t, unknown, rule("p", "region", "{redis: local}", ""))
	synctest.Test(t, func(t *testing.T) {
		b.SetGateways(1)
		if d := b.decide(t.Context(), t); d.Answer != admit.Refused {
			t.Errorf("empty: %v, want refused", d.Answer)
		}
		pass(time.Second)
		if got := b.admits(t, 20); got != 10 {
			t.Errorf("%d admitted after a second, want 10", got)
		}
	})
}

// errUnknown is a take that may have charged.
var errUnknown = fmt.Errorf("%w: the connection broke", bucket.ErrCouldNotAsk)

// Changed numbers add no token, in an outage neither.
func TestA2_LocalPartsThatGrowGainRoomOnly(t *testing.T) {
	b := newBench(t, gone, rule("p", "region", "{redis: local}", ""))
	synctest.Test(t, func(t *testing.T) {
		b.SetGateways(10)
		b.admits(t, 1)
		pass(time.Hour)
		pass(15 * time.Minute)
		b.SetGateways(1) // ten minutes after the last count, so that it holds
		if got := b.admits(t, 200); got != 10 {
			t.Errorf("%d admitted, want what the smaller part held: 10", got)
		}
	})
}

// A million invented keys cost a bounded number of records.
func TestSpoofedKeysTakeBoundedMemory(t *testing.T) {
	b := newBench(t, gone, rule("p", "region", "{redis: local}", ""))
	b.SetGateways(1)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	local, denials := b.Flood(1_000_000)
	runtime.GC()
	runtime.ReadMemStats(&after)
	if local > 1<<16 || denials > 1<<16 {
		t.Errorf("%d keys decide locally, %d denials are remembered", local, denials)
	}
	if grew := int64(after.HeapAlloc) - int64(before.HeapAlloc); grew > 64<<20 {
		t.Errorf("the heap grew by %d MiB", grew>>20)
	}
	if b.decide(t.Context(), t).Answer != admit.Denied {
		t.Error("a key among the million is not decided")
	}
}
