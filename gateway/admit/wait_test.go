package admit_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// dry answers as a bucket that a lease never reaches: wait while that is allowed, then denied.
func dry(heard limit.Micros, lacking ...string) func(int, bucket.Request) (bucket.Verdict, error) {
	return func(_ int, r bucket.Request) (bucket.Verdict, error) {
		outcome := bucket.Admitted
		for _, c := range r.Charges {
			for _, name := range lacking {
				if c.Policy == name {
					outcome = bucket.Denied
				}
			}
		}
		if outcome == bucket.Denied && r.MayWait {
			outcome = bucket.Wait
		}
		if outcome == bucket.Admitted {
			lacking = nil
		}
		return verdict(outcome, r, heard, lacking...), nil
	}
}

func TestWaitEndsWithAFill(t *testing.T) {
	var b *bench
	b = newBench(t, func(n int, r bucket.Request) (bucket.Verdict, error) {
		if n == 1 {
			key := r.Charges[0].Ref
			time.AfterFunc(120*time.Millisecond, func() { b.Filled(bucket.Announcement{Ref: key}) })
			time.AfterFunc(60*time.Millisecond, func() { b.Filled(bucket.Announcement{Ref: bucket.Ref{Key: limit.Key{1}}}) })
			return verdict(bucket.Wait, r, 0, "p"), nil
		}
		return verdict(bucket.Admitted, r, 0), nil
	}, rule("p", "global", "closed", ""))
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		d := b.decide(t.Context(), t)
		if waited := time.Since(start); d.Answer != admit.Admitted || waited != 120*time.Millisecond {
			t.Errorf("Decide = %v after %v, want admitted after 120ms", d.Answer, waited)
		}
		if len(b.taker.got) != 2 || !b.taker.got[1].MayWait {
			t.Errorf("takes = %d, want two, both of which may wait", len(b.taker.got))
		}
	})
	if !b.counted("annona_lease_wait_duration", "count") {
		t.Error("the wait was not measured")
	}
}

// A fill between the take and the wait must not be slept over.
func TestFillBeforeTheWaitIsNotMissed(t *testing.T) {
	var b *bench
	b = newBench(t, func(n int, r bucket.Request) (bucket.Verdict, error) {
		if n == 1 {
			b.Filled(bucket.Announcement{Ref: r.Charges[0].Ref})
			return verdict(bucket.Wait, r, 0, "p"), nil
		}
		return verdict(bucket.Admitted, r, 0), nil
	}, rule("p", "global", "closed", ""))
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if d := b.decide(t.Context(), t); d.Answer != admit.Admitted || time.Since(start) != 0 {
			t.Errorf("Decide = %v after %v, want admitted at once", d.Answer, time.Since(start))
		}
	})
}

// C5, case 20: however long it waits, a request takes exactly once in the way that counts as unmet demand.
func TestC5_WaitInVainEndsAtTheDeadlineWithOneLastTake(t *testing.T) {
	for name, row := range map[string]struct {
		more string
		rtt  time.Duration
		want time.Duration
	}{
		"default":                {"", 0, 500 * time.Millisecond},
		"far allocator":          {"", 400 * time.Millisecond, time.Second},
		"very far allocator":     {"", 5 * time.Second, 2 * time.Second},
		"as the policy says":     {"lease_wait: 100ms", 400 * time.Millisecond, 100 * time.Millisecond},
		"longer than another's":  {"lease_wait: 1s", 0, 500 * time.Millisecond},
		"shorter than another's": {"lease_wait: 200ms", 0, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dry(0, "p"), rule("p", "global", "closed", row.more), rule("q", "region", "closed", ""))
			if strings.HasSuffix(name, "another's") {
				b = newBench(t, dry(0, "p"), rule("p", "global", "closed", row.more), rule("q", "global", "closed", ""))
			}
			synctest.Test(t, func(t *testing.T) {
				b.SetRoundTrip(row.rtt)
				start := time.Now()
				d := b.decide(t.Context(), t)
				if waited := time.Since(start); d.Answer != admit.Denied || waited != row.want {
					t.Errorf("Decide = %v after %v, want denied after %v", d.Answer, waited, row.want)
				}
			})
			if got := b.taker.got; len(got) != 2 || !got[0].MayWait || got[0].WaitFor != row.want || got[1].MayWait {
				t.Errorf("takes = %+v, want one that may wait %v and one that may not", got, row.want)
			}
		})
	}
}

