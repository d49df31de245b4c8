package buckettest

import (
	"errors"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// reload returns c under the next revision of the policy document, with another capacity.
func reload(c bucket.Charge, capacity limit.Tokens) bucket.Charge {
	c.Revision++
	c.Part.Capacity = capacity
	return c
}

// levelOf peeks at what c's bucket holds.
func (f *fixture) levelOf(c bucket.Charge) limit.Tokens {
	f.Helper()
	c.Cost = 0
	return f.take(c).States[0].Level.Whole()
}

// allotmentGrows: a raise of a part gives room and no tokens, whatever was idle before; a smaller part cuts.
func (f *fixture) allotmentGrows() {
	c := f.global(100)
	c.Part = limit.Budget{Capacity: 10}
	f.vouch(c.Ref)
	equal(f, "admitted", f.admitted(12, c), 10)
	f.must(f.raw.HIncrBy(f.ctx(), recordOf(c.Ref), "mark", -time.Hour.Microseconds()).Err())
	c.Part = limit.Budget{Capacity: 100, Rate: 1000} // a thousandth of a token a second
	equal(f, "admitted after the raise", f.admitted(3, c), 0)
	equal(f, "room", f.field(recordOf(c.Ref), "capacity"), 100)
	unknown := c
	unknown.Key[15]++
	equal(f, "admitted of an unknown one", f.admitted(3, unknown), 0)

	c = f.global(100)
	c.Part = limit.Budget{Capacity: 100}
	f.vouch(c.Ref)
	equal(f, "admitted", f.admitted(20, c), 20)
	equal(f, "admitted after the cut", f.admitted(20, reload(c, 7)), 7)
	c = reload(reload(c, 7), 100)
	equal(f, "admitted after the cut was taken back", f.admitted(20, c), 0)
}

// vouch makes the store know that nothing was spent in ref's shard, ever.
func (f *fixture) vouch(ref bucket.Ref) {
	f.Helper()
	f.view(ref) // begins the epoch where there is none
	f.must(f.raw.HSet(f.ctx(), shardOf(ref), "known", "0").Err())
}

func (f *fixture) spentStaysSpent() {
	c := f.region(100, 0)
	equal(f, "admitted", f.admitted(60, c), 60)
	equal(f, "left, the document unchanged", f.levelOf(reload(c, 100)), 40)
	raised := reload(reload(c, 100), 200)
	equal(f, "left of 200", f.levelOf(raised), 140)
	cut := reload(raised, 50)
	v := f.take(cut)
	equal(f, "outcome of a take of 50", v.Outcome, bucket.Denied)
	equal(f, "debt", v.States[0].Level.Whole(), -10)
	equal(f, "left of 100 again", f.levelOf(reload(cut, 100)), 40)
	// Documents that nobody numbered, as a gateway's own file is: whoever comes last is right.
	c = f.region(100, 0)
	c.Revision = 0
	equal(f, "admitted", f.admitted(60, c), 60)
	c.Part.Capacity = 200
	equal(f, "left of 200", f.levelOf(c), 140)
	c.Part.Capacity = 100
	equal(f, "left of 100", f.levelOf(c), 40)
	// A debt refills first.
	c = f.region(4, 1)
	equal(f, "admitted", f.admitted(4, c), 4)
	cut = reload(c, 3)
	v = f.take(cut)
	if retry := v.States[0].RetryIn; v.Outcome != bucket.Denied || retry <= 1_000_000 || retry > 2_000_000 {
		f.Fatalf("a take in debt = %+v, want it denied for 2 s", v)
	}
	f.wait(1100 * time.Millisecond)
	equal(f, "admitted while the debt is paid", f.admitted(3, cut), 0)
	f.wait(time.Second)
	equal(f, "admitted after the debt was paid", f.admitted(3, cut), 1)
	// 0 denies all, and gives back what it took.
	c = f.region(5, 0)
	f.take(c)
	none := reload(c, 0)
	equal(f, "outcome of a limit of 0", f.take(none).Outcome, bucket.Denied)
	equal(f, "left after it", f.levelOf(reload(none, 5)), 4)
}

func (f *fixture) reloads() {
	c := f.region(100, 0)
	total := 0
	for i := range 100 {
		c = reload(c, limit.Tokens(100+100*(i%2)))
		total += f.admitted(1, c)
	}
	for range 3 {
		c = reload(c, 100)
		total += f.admitted(100, c)
	}
	equal(f, "admitted over 100 reloads", total, 100)
	// With a refill: no more than the larger of the two brings.
	c = f.region(10, 10)
	begun := f.now()
	total = 0
	for i := range 100 {
		f.wait(10 * time.Millisecond)
		c = reload(c, 10)
		c.Part.Rate = limit.Rate((5 + 5*(i%2)) * limit.MicroPerToken)
		total += f.admitted(20, c)
	}
	if most := 10 + int(10*f.now().Sub(begun).Seconds()); total < 10 || total > most {
		f.Fatalf("admitted %d over 100 reloads, want 10 to %d", total, most)
	}
}

func (f *fixture) olderRevision() {
	c := f.region(10, 0)
	f.admitted(4, c)
	raised := reload(c, 20)
	equal(f, "left of 20", f.levelOf(raised), 16)
	other := f.region(5, 0)
	_, err := f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{other, c}})
	if !errors.Is(err, bucket.ErrOlderRevision) || !errors.Is(err, bucket.ErrCouldNotAsk) {
		f.Fatalf("take with an older document: %v, want could not ask", err)
	}
	equal(f, "left of the other policy", f.levelOf(other), 5)
	equal(f, "left of 20 after that", f.levelOf(raised), 16)
	// A bucket that nobody asked for since, and one that is new, are of the newer document too.
	c.Key[15]++
	if _, err = f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{c}}); !errors.Is(err, bucket.ErrOlderRevision) {
		f.Fatalf("take of another key: %v, want could not ask", err)
	}
	// Numbers that did not change since are the same under any revision.
	same := raised
	same.Revision += 5
	f.take(same)
	equal(f, "outcome under an older revision with the same numbers", f.take(raised).Outcome, bucket.Admitted)
}

