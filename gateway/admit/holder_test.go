package admit_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
)

const reportedSlots = "  - {name: reported, key: [user], algorithm: concurrency, limit: 2, scope: region, on_failure: closed, enforce: 0%}\n"

// shardOf is the shard of a policy's charge among the takes so far.
func (b *bench) shardOf(t *testing.T, name string) int {
	t.Helper()
	for _, r := range b.taker.got {
		for _, c := range r.Charges {
			if c.Policy == name {
				return c.Shard
			}
		}
	}
	t.Fatalf("no take for %s", name)
	return 0
}

// A policy that only reports harms nobody: a request that loses its slot there goes on.
func TestShadow_LostSlotsEndNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &settler{}
		b, stop := slotBench(t, s, reportedSlots, rule("p", "region", "closed", ""))
		d := b.decide(t.Context(), t)
		d.Hold.OnLost(func() { t.Error("a request was ended for a slot that only counts") })
		s.set(func() { s.gone = []int{b.shardOf(t, "reported")} })
		pass(3 * time.Second)
		synctest.Wait()
		s.set(func() { s.gone, s.out = nil, true })
		pass(20 * time.Second)
		synctest.Wait()
		s.set(func() { s.out = false })
		d.Hold.End(admit.Ended{Status: 200})
		pass(2 * time.Second)
		synctest.Wait()
		if len(s.released) != 1 {
			t.Errorf("released %v, want the slot", s.released)
		}
		stop()
	})
}

// Where the holder changes between two takes of a request, both are kept up to its end.
func TestSlot_OfTwoHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &settler{}
		b, stop := slotBenchOf(t, s, func(n int, r bucket.Request) (bucket.Verdict, error) {
			if n == 2 || n == 4 {
				return bucket.Verdict{}, bucket.ErrHolderGone
			}
			return slotVerdict(r), nil
		}, slots, reportedSlots)
		d := b.decide(t.Context(), t)
		d.Hold.OnLost(func() { t.Error("the request was ended") })
		b.decide(t.Context(), t).Hold.End(admit.Ended{Status: 200}) // by a third holder, which is the newest from now on
		if len(s.held) != 3 {
			t.Fatalf("%d holders, want 3", len(s.held))
		}
		pass(time.Minute + time.Millisecond)
		synctest.Wait()
		for _, h := range s.held {
			if n := s.renewals(h); n < 59 {
				t.Errorf("a holder was renewed %d times in a minute", n)
			}
		}
		released := len(s.released)
		d.Hold.End(admit.Ended{Status: 200})
		pass(2500 * time.Millisecond)
		synctest.Wait()
		first, second := s.renewals(s.held[0]), s.renewals(s.held[1])
		pass(2 * time.Second)
		synctest.Wait()
		if len(s.released)-released != 2 || s.renewals(s.held[0]) != first || s.renewals(s.held[1]) != second {
			t.Errorf("released %v, and older holders were renewed after that", s.released)
		}
		stop()
	})
}

// A slot that is lost before anybody watches ends the request as soon as somebody does.
func TestB8_LossBeforeTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &settler{}
		b, stop := slotBench(t, s, slots)
		d := b.decide(t.Context(), t)
		s.set(func() { s.gone = []int{b.shardOf(t, "slots")} })
		pass(1100 * time.Millisecond)
		synctest.Wait()
		lost := false
		d.Hold.OnLost(func() { lost = true })
		if !lost {
			t.Error("the request goes on without its slot")
		}
		d.Hold.End(admit.Ended{})
		stop()
	})
}

// A hundred requests that need a holder wait for one attempt together, and while none can be made known, for none.
func TestHolder_IsBegunOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &settler{takes: 40 * time.Millisecond, out: true}
		b := newBenchWith(t, admit.Options{Region: "eu", Settler: s}, nil, func(_ int, r bucket.Request) (bucket.Verdict, error) {
			return slotVerdict(r), nil
		}, slots)
		came := time.Now()
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				if d := b.decide(t.Context(), t); d.Answer != admit.Refused {
					t.Errorf("%v without a holder", d.Answer)
				}
			})
		}
		all.Wait()
		if took := time.Since(came); took != s.takes {
			t.Errorf("a hundred requests waited %s, want the %s of one call", took, s.takes)
		}
		pass(time.Second)
		s.takes = time.Second // nobody has as much patience
		came = time.Now()
		b.decide(t.Context(), t)
		if took := time.Since(came); took != 50*time.Millisecond {
			t.Errorf("a request waited %s for a store that does not answer, want 50 ms", took)
		}
		pass(time.Second)
		s.takes = 40 * time.Millisecond
		came = time.Now()
		b.decide(t.Context(), t)
		if took := time.Since(came); took != 0 {
			t.Errorf("right after that one waited %s, want no attempt at all", took)
		}
		s.set(func() { s.out = false })
		pass(time.Second)
		synctest.Wait()
		if d := b.decide(t.Context(), t); d.Answer != admit.Admitted || len(s.held) != 1 {
			t.Errorf("when the store is back: %v, %d holders", d.Answer, len(s.held))
		}
	})
}

