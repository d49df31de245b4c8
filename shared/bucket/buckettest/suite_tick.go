package buckettest

import (
	"errors"
	"fmt"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// setTick alters the shard's tick, as a step of the clock the other way would.
func (f *fixture) setTick(ref bucket.Ref, by time.Duration) {
	f.Helper()
	f.still.Store(true)
	f.must(f.raw.HSet(f.ctx(), shardOf(ref), "tick", f.now().Add(by).UnixMicro()).Err())
}

// couldNotAsk fails unless c cannot be asked about.
func (f *fixture) couldNotAsk(c bucket.Charge) {
	f.Helper()
	if v, err := f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{c}}); !errors.Is(err, bucket.ErrCouldNotAsk) {
		f.Fatalf("take = %+v, %v, want could not ask", v, err)
	}
}

func (f *fixture) noTick() {
	c := f.region(10, 0)
	leased := f.global(100)
	leased.Shard = c.Shard
	asked := f.lease(leased, 5)
	f.take(c)
	for what, by := range map[string]time.Duration{"behind the clock": -2100 * time.Millisecond, "ahead of the clock": time.Minute} {
		f.setTick(c.Ref, by)
		f.couldNotAsk(c)
		if _, err := f.Store.Views(f.ctx(), []bucket.Ref{leased.Ref}); !errors.Is(err, bucket.ErrCouldNotAsk) {
			f.Fatalf("view with the tick %s: %v, want could not ask", what, err)
		}
		if _, err := f.Store.Fill(f.ctx(), []bucket.Grant{answer(asked, 5)}); !errors.Is(err, bucket.ErrCouldNotAsk) {
			f.Fatalf("fill with the tick %s: %v, want could not ask", what, err)
		}
	}
	f.setTick(c.Ref, -1500*time.Millisecond)
	equal(f, "outcome within 2 s of the tick", f.take(c).Outcome, bucket.Admitted)
	equal(f, "left", f.levelOf(c), 8)
}

// recover lets the store's own ticks run until c can be asked about, within 3 s and without a hand.
func (f *fixture) recover(c bucket.Charge) {
	f.Helper()
	begun := time.Now()
	c.Cost = 0
	f.must(Poll(f.ctx(), 10*time.Second, func() error {
		if err := f.Store.Tick(f.ctx(), 32); err != nil && !errors.Is(err, bucket.ErrCouldNotAsk) {
			return fmt.Errorf("tick: %w", err)
		}
		_, err := f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{c}})
		return err
	}))
	if took := time.Since(begun); took > 3*time.Second {
		f.Fatalf("recovered after %s, want at most 3 s", took)
	}
}

func (f *fixture) reason(ref bucket.Ref) string {
	f.Helper()
	reason, err := f.raw.HGet(f.ctx(), shardOf(ref), "reason").Result()
	f.must(err)
	return reason
}

// clockSteps: neither the hour nor the expiry of records in it brings a token; a store whose clock runs by itself is told
// another tick. (After a step forth, what the store does not know is not full: it may have been spent before.)
func (f *fixture) clockSteps() {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		c := f.region(10, 1)
		begun := f.now()
		equal(f, "admitted", f.admitted(10, c), 10)
		f.must(Poll(f.ctx(), 5*time.Second, func() error { return f.Store.Tick(f.ctx(), 32) })) // reads a clock that is vouched for
		if f.SetTime != nil {
			f.step(step)
			begun = begun.Add(step)
		} else {
			f.setTick(c.Ref, -step)
		}
		f.couldNotAsk(c)
		f.recover(c)
		if f.SetTime != nil {
			equal(f, "reason of the epoch", f.reason(c.Ref), "clock")
		}
		got := f.admitted(20, c)
		if most := 2 + int(f.now().Sub(begun).Seconds()); got > most {
			f.Fatalf("admitted %d after a step by %s, want at most %d", got, step, most)
		}
		if f.SetTime != nil {
			f.tick()
			f.wait(time.Second)
			if got := f.admitted(20, c); got != 1 {
				f.Fatalf("admitted %d in the second after a step by %s, want 1", got, step)
			}
		}
	}
}

// clockEpoch: a lone gateway that comes back after 10 s finds every balance, and nothing of the gap.
func (f *fixture) clockEpoch() {
	c, leased := f.region(20, 1), f.global(100)
	leased.Shard = c.Shard
	leased.Part = limit.Budget{Capacity: 10, Rate: 1000} // full in 10,000 s
	f.age(leased.Ref, 10*time.Hour)
	equal(f, "admitted", f.admitted(15, c), 15)
	leased.Cost = 4
	f.take(leased)
	f.lease(leased, 50)
	old := f.view(leased.Ref).Epoch
	f.wait(2 * time.Second) // these count: the clock was watched
	if f.SetTime != nil {
		f.step(10 * time.Second)
	} else {
		f.setTick(c.Ref, time.Minute)
	}
	f.couldNotAsk(c)
	f.recover(c)
	equal(f, "reason", f.reason(c.Ref), "clock")
	got := f.levelOf(c)
	if got < 5 || got > 10 || (f.SetTime != nil && got != 7) {
		f.Fatalf("left = %d, want the 5 that there were and 2 for the 2 s before the gap", got)
	}
	if f.view(leased.Ref).Epoch == old {
		f.Fatal("no new epoch has begun")
	}
	s := f.take(leased).States[0]
	equal(f, "left of the old lease", s.Left, 0)
	equal(f, "level of the allotment, of 10 less 4 and 4", s.Level.Whole(), 2)
	unknown := leased
	unknown.Key[15]++
	unknown.Cost = 1
	if f.SetTime != nil { // a gap too short for any record to have expired before it was full
		equal(f, "admitted of an unknown allotment", f.admitted(12, unknown), 10)
	}
	equal(f, "admitted of an unknown bucket of scope region", f.admitted(22, f.region(20, 0)), 20)
}

func (f *fixture) onLossEmpty() {
	full, empty := f.region(10, 10), f.region(10, 10)
	empty.Shard, empty.OnLossEmpty = full.Shard, true
	f.vouch(full.Ref)
	equal(f, "admitted before the loss", f.admitted(4, empty), 4)
	equal(f, "admitted before the loss", f.admitted(4, full), 4)
	f.must(f.raw.flushAll(f.ctx()))
	equal(f, "admitted after it, on_loss full", f.admitted(10, full), 10)
	equal(f, "admitted after it, on_loss empty", f.admitted(10, empty), 0)
	f.age(empty.Ref, bucket.DemotedFor)
	other := empty
	other.Key[15]++
	if got := f.admitted(10, other); got > 6 {
		f.Fatalf("admitted %d once demoted_for had passed, want the refill since", got)
	}
	f.age(empty.Ref, time.Second)
	other.Key[15]++
	equal(f, "admitted when it had refilled", f.admitted(12, other), 10)
}
