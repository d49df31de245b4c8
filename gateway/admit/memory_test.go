package admit_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// retrying denies the named ones, to be retried after so long.
func retrying(retry limit.Micros, lacking ...string) func(int, bucket.Request) (bucket.Verdict, error) {
	return func(_ int, r bucket.Request) (bucket.Verdict, error) {
		v := verdict(bucket.Denied, r, 0, lacking...)
		for i := range v.States {
			v.States[i].RetryIn = min(v.States[i].RetryIn, retry)
			v.States[i].Level = 500_000
		}
		return v, nil
	}
}

// takesWithin asks every 10 ms for so long and returns how many requests reached the store.
func (b *bench) takesWithin(t *testing.T, d time.Duration) int {
	t.Helper()
	before := len(b.taker.got)
	for end := time.Now().Add(d); time.Now().Before(end); pass(10 * time.Millisecond) {
		if got := b.decide(t.Context(), t); got.Answer != admit.Denied || !got.Reports[0].Violated || got.Reports[0].Remaining != 0 {
			t.Fatalf("Decide = %+v, want denied with nothing remaining", got)
		}
	}
	return len(b.taker.got) - before
}

func TestMemoryDeniesUntilItMayFitAndASecondAtMost(t *testing.T) {
	for name, row := range map[string]struct {
		scope string
		retry limit.Micros
		takes int // in ten seconds
	}{
		"known retry time":   {"region", 250_000, 40},
		"a second at most":   {"region", 2_000_000, 10},
		"a lease is fresher": {"global", 2_000_000, 100},
		"nothing known":      {"region", 0, 1000},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, retrying(row.retry, "p"), rule("p", row.scope, "{redis: closed, allocator: local}", ""))
			synctest.Test(t, func(t *testing.T) {
				if got := b.takesWithin(t, 10*time.Second); got != row.takes {
					t.Errorf("%d takes, want %d", got, row.takes)
				}
			})
		})
	}
}

// What a client is told while it is denied from memory shrinks as time passes, and is never less than what was known.
func TestMemoryTellsWhatIsLeftOfTheWait(t *testing.T) {
	b := newBench(t, retrying(2_000_000, "p"), rule("p", "region", "closed", ""))
	synctest.Test(t, func(t *testing.T) {
		first := b.decide(t.Context(), t)
		pass(700 * time.Millisecond)
		second := b.decide(t.Context(), t)
		if first.RetryIn != 2_000_000 || second.RetryIn != 1_300_000 || len(b.taker.got) != 1 {
			t.Errorf("retry in %d, then %d after 0.7 s and %d takes; want 2 s, then 1.3 s after one", first.RetryIn, second.RetryIn, len(b.taker.got))
		}
	})
}

func TestMemoryEndsWithAFillAndWithASnapshot(t *testing.T) {
	b := newBench(t, retrying(2_000_000, "p"), rule("p", "global", "{redis: closed, allocator: local}", ""))
	synctest.Test(t, func(t *testing.T) {
		b.decide(t.Context(), t)
		b.decide(t.Context(), t)
		key := b.taker.got[0].Charges[0].Ref
		b.Filled(bucket.Announcement{Ref: bucket.Ref{Key: limit.Key{1}}})
		b.decide(t.Context(), t)
		if len(b.taker.got) != 1 {
			t.Fatalf("%d takes before a fill of the key, want 1", len(b.taker.got))
		}
		b.Filled(bucket.Announcement{Ref: key})
		b.decide(t.Context(), t)
		if len(b.taker.got) != 2 {
			t.Errorf("%d takes after the fill, want 2", len(b.taker.got))
		}
		next := *b.Snapshot()
		b.Use(&next)
		b.decide(t.Context(), t)
		if len(b.taker.got) != 3 {
			t.Errorf("%d takes after a new snapshot, want 3", len(b.taker.got))
		}
	})
}

// A fill that comes while the denial is under way is not overlooked.
func TestMemoryKeepsNoDenialOlderThanAFill(t *testing.T) {
	var b *bench
	b = newBench(t, func(n int, r bucket.Request) (bucket.Verdict, error) {
		b.Filled(bucket.Announcement{Ref: r.Charges[0].Ref})
		return retrying(2_000_000, "p")(n, r)
	}, rule("p", "global", "{redis: closed, allocator: local}", ""))
	b.decide(t.Context(), t)
	b.decide(t.Context(), t)
	if len(b.taker.got) != 2 {
		t.Errorf("%d takes, want 2", len(b.taker.got))
	}
}

// C5: demand that was denied from memory reaches the store with the next take, once, and at one policy only.
func TestC5_DemandDeniedFromMemoryIsTold(t *testing.T) {
	leased := "{redis: closed, allocator: local}"
	answer := func(_ int, r bucket.Request) (bucket.Verdict, error) {
		v, err := retrying(2_000_000, "narrow", "broad")(0, r)
		for i, c := range r.Charges {
			if c.Policy == "broad" {
				v.States[i].RetryIn = 1_000_000
			}
		}
		return v, err
	}
	b := newBench(t, answer, rule("narrow", "global", leased, ""), rule("broad", "global", leased, ""), rule("free", "global", leased, ""))
	synctest.Test(t, func(t *testing.T) {
		for range 8 {
			b.decide(t.Context(), t)
		}
		pass(100 * time.Millisecond)
		b.decide(t.Context(), t)
		pass(100 * time.Millisecond)
		b.decide(t.Context(), t)
		if len(b.taker.got) != 3 {
			t.Fatalf("%d takes, want 3", len(b.taker.got))
		}
		for i, want := range []limit.Tokens{0, 7, 0} {
			c := b.taker.got[i].Charges
			if c[0].Denied != want || c[1].Denied != 0 || c[2].Denied != 0 {
				t.Errorf("take %d tells %d, %d, %d denied; want %d at the one that denies longest", i, c[0].Denied, c[1].Denied, c[2].Denied, want)
			}
		}
	})
	// A policy of one region has no demand to tell, and where it denies no pool could have helped.
	mixed := newBench(t, retrying(2_000_000, "p", "q"), rule("p", "region", "closed", ""), rule("q", "global", leased, ""))
	synctest.Test(t, func(t *testing.T) {
		for range 8 {
			mixed.decide(t.Context(), t)
		}
		pass(time.Second)
		mixed.decide(t.Context(), t)
		for _, c := range mixed.taker.got[1].Charges {
			if c.Denied != 0 {
				t.Errorf("%s tells %d denied, want 0", c.Policy, c.Denied)
			}
		}
	})
}