// A client that leaves while it is decided about leaves no slot behind, no place in a queue, and no holder to be replaced.
func TestClientThatLeavesMeanwhileIsAccountedFor(t *testing.T) {
	const queue = "  - {name: q, key: [user], algorithm: token_bucket, rate: 1/s, burst: 1, max_delay: 30s, scope: region, on_failure: closed}\n"
	for _, each := range []string{slots, queue} {
		var leave context.CancelFunc
		b := newBenchWith(t, admit.Options{Region: "eu", Settler: &settler{}}, nil, nil, each)
		b.taker.answer = func(_ int, r bucket.Request) (bucket.Verdict, error) {
			leave()
			if err := b.taker.ctx.Err(); err != nil {
				return bucket.Verdict{}, err
			}
			return slotVerdict(r), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		leave = cancel
		if d := b.decide(ctx, t); d.Answer != admit.Admitted || d.Hold == nil {
			t.Errorf("%s: %v, hold %v; want to know what there is to give back", each, d.Answer, d.Hold)
		}
	}
}

// Slots that cannot be released keep no others from it: of a cluster one node may be out.
func TestSlot_IsReleasedBesideOthersThatCannotBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stuck{}
		b, stop := slotBenchWith(t, s, func(_ int, r bucket.Request) (bucket.Verdict, error) { return slotVerdict(r), nil }, slots)
		var holds []*admit.Hold
		for range 600 {
			holds = append(holds, b.decide(t.Context(), t).Hold)
		}
		for _, h := range holds {
			h.End(admit.Ended{Status: 200})
		}
		pass(5 * time.Second)
		synctest.Wait()
		if n := len(s.released); n < 80 || n >= 600 {
			t.Errorf("%d of 600 slots were released beside one that cannot be", n)
		}
		stop()
	})
}

// stuck is a settler that fails wherever the slot is released that it saw first.
type stuck struct {
	settler

	never uint64
}

func (s *stuck) GiveBack(ctx context.Context, backs []bucket.Back) ([]bucket.Credited, error) {
	if s.never == 0 {
		s.never = backs[0].Entry
	}
	if slices.ContainsFunc(backs, func(b bucket.Back) bool { return b.Entry == s.never }) {
		return nil, errOut
	}
	return s.settler.GiveBack(ctx, backs)
}

// A gateway that ends settles what has gathered for two seconds at most, whatever the store does.
func TestSettlingEndsInTime(t *testing.T) {
	const rule = "  - {name: p, key: [user], algorithm: fixed_window, limit: 100, window: 1h, scope: region, on_failure: closed, cost: {default: 10, actual: X-Cost}}\n"
	synctest.Test(t, func(t *testing.T) {
		s := &silent{}
		b, stop := slotBenchWith(t, s, func(_ int, r bucket.Request) (bucket.Verdict, error) { return slotVerdict(r), nil }, rule)
		for range 4000 {
			b.decide(t.Context(), t).Hold.End(admit.Ended{Status: 200, Said: func(string) []string { return []string{"4"} }})
		}
		began := time.Now()
		stop()
		if took := time.Since(began); took > 2100*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		if s.asked.Load() < 100 {
			t.Errorf("%d corrections were tried", s.asked.Load())
		}
	})
}

// silent is a settler whose store does not answer: each call takes its patience.
type silent struct {
	settler

	asked atomic.Int64
}

func (s *silent) Correct(ctx context.Context, _ []bucket.Correction) error {
	s.asked.Add(1)
	select {
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
	}
	return errOut
}

// What a request turns out to cost is charged by the numbers in force then, never by those of its own time, which would come into
// force again; where the limit is gone, nobody counts it.
func TestA3_CorrectionAfterAReload(t *testing.T) {
	of := func(limit string) string {
		return "  - {name: p, key: [user], algorithm: fixed_window, limit: " + limit + ", window: 1h, scope: region, on_failure: closed, cost: {default: 10, actual: X-Cost}}\n"
	}
	says := func(cost string) admit.Ended {
		return admit.Ended{Status: 200, Said: func(string) []string { return []string{cost} }}
	}
	synctest.Test(t, func(t *testing.T) {
		s := &settler{}
		b, stop := slotBench(t, s, of("100"))
		one, two, three := b.decide(t.Context(), t).Hold, b.decide(t.Context(), t).Hold, b.decide(t.Context(), t).Hold
		b.use(t, 7, of("200"))
		one.End(says("25"))
		synctest.Wait()
		if len(s.corrections) != 1 || s.corrections[0].Actual != 25 || s.corrections[0].Charge.Part.Capacity != 200 || s.corrections[0].Charge.Revision != 7 {
			t.Errorf("corrected by %+v, want the numbers of revision 7", s.corrections)
		}
		b.use(t, 8, rule("other", "region", "closed", ""))
		two.End(says("25"))
		three.End(says("5"))
		synctest.Wait()
		if len(s.corrections) != 2 || s.corrections[1].Actual != 5 {
			t.Errorf("%+v, want what is given back only", s.corrections)
		}
		stop()
	})
}

// While another gateway has a newer document already, a correction waits for it.
func TestA3_CorrectionByAnOlderDocument(t *testing.T) {
	const costs = "  - {name: p, key: [user], algorithm: fixed_window, limit: 100, window: 1h, scope: region, on_failure: closed, cost: {default: 10, actual: X-Cost}}\n"
	synctest.Test(t, func(t *testing.T) {
		s := &older{}
		b, stop := slotBenchWith(t, s, func(_ int, r bucket.Request) (bucket.Verdict, error) { return slotVerdict(r), nil }, costs)
		b.decide(t.Context(), t).Hold.End(admit.Ended{Status: 200, Said: func(string) []string { return []string{"25"} }})
		pass(100 * time.Millisecond)
		synctest.Wait()
		b.use(t, 7, costs)
		pass(500 * time.Millisecond)
		synctest.Wait()
		if len(s.corrections) != 1 || s.corrections[0].Charge.Revision != 7 {
			t.Errorf("corrected %+v, want once by revision 7", s.corrections)
		}
		stop()
	})
}

// older is a settler whose store works by revision 7.
type older struct{ settler }

func (s *older) Correct(ctx context.Context, corrections []bucket.Correction) error {
	if corrections[0].Charge.Revision < 7 {
		return errors.Join(bucket.ErrCouldNotAsk, bucket.ErrOlderRevision)
	}
	return s.settler.Correct(ctx, corrections)
}