func TestScopeRegionNeverWaits(t *testing.T) {
	b := newBench(t, dry(-1, "p"), rule("p", "region", "closed", ""))
	if d := b.decide(t.Context(), t); d.Answer != admit.Denied || len(b.taker.got) != 1 || b.taker.got[0].MayWait {
		t.Errorf("Decide = %v, takes %+v, want denied by one take that may not wait", d.Answer, b.taker.got)
	}
}

func TestClientThatLeavesStopsWaiting(t *testing.T) {
	b := newBench(t, dry(0, "p"), rule("p", "global", "{redis: open, allocator: local}", ""))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		start := time.Now()
		if d := b.decide(ctx, t); d.Answer != admit.Refused || time.Since(start) != 50*time.Millisecond {
			t.Errorf("Decide = %v after %v, want refused after 50ms", d.Answer, time.Since(start))
		}
	})
	if n, keys := b.Waiting(); n != 0 || keys != 0 {
		t.Errorf("%d waiters at %d keys are left behind", n, keys)
	}
	if b.counted("annona_degraded", "redis") {
		t.Error("a client that left counts as an outage")
	}
}

// Beyond the bound a request does not wait, and one fill wakes all that do.
func TestWaitersAreBounded(t *testing.T) {
	var filled atomic.Bool
	b := newBench(t, func(_ int, r bucket.Request) (bucket.Verdict, error) {
		if filled.Load() {
			return verdict(bucket.Admitted, r, 0), nil
		}
		return dry(0, "p")(0, r)
	}, rule("p", "global", "closed", ""))
	synctest.Test(t, func(t *testing.T) {
		var group sync.WaitGroup
		var admitted atomic.Int64
		for range admit.MaxWaiters {
			group.Go(func() {
				if b.decide(t.Context(), t).Answer == admit.Admitted {
					admitted.Add(1)
				}
			})
		}
		synctest.Wait()
		start := time.Now()
		if d := b.decide(t.Context(), t); d.Answer != admit.Denied || time.Since(start) != 0 {
			t.Errorf("one too many: Decide = %v after %v, want denied at once", d.Answer, time.Since(start))
		}
		filled.Store(true)
		b.Filled(bucket.Announcement{Ref: b.taker.got[0].Charges[0].Ref})
		group.Wait()
		if admitted.Load() != admit.MaxWaiters || time.Since(start) != 0 {
			t.Errorf("admitted %d after %v, want %d at once", admitted.Load(), time.Since(start), admit.MaxWaiters)
		}
	})
	if n, keys := b.Waiting(); n != 0 || keys != 0 {
		t.Errorf("%d waiters at %d keys are left behind", n, keys)
	}
}

func TestAllocatorOut(t *testing.T) {
	const long = 11 * limit.MicrosPerSecond
	for name, row := range map[string]struct {
		heard    limit.Micros
		rules    []string
		lacking  []string
		want     admit.Answer
		degraded string
	}{
		"answered within ttl":      {limit.MicrosPerSecond, []string{rule("p", "global", "{redis: closed, allocator: open}", "")}, []string{"p"}, admit.Denied, ""},
		"out, local":               {long, []string{rule("p", "global", "{redis: closed, allocator: local}", "")}, []string{"p"}, admit.Denied, ""},
		"out, open":                {long, []string{rule("p", "global", "{redis: closed, allocator: open}", "")}, []string{"p"}, admit.Admitted, "allocator"},
		"never heard, open":        {-1, []string{rule("p", "global", "{redis: closed, allocator: open}", "")}, []string{"p"}, admit.Admitted, "allocator"},
		"open beside one that has": {long, []string{rule("p", "global", "{redis: closed, allocator: open}", ""), rule("r", "region", "closed", "")}, []string{"p"}, admit.Admitted, "allocator"},
		"open beside one that lacks": {
			long, []string{rule("p", "global", "{redis: closed, allocator: open}", ""), rule("r", "region", "closed", "")}, []string{"p", "r"}, admit.Denied, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, dry(row.heard, row.lacking...), row.rules...)
			synctest.Test(t, func(t *testing.T) {
				d := b.decide(t.Context(), t)
				if d.Answer != row.want || d.Degraded != row.degraded {
					t.Errorf("Decide = %v degraded %q, want %v degraded %q", d.Answer, d.Degraded, row.want, row.degraded)
				}
			})
			if row.degraded != "" && !b.counted("annona_degraded", `dependency="allocator"`, `policy="p"`) {
				t.Error("the open admission is not metered")
			}
			if _, out := b.Heard(); out != (row.heard != limit.MicrosPerSecond) {
				t.Errorf("Heard: out = %v", out)
			}
		})
	}
}

