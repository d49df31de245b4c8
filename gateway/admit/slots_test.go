package admit_test

import (
	"context"
	"errors"
	"slices"
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

// settler is a Settler that remembers what it got, and can be out.
type settler struct {
	mu          sync.Mutex
	out         bool
	gone        []int
	held        []bucket.Holder
	renewed     int
	renewedOf   map[bucket.Holder]int
	takes       time.Duration // of each call
	released    []bucket.Back
	corrections []bucket.Correction
}

var errOut = errors.New("out")

func (s *settler) locked(f func()) error {
	if s.takes > 0 {
		pass(s.takes)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out {
		return errOut
	}
	f()
	return nil
}

func (s *settler) GiveBack(_ context.Context, backs []bucket.Back) ([]bucket.Credited, error) {
	return nil, s.locked(func() { s.released = append(s.released, backs...) })
}

func (s *settler) Correct(_ context.Context, corrections []bucket.Correction) error {
	return s.locked(func() { s.corrections = append(s.corrections, corrections...) })
}

func (s *settler) Hold(_ context.Context, h bucket.Holder, _ int) error {
	return s.locked(func() { s.held = append(s.held, h) })
}

func (s *settler) Renew(_ context.Context, h bucket.Holder, _ int) (gone []int, err error) {
	err = s.locked(func() {
		gone, s.renewed = s.gone, s.renewed+1
		if s.renewedOf == nil {
			s.renewedOf = map[bucket.Holder]int{}
		}
		s.renewedOf[h]++
	})
	return gone, err
}

// renewals is how often h was renewed.
func (s *settler) renewals(h bucket.Holder) (n int) {
	s.set(func() { n = s.renewedOf[h] })
	return n
}

func (s *settler) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

const slots = "  - {name: slots, key: [user], algorithm: concurrency, limit: 2, scope: region, on_failure: closed}\n"

var entry atomic.Uint64

// slotVerdict admits r, and gives a receipt for each charge.
func slotVerdict(r bucket.Request) bucket.Verdict {
	v := verdict(bucket.Admitted, r, -1)
	for _, c := range r.Charges {
		v.Receipts = append(v.Receipts, bucket.Receipt{
			Ref: c.Ref, Algorithm: c.Algorithm, Epoch: "e", Entry: entry.Add(1), Holder: r.Holder, FromPart: c.Cost,
		})
	}
	return v
}

// slotBench is a bench whose takes give slots, with what runs beside it; it ends with the returned function.
func slotBench(t *testing.T, s *settler, rules ...string) (*bench, func()) {
	t.Helper()
	return slotBenchOf(t, s, func(_ int, r bucket.Request) (bucket.Verdict, error) { return slotVerdict(r), nil }, rules...)
}

func slotBenchOf(t *testing.T, s *settler, answer func(int, bucket.Request) (bucket.Verdict, error), rules ...string) (*bench, func()) {
	t.Helper()
	return slotBenchWith(t, s, answer, rules...)
}

func slotBenchWith(t *testing.T, s admit.Settler, answer func(int, bucket.Request) (bucket.Verdict, error), rules ...string) (*bench, func()) {
	t.Helper()
	b := newBenchWith(t, admit.Options{Region: "eu", Settler: s}, nil, answer, rules...)
	ctx, stop := context.WithCancel(context.Background())
	var beside sync.WaitGroup
	beside.Go(func() { b.Run(ctx) })
	return b, func() { stop(); beside.Wait() }
}

// A stream of hours keeps its slot, which is renewed every second and released once.
func TestSlot_LastsAsLongAsItsRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &settler{}
		b, stop := slotBench(t, s, slots)
		d := b.decide(t.Context(), t)
		lost := false
		d.Hold.OnLost(func() { lost = true })
		pass(5 * time.Hour)
		synctest.Wait()
		if lost || s.renewed < 5*3600-2 || len(s.released) != 0 {
			t.Fatalf("after hours: lost %t, %d renewals, released %v", lost, s.renewed, s.released)
		}
		d.Hold.End(admit.Ended{Status: 200})
		d.Hold.End(admit.Ended{Status: 200})
		synctest.Wait()
		if len(s.released) != 1 || s.released[0].Tokens != 1 || s.released[0].Holder != s.held[0] {
			t.Errorf("released %+v, want the slot once", s.released)
		}
		stop()
	})
}

