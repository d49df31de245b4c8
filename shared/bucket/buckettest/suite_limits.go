package buckettest

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// limits are the scenarios of all algorithms. Those of one algorithm are in its own file.
var limits = map[string]func(*fixture){
	"limits: the same calls, the same answers":                          (*fixture).sameAnswers,
	"limits: denied by one, charged by none, whatever they count by":    (*fixture).layers,
	"case 10: the narrow one's denials leave the broad one":             (*fixture).narrowAndBroad,
	"case 11: one back after the last, and twenty":                      (*fixture).oneBack,
	"limits: a cost corrected downwards and upwards":                    (*fixture).corrects,
	"A3: 60 of 100 spent: 140 of 200, 0 of 50, 40 of 100 again":         (*fixture).everyLimitReloads,
	"A3: an older revision could not ask, whatever it counts by":        (*fixture).everyLimitOlder,
	"A3: another window begins as after a loss":                         (*fixture).otherWindow,
	"E3: on_loss, for every limit":                                      (*fixture).everyLimitLost,
	"E3: a new epoch keeps what is known, for every limit":              (*fixture).everyLimitEpoch,
	"E4: a record that expired is one that is not there":                (*fixture).everyLimitExpires,
	"E5: what names another epoch is not credited":                      (*fixture).everyLimitOldReceipt,
	"identities are stored sealed only, for every limit":                (*fixture).everyLimitSealed,
	"limits: numbers that differ within a revision: who comes last":     (*fixture).everyLimitLast,
	"limits: charges after a scenario of all leave no key without life": (*fixture).everyLimitLives,
}

// kinds are a limit of n by each algorithm, with an hour to be full again.
func (f *fixture) kinds(n limit.Tokens) map[string]bucket.Charge {
	f.Helper()
	all := map[string]bucket.Charge{}
	for _, a := range limit.Algorithms() {
		all[a.String()] = f.counted(a, n, time.Hour)
	}
	leaky := f.counted(limit.TokenBucket, n, time.Hour)
	leaky.MaxDelay = time.Microsecond // a queue without a place
	all["leaky bucket"] = leaky
	return all
}

// counted is a charge of cost 1 of a limit of n in so long.
func (f *fixture) counted(a limit.Algorithm, n limit.Tokens, length time.Duration) bucket.Charge {
	f.Helper()
	c := f.region(n, 0)
	c.Algorithm = a
	switch {
	case a == limit.TokenBucket:
		c.Part.Rate = limit.Rate(int64(n) * limit.MicroPerToken * int64(time.Second) / int64(length))
	case a.Windowed():
		window, err := limit.Every(length)
		f.must(err)
		c.Window = window
	}
	return c
}

// charge takes charges by the fixture's holder, and may give back for a minute.
func (f *fixture) charge(charges ...bucket.Charge) bucket.Verdict {
	f.Helper()
	v, err := f.Store.Take(f.ctx(), bucket.Request{Charges: charges, GiveBackFor: time.Minute, Holder: f.holder()})
	f.must(err)
	return v
}

// holder is the fixture's holder of slots, which it holds at first, and in between whenever it is asked for.
func (f *fixture) holder() bucket.Holder {
	f.Helper()
	if f.held != 0 {
		gone, err := f.Store.Renew(f.ctx(), f.held, 32)
		f.must(err)
		if len(gone) == 0 {
			return f.held
		}
	}
	f.held = bucket.NewHolder()
	f.must(f.Store.Hold(f.ctx(), f.held, 32))
	return f.held
}

// remains peeks at what c's limit has left.
func (f *fixture) remains(c bucket.Charge) limit.Tokens {
	f.Helper()
	c.Cost = 0
	return f.charge(c).States[0].Remaining
}

// charged counts how many of n are admitted.
func (f *fixture) charged(n int, charges ...bucket.Charge) (count int) {
	f.Helper()
	for range n {
		if f.charge(charges...).Outcome == bucket.Admitted {
			count++
		}
	}
	return count
}