// A policy that is open gives up itself and nothing else: the others still charge.
func TestOpenPolicyIsNotChargedAndOthersAre(t *testing.T) {
	b := newBench(t, dry(-1, "p"), rule("p", "global", "{redis: closed, allocator: open}", ""), rule("r", "region", "closed", ""))
	synctest.Test(t, func(t *testing.T) { b.decide(t.Context(), t) })
	last := b.taker.got[len(b.taker.got)-1]
	if len(last.Charges) != 1 || last.Charges[0].Policy != "r" {
		t.Errorf("the take that admitted charges %+v, want r only", last.Charges)
	}
	if !b.counted("annona_decisions", `policy="p"`, `outcome="open"`) || !b.counted("annona_decisions", `policy="r"`, `outcome="admitted"`) {
		t.Errorf("decisions are counted wrongly:\n%s", b.metrics())
	}
}

// An answer of the allocator ends the outage.
func TestAllocatorIsBackWhenHeard(t *testing.T) {
	var back atomic.Bool
	b := newBench(t, func(n int, r bucket.Request) (bucket.Verdict, error) {
		if back.Load() {
			return verdict(bucket.Admitted, r, 1000), nil
		}
		return dry(-1, "p")(n, r)
	}, rule("p", "global", "closed", ""))
	synctest.Test(t, func(t *testing.T) {
		b.decide(t.Context(), t)
		if ago, out := b.Heard(); !out || ago >= 0 {
			t.Errorf("Heard = %v, %v, want never and out", ago, out)
		}
		back.Store(true)
		<-time.After(time.Second) // of the bubble: the answer must be newer than the outage
		b.decide(t.Context(), t)
		if ago, out := b.Heard(); out || ago != time.Millisecond {
			t.Errorf("Heard = %v, %v, want 1ms ago and back", ago, out)
		}
	})
}

// C5: a request that takes again before a fill has ended the round in which it waits is the same wait, not another.
func TestC5_TakingAgainIsTheSameWait(t *testing.T) {
	var b *bench
	b = newBench(t, func(n int, r bucket.Request) (bucket.Verdict, error) {
		if n > 2 {
			return verdict(bucket.Admitted, r, 0), nil
		}
		time.AfterFunc(10*time.Millisecond, func() { b.Filled(bucket.Announcement{Ref: r.Charges[0].Ref}) })
		v := verdict(bucket.Wait, r, 0, "p")
		v.States[0].Round, v.States[1].Round = 7, 8
		return v, nil
	}, rule("p", "global", "closed", ""), rule("q", "global", "closed", ""))
	synctest.Test(t, func(t *testing.T) {
		if d := b.decide(t.Context(), t); d.Answer != admit.Admitted {
			t.Fatalf("Decide = %v, want admitted", d.Answer)
		}
		if len(b.taker.got) != 3 {
			t.Fatalf("takes = %d, want three", len(b.taker.got))
		}
		for i, want := range []limit.Micros{0, 7, 7} {
			// Only p lacked, so only there does the request wait.
			if p, q := b.taker.got[i].Charges[0].Waits, b.taker.got[i].Charges[1].Waits; p != want || q != 0 {
				t.Errorf("take %d: waits since rounds %d and %d, want %d and 0", i, p, q, want)
			}
		}
	})
}