// A request that then waits, and takes again, tells it once.
func TestC5_DemandDeniedFromMemoryIsToldOnce(t *testing.T) {
	answer := func(n int, r bucket.Request) (bucket.Verdict, error) {
		if n == 2 {
			return verdict(bucket.Wait, r, 0, "p"), nil
		}
		return retrying(2_000_000, "p")(n, r)
	}
	b := newBench(t, answer, rule("p", "global", "{redis: closed, allocator: local}", ""))
	synctest.Test(t, func(t *testing.T) {
		b.decide(t.Context(), t)
		b.decide(t.Context(), t)
		pass(100 * time.Millisecond)
		b.decide(t.Context(), t)
		if len(b.taker.got) != 3 || b.taker.got[1].Charges[0].Denied != 1 || b.taker.got[2].Charges[0].Denied != 0 {
			t.Errorf("takes = %+v, want the second to tell 1 denied, and the one after its wait none", b.taker.got)
		}
	})
}

// An allocator that is out is found out by asking and waiting, which a policy that is then open needs.
func TestMemoryLeavesOpenPoliciesToTheirMode(t *testing.T) {
	answer := func(n int, r bucket.Request) (bucket.Verdict, error) {
		v, err := retrying(2_000_000, "p")(n, r)
		v.States[0].Heard = -1
		return v, err
	}
	b := newBench(t, answer, rule("p", "global", "{redis: closed, allocator: open}", ""))
	b.decide(t.Context(), t)
	b.decide(t.Context(), t)
	if len(b.taker.got) != 2 {
		t.Errorf("%d takes, want 2", len(b.taker.got))
	}
}

// Policies that do not deny are told as they stood, as long as that is fresh.
func TestMemoryKnowsHowTheOthersStand(t *testing.T) {
	b := newBench(t, retrying(2_000_000, "p"), rule("p", "region", "closed", ""), rule("q", "region", "closed", ""))
	b.decide(t.Context(), t)
	d := b.decide(t.Context(), t)
	if len(b.taker.got) != 1 || d.Reports[1].Violated || d.Reports[1].Remaining != 0 || !d.Reports[0].Violated {
		t.Errorf("reports after %d takes = %+v, want p violated and q with half a token", len(b.taker.got), d.Reports)
	}
}

func realAdmitters(t *testing.T, n int, rules ...string) []*admit.Admitter {
	t.Helper()
	b := newBench(t, gone, rules...)
	server := buckettest.StartRedis(t)
	all := make([]*admit.Admitter, n)
	for i := range all {
		store, err := bucket.Open(bucket.Config{Addrs: []string{server.Addr}, Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = store.Close() })
		all[i] = admit.New(store, admit.Options{Region: "eu", Telemetry: b.tel})
		all[i].Use(b.Snapshot())
	}
	return all
}

func decideAs(t *testing.T, a *admit.Admitter) admit.Decision {
	t.Helper()
	d, err := a.Decide(t.Context(), &policy.Request{Identity: policy.Identity{User: "alice"}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Case 3: limit 1; two gateways of one region in turn, 30 requests: one admitted, 29 denied with nothing remaining.
func TestCase03_StaleVerdict(t *testing.T) {
	two := realAdmitters(t, 2, "  - {name: p, key: [user], algorithm: token_bucket, rate: 1/min, scope: region, on_failure: closed}\n")
	admitted := 0
	for i := range 30 {
		d := decideAs(t, two[i%2])
		if d.Answer == admit.Admitted {
			admitted++
		} else if d.Answer != admit.Denied || d.Reports[0].Remaining != 0 || d.RetryIn <= 0 {
			t.Errorf("request %d: %+v, want denied with nothing remaining", i, d)
		}
	}
	if admitted != 1 {
		t.Errorf("%d admitted, want 1", admitted)
	}
}

// A lone client that waits as long as it is told is admitted, also when it was told from memory.
func TestMemoryKeepsTheToldTime(t *testing.T) {
	one := realAdmitters(t, 1, "  - {name: p, key: [user], algorithm: token_bucket, rate: 5/s, burst: 1, scope: region, on_failure: closed}\n")[0]
	decideAs(t, one)
	for range 5 {
		decideAs(t, one)
		d := decideAs(t, one)
		if d.Answer != admit.Denied {
			t.Fatalf("Decide = %v, want denied", d.Answer)
		}
		pass(time.Duration(d.RetryIn) * time.Microsecond)
		if d := decideAs(t, one); d.Answer != admit.Admitted {
			t.Errorf("after the told time: %v", d.Answer)
		}
	}
}