func (f *fixture) sameAnswers() {
	for name, c := range f.kinds(3) {
		slots := c.Algorithm == limit.Concurrency
		v := f.charge(c)
		equal(f, name+": outcome", v.Outcome, bucket.Admitted)
		s := v.States[0]
		equal(f, name+": remaining", s.Remaining, 2)
		if s.Lacking || s.RetryIn != 0 || s.Delay != 0 || (s.Reset <= 0) != slots || s.Reset > 2*limit.Micros(time.Hour.Microseconds()) {
			f.Fatalf("%s: first state = %+v", name, s)
		}
		equal(f, name+": charged", f.charged(3, c), 2)
		s = f.charge(c).States[0]
		if !s.Lacking || s.Remaining != 0 || (s.RetryIn <= 0) != slots || (s.Reset <= 0) != slots || s.RetryIn > s.Reset && !slots {
			f.Fatalf("%s: denied state = %+v", name, s)
		}
		equal(f, name+": peeks", f.remains(c), 0)
		large := c
		large.Cost = 4
		equal(f, name+": retry of more than the limit", f.charge(large).States[0].RetryIn, limit.Never)
		free := c
		free.Cost = 0
		equal(f, name+": outcome of cost 0", f.charge(free).Outcome, bucket.Admitted)
		none := reload(c, 0)
		none.Key[14]++
		none.Policy += "-of-0"
		v = f.charge(none)
		equal(f, name+": outcome of 0", v.Outcome, bucket.Denied)
		equal(f, name+": retry of 0", v.States[0].RetryIn, limit.Never)
		if f.SetTime != nil && !slots {
			f.wait(time.Duration(s.RetryIn-1) * time.Microsecond)
			equal(f, name+": outcome a moment too early", f.charge(c).Outcome, bucket.Denied)
			f.wait(time.Microsecond)
			equal(f, name+": outcome after the retry", f.charge(c).Outcome, bucket.Admitted)
			f.wait(time.Duration(f.charge(c).States[0].Reset) * time.Microsecond)
			equal(f, name+": remaining after the reset", f.remains(c), 3)
		}
	}
}

// layers takes of all at once: whichever lacks, nothing is charged, and the verdict says which.
func (f *fixture) layers() {
	kinds := f.kinds(2)
	names := slices.Sorted(maps.Keys(kinds))
	all := make([]bucket.Charge, len(names))
	for i, name := range names {
		all[i] = kinds[name]
	}
	equal(f, "charged", f.charged(1, all...), 1)
	for i, name := range names {
		equal(f, name+" alone", f.charged(2, all[i]), 1)
		v := f.charge(all...)
		equal(f, "outcome", v.Outcome, bucket.Denied)
		for j, s := range v.States {
			equal(f, names[j]+" lacks, "+name+" being out", s.Lacking, j == i)
			equal(f, names[j]+" remaining", s.Remaining, map[bool]limit.Tokens{true: 0, false: 1}[j == i])
		}
		all[i] = reload(all[i], 3) // one more
	}
	equal(f, "charged", f.charged(2, all...), 1)
}

func (f *fixture) narrowAndBroad() {
	org := f.counted(limit.FixedWindow, 10, time.Hour)
	user1, user2 := f.counted(limit.SlidingWindowLog, 5, time.Hour), f.counted(limit.SlidingWindowLog, 5, time.Hour)
	equal(f, "user 1", f.charged(8, org, user1), 5)
	equal(f, "user 2", f.charged(5, org, user2), 5)
	equal(f, "the organisation", f.remains(org), 0)
}

func (f *fixture) oneBack() {
	for name, c := range f.kinds(3) {
		var last bucket.Receipt
		for range 3 {
			last = f.charge(c).Receipts[0]
		}
		f.back(last, 1)
		equal(f, name+": after one came back", f.charged(3, c), 1)
		if c.Algorithm == limit.Concurrency {
			equal(f, name+": a slot is released once", f.back(last, 1), bucket.Credited{})
			equal(f, name+": after it came back twice", f.charged(3, c), 0)
			continue
		}
		many := c
		many.Key[14]++
		many.Policy += "-of-30"
		many.Part.Capacity, many.Cost = 30, 20
		r := f.charge(many).Receipts[0]
		f.back(r, 20)
		f.back(r, 20)
		if got := f.remains(many); got != 30 {
			f.Fatalf("%s: %d remain of 30 after 20 came back twice", name, got)
		}
		if _, err := f.Store.GiveBack(f.ctx(), []bucket.Back{{Receipt: r, Tokens: 21}}); err == nil {
			f.Fatalf("%s: 21 of 20 came back", name)
		}
	}
}