// A request whose slots cannot be renewed ends before others may have them: at most 10 s after the last renewal was sent.
func TestB8_RequestsEndWhoseSlotsCannotBeKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &settler{}
		b, stop := slotBench(t, s, slots)
		d := b.decide(t.Context(), t)
		var lostAt time.Time
		d.Hold.OnLost(func() { lostAt = time.Now() })
		pass(30*time.Second + time.Millisecond)
		s.set(func() { s.out = true })
		outSince := time.Now()
		pass(20 * time.Second)
		synctest.Wait()
		if after := lostAt.Sub(outSince); lostAt.IsZero() || after > bucket.HolderLasts || after < bucket.HolderLasts-3*time.Second {
			t.Fatalf("ended %s after the store went out, want within %s of the last renewal, and not long before", after, bucket.HolderLasts)
		}
		s.set(func() { s.out = false })
		pass(time.Second) // until a holder can be made known
		if next := b.decide(t.Context(), t); next.Answer != admit.Admitted || len(s.held) != 2 || s.held[0] == s.held[1] {
			t.Errorf("afterwards: %v, holders %v, want another", next.Answer, s.held)
		}
		stop()
	})
}

// A store that has lost a holder has given its slots to others: requests there end at once.
func TestB8_RequestsEndWhoseHolderIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &settler{}
		b, stop := slotBench(t, s, slots)
		d := b.decide(t.Context(), t)
		lost := make(chan struct{})
		d.Hold.OnLost(func() { close(lost) })
		shard := b.taker.got[0].Charges[0].Shard
		s.set(func() { s.gone = []int{shard + 1} })
		pass(5 * time.Second)
		select {
		case <-lost:
			t.Fatal("a request ended for a shard in which it holds nothing")
		default:
		}
		s.set(func() { s.gone = []int{shard} })
		pass(1100 * time.Millisecond)
		<-lost
		stop()
	})
}

// What could not be released is released when the store is back, all of it.
func TestSlot_IsReleasedAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &settler{}
		b, stop := slotBench(t, s, slots)
		var holds []*admit.Hold
		for range 700 {
			holds = append(holds, b.decide(t.Context(), t).Hold)
		}
		s.set(func() { s.out = true })
		for _, h := range holds {
			h.End(admit.Ended{Status: 200})
		}
		pass(3 * time.Second)
		s.set(func() { s.out = false })
		pass(2 * time.Second)
		synctest.Wait()
		entries := map[uint64]bool{}
		for _, back := range s.released {
			entries[back.Entry] = true
		}
		if len(entries) != 700 || len(s.released) != 700 {
			t.Errorf("%d slots released in %d goes, want 700", len(entries), len(s.released))
		}
		stop()
	})
}

// A take whose outcome is unknown may have left a slot behind: it dies with its holder, by which soon no new request takes. Many
// such takes at once make one more holder, for each is renewed in every shard, and shards bound them.
func TestSlot_OfAnUnknownTakeEndsWithItsHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, fail := &settler{}, false
		b, stop := slotBenchOf(t, s, func(_ int, r bucket.Request) (bucket.Verdict, error) {
			if fail {
				return bucket.Verdict{}, context.DeadlineExceeded
			}
			return slotVerdict(r), nil
		}, slots)
		b.decide(t.Context(), t)
		first := s.held[0]
		for range 20 {
			fail = true
			b.decide(t.Context(), t)
			fail = false
			b.decide(t.Context(), t) // and a breaker stays closed
		}
		pass(1100 * time.Millisecond)
		b.decide(t.Context(), t)
		if got := b.taker.got; got[len(got)-1].Holder == first || len(s.held) != 2 {
			t.Errorf("holders %v, taken by %d in the end; want one other after the takes of which nobody knows", s.held, got[len(got)-1].Holder)
		}
		stop()
	})
}