// anyOrder: two gateways load three documents, each in its own time, and spend as much as one would.
func (f *fixture) anyOrder() {
	one := f.region(10, 0)
	two := one
	total := 0
	spend := func(c bucket.Charge) {
		v, err := f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{c}})
		if err == nil && v.Outcome == bucket.Admitted {
			total++
		} else if err != nil && !errors.Is(err, bucket.ErrOlderRevision) {
			f.Fatal(err)
		}
	}
	for _, capacity := range []limit.Tokens{30, 20} {
		for range 4 {
			spend(one)
			spend(two)
		}
		one = reload(one, capacity)
		for range 3 {
			spend(one)
			spend(two)
		}
		two = reload(two, capacity)
	}
	for range 30 {
		spend(one)
		spend(two)
	}
	if total != 20 {
		f.Fatalf("admitted %d in all, want the last document's 20", total)
	}
}

// oneChangeBehind: what was idle before a change refills with the smaller rate, whenever it is asked for.
func (f *fixture) oneChangeBehind() {
	if f.SetTime == nil {
		return
	}
	for name, rates := range map[string][2]int64{"raised": {1, 5}, "lowered": {5, 1}} {
		c := f.region(100, rates[0])
		asked := c
		asked.Key[15]++ // it is this bucket's take that records the change
		equal(f, "admitted", f.admitted(100, c), 100)
		f.wait(10 * time.Second)
		c, asked = reload(c, 100), reload(asked, 100)
		c.Part.Rate = limit.Rate(rates[1] * limit.MicroPerToken)
		asked.Part.Rate = c.Part.Rate
		f.take(asked)
		f.wait(10 * time.Second)
		equal(f, "admitted after a rate "+name, f.admitted(100, c), 10+10*int(rates[1]))
	}
}

func (f *fixture) changesBehind() {
	if f.SetTime == nil {
		return
	}
	c := f.region(100, 1)
	asked := c
	asked.Key[15]++
	equal(f, "admitted", f.admitted(100, c), 100)
	for range 2 {
		f.wait(10 * time.Second)
		c, asked = reload(c, c.Part.Capacity+10), reload(asked, c.Part.Capacity+10)
		f.take(asked)
	}
	f.wait(5 * time.Second)
	equal(f, "admitted: two raises by 10, and 5 s since the last", f.admitted(100, c), 25)
}

// longerToFull: a record that expired under the old numbers may have been spent when the new ones came.
func (f *fixture) longerToFull() {
	if f.SetTime == nil {
		return
	}
	c := f.region(10, 10) // full in a second, kept for a minute
	asked := c
	asked.Key[15]++
	equal(f, "admitted", f.admitted(10, c), 10)
	c, asked = reload(c, 10), reload(asked, 10)
	c.Part.Rate = limit.MicroPerToken / 100
	asked.Part.Rate = c.Part.Rate
	equal(f, "admitted of an unknown one, just after", f.admitted(1, asked), 0)
	f.wait(101 * time.Second)
	equal(f, "admitted after 101 s: one token in 100 s", f.admitted(10, c), 1)
	fresh := c
	fresh.Key[15] = 77
	f.wait(900 * time.Second)
	equal(f, "admitted of an unknown one when it is surely full", f.admitted(20, fresh), 10)
}

func (f *fixture) tiers() {
	free := f.region(5, 0)
	premium := free
	premium.Variant, premium.Part.Capacity = "tier:premium", 20
	total := 0
	for range 10 {
		total += f.admitted(3, free) + f.admitted(3, premium)
	}
	equal(f, "admitted in turn", total, 20)
	equal(f, "level of the smaller", f.levelOf(free), -15)
}