func (f *fixture) corrects() {
	for name, c := range f.kinds(100) {
		c.Cost = 10
		correct := func(r bucket.Receipt, actual limit.Tokens) error {
			return f.Store.Correct(f.ctx(), []bucket.Correction{{Charge: c, Receipt: r, Actual: actual}})
		}
		r := f.charge(c).Receipts[0]
		if c.Algorithm == limit.Concurrency {
			if err := correct(r, 3); err == nil {
				f.Fatal("slots were corrected")
			}
			continue
		}
		f.must(correct(r, 3))
		equal(f, name+": 3, not 10", f.remains(c), 97)
		f.must(correct(f.charge(c).Receipts[0], 10))
		equal(f, name+": 10 it was", f.remains(c), 87)
		f.must(correct(f.charge(c).Receipts[0], 50))
		equal(f, name+": 50, not 10", f.remains(c), 37)
		f.must(correct(f.charge(c).Receipts[0], 1000))
		s := f.charge(c).States[0]
		equal(f, name+": in debt", s.Remaining, 0)
		if !s.Lacking || s.RetryIn <= 0 || s.RetryIn == limit.Never {
			f.Fatalf("%s: state in debt = %+v", name, s)
		}
		if f.SetTime != nil {
			f.wait(time.Duration(s.RetryIn) * time.Microsecond)
			equal(f, name+": after the debt", f.charge(c).Outcome, bucket.Admitted)
		}
		if err := correct(r, -1); !errors.Is(err, bucket.ErrCouldNotAsk) {
			f.Fatalf("%s: a negative cost: %v", name, err)
		}
	}
}

func (f *fixture) everyLimitReloads() {
	for name, c := range f.kinds(100) {
		c.Cost = 60
		f.charge(c)
		equal(f, name+": of 200", f.remains(reload(c, 200)), 140)
		equal(f, name+": of 50", f.remains(reload(reload(c, 0), 50)), 0)
		again := reload(reload(reload(c, 0), 0), 100)
		equal(f, name+": of 100 again", f.remains(again), 40)
		again.Cost = 40
		equal(f, name+": charged", f.charged(2, again), 1)
	}
}

func (f *fixture) everyLimitOlder() {
	for name, c := range f.kinds(100) {
		f.charge(reload(c, 50))
		_, err := f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{c}, Holder: f.holder()})
		if !errors.Is(err, bucket.ErrOlderRevision) {
			f.Fatalf("%s: %v", name, err)
		}
	}
}

func (f *fixture) everyLimitLast() {
	for name, c := range f.kinds(100) {
		c.Cost = 30
		f.charge(c)
		c.Part.Capacity = 40
		equal(f, name+": of 40", f.remains(c), 10)
		c.Part.Capacity = 100
		equal(f, name+": of 100", f.remains(c), 70)
	}
}

func (f *fixture) otherWindow() {
	for _, empty := range []bool{false, true} {
		for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowLog, limit.SlidingWindowCounter} {
			c := f.counted(a, 10, time.Hour)
			c.OnLossEmpty = empty
			f.vouch(c.Ref)
			equal(f, a.String()+": charged", f.charged(6, c), 6)
			c.Window = f.counted(a, 10, 2*time.Hour).Window
			c.Revision++
			want := limit.Tokens(10)
			if empty {
				want = 0
			}
			equal(f, a.String()+": left of another window", f.remains(c), want)
			if f.SetTime != nil {
				f.wait(4 * time.Hour)
				equal(f, a.String()+": left after that", f.remains(c), 10)
			}
		}
	}
}