// What an ended request did cost: as its upstream says, else nothing for a failure that is refunded, else as charged; one that was
// never forwarded costs nothing.
func TestCorrectedCosts(t *testing.T) {
	const rule = "  - {name: p, key: [user], algorithm: fixed_window, limit: 100, window: 1h, scope: region, on_failure: closed, " +
		"cost: {default: 10, actual: X-Cost, refund: [502]}}\n"
	says := func(values ...string) func(string) []string {
		return func(name string) []string {
			if name != "X-Cost" {
				return nil
			}
			return values
		}
	}
	for _, row := range []struct {
		what  string
		end   func(*admit.Hold)
		costs limit.Tokens
	}{
		{"as charged", func(h *admit.Hold) { h.End(admit.Ended{Status: 200, Said: says()}) }, 10},
		{"less", func(h *admit.Hold) { h.End(admit.Ended{Status: 200, Said: says("4")}) }, 4},
		{"more", func(h *admit.Hold) { h.End(admit.Ended{Status: 200, Said: says("400")}) }, 400},
		{"nothing", func(h *admit.Hold) { h.End(admit.Ended{Status: 200, Said: says("0")}) }, 0},
		{"refunded", func(h *admit.Hold) { h.End(admit.Ended{Status: 502, Said: says()}) }, 0},
		{"a failure that says its cost", func(h *admit.Hold) { h.End(admit.Ended{Status: 502, Said: says("7")}) }, 7},
		{"a failure that is not refunded", func(h *admit.Hold) { h.End(admit.Ended{Status: 500, Said: says()}) }, 10},
		{"no answer", func(h *admit.Hold) { h.End(admit.Ended{}) }, 10},
		{"rubbish", func(h *admit.Hold) { h.End(admit.Ended{Status: 200, Said: says("NaN")}) }, 10},
		{"a negative cost", func(h *admit.Hold) { h.End(admit.Ended{Status: 200, Said: says("-1")}) }, 10},
		{"a huge cost", func(h *admit.Hold) { h.End(admit.Ended{Status: 200, Said: says(strings.Repeat("9", 30))}) }, 10},
		{"two costs", func(h *admit.Hold) { h.End(admit.Ended{Status: 200, Said: says("1", "2")}) }, 10},
		{"never forwarded", (*admit.Hold).Abandon, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &settler{}
			b, stop := slotBench(t, s, rule)
			row.end(b.decide(t.Context(), t).Hold)
			synctest.Wait()
			switch {
			case row.costs == 10 && len(s.corrections) == 0: // a window keeps no account of takes that nothing corrects
			case row.costs == 10 || len(s.corrections) != 1 || s.corrections[0].Actual != row.costs || s.corrections[0].Charge.Cost != 10:
				t.Errorf("%s: %+v, want one correction to %d", row.what, s.corrections, row.costs)
			}
			stop()
		})
	}
}

// More ended requests than the store settles: none waits, and those beyond keep their costs, counted.
func TestCorrectionsAreBounded(t *testing.T) {
	s := &settler{}
	b := newBenchWith(t, admit.Options{Region: "eu", Settler: s}, nil, func(_ int, r bucket.Request) (bucket.Verdict, error) {
		v := verdict(bucket.Admitted, r, -1)
		v.Receipts = slices.Repeat([]bucket.Receipt{{Ref: r.Charges[0].Ref, Epoch: "e", FromPart: 10}}, len(r.Charges))
		return v, nil
	}, "  - {name: p, key: [user], algorithm: fixed_window, limit: 100, window: 1h, scope: region, on_failure: closed, cost: {default: 10, actual: X-Cost}}\n")
	for range 8192 + 5 { // nothing settles: Run was never called
		b.decide(t.Context(), t).Hold.End(admit.Ended{Status: 200, Said: func(string) []string { return []string{"4"} }})
	}
	if !b.counted("annona_corrections_total", `outcome="failed"`, "} 5") {
		t.Errorf("want 5 corrections counted as failed:\n%s", b.metrics())
	}
}
