package buckettest

import (
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/limit/limittest"
)

var queueScenarios = map[string]func(*fixture){
	"queue: turns come in order, a bounded number of them":             (*fixture).turns,
	"queue: who goes away frees the last place":                        (*fixture).lastPlace,
	"queue: a place in the middle frees no more than keeps the bound":  (*fixture).middlePlace,
	"queue: a reload changes no turn, and admits no more":              (*fixture).queueReload,
	"promise 1: what a queue lets through, at its turns, is C + R·T":   (*fixture).queueBound,
	"queue: the time to full includes the queue, and so does its life": (*fixture).queueLife,
}

// leaky is a bucket of n tokens filling at one a second, in which who comes waits up to so long.
func (f *fixture) leaky(n limit.Tokens, delay time.Duration) bucket.Charge {
	c := f.region(n, 1)
	c.MaxDelay = delay
	return c
}

func (f *fixture) turns() {
	if f.SetTime == nil {
		return
	}
	c := f.leaky(1, 3*time.Second)
	for i := range limit.Micros(4) {
		v := f.charge(c)
		equal(f, "outcome", v.Outcome, bucket.Admitted)
		equal(f, "delay", v.Delay, i*limit.MicrosPerSecond)
	}
	v := f.charge(c)
	equal(f, "outcome of the fifth", v.Outcome, bucket.Denied)
	equal(f, "its retry", v.States[0].RetryIn, limit.MicrosPerSecond)
	equal(f, "remaining", v.States[0].Remaining, 0)
	f.wait(time.Second)
	equal(f, "delay after that", f.charge(c).Delay, 3*limit.MicrosPerSecond)
	other := f.counted(limit.FixedWindow, 1, time.Hour)
	f.charge(other)
	f.wait(time.Second)
	equal(f, "outcome with another that denies", f.charge(c, other).Outcome, bucket.Denied)
	equal(f, "delay, the denied one having taken no place", f.charge(c).Delay, 3*limit.MicrosPerSecond)
}

func (f *fixture) lastPlace() {
	if f.SetTime == nil {
		return
	}
	c := f.leaky(1, 3*time.Second)
	var all []bucket.Receipt
	for range 4 {
		all = append(all, f.charge(c).Receipts[0])
	}
	for i := 3; i > 0; i-- { // one after the other, from the end
		equal(f, "credited", f.back(all[i], 1).Part.Whole(), 1)
	}
	for i := range limit.Micros(3) {
		equal(f, "delay", f.charge(c).Delay, (i+1)*limit.MicrosPerSecond)
	}
	equal(f, "outcome", f.charge(c).Outcome, bucket.Denied)
}

func (f *fixture) middlePlace() {
	if f.SetTime == nil {
		return
	}
	c := f.leaky(1, 3*time.Second)
	all := []bucket.Receipt{f.charge(c).Receipts[0], f.charge(c).Receipts[0], f.charge(c).Receipts[0]}
	equal(f, "credited, those behind it having their turns", f.back(all[1], 1), bucket.Credited{})
	equal(f, "delay of the next", f.charge(c).Delay, 3*limit.MicrosPerSecond)

	c = f.leaky(3, 3*time.Second)
	all = nil
	for range 6 {
		all = append(all, f.charge(c).Receipts[0])
	}
	equal(f, "credited, with room for two", f.back(all[3], 1).Part.Whole(), 1)
	equal(f, "credited, with room for one", f.back(all[4], 1).Part.Whole(), 1)
	v := f.charge(c)
	equal(f, "delay in a freed place", v.Delay, 2*limit.MicrosPerSecond)
}

func (f *fixture) queueReload() {
	if f.SetTime == nil {
		return
	}
	c := f.leaky(2, 3*time.Second)
	equal(f, "admitted", f.charged(10, c), 5)
	equal(f, "admitted of the same", f.charged(10, reload(c, 2)), 0)
	equal(f, "admitted of one more", f.charged(10, reload(reload(c, 2), 3)), 1)
	c = reload(reload(reload(c, 2), 3), 1)
	equal(f, "admitted of two fewer", f.charged(10, c), 0)
	f.wait(2 * time.Second)
	equal(f, "admitted when those have passed", f.charged(10, c), 0)
	f.wait(time.Second)
	equal(f, "admitted after them", f.charged(10, c), 1)
}

// queueBound: random arrivals, some of whom go away before their turn; those who went on did at their turns.
func (f *fixture) queueBound() {
	if f.SetTime == nil {
		return
	}
	random := newRandom()
	for range 12 {
		c := f.leaky(limit.Tokens(1+random.IntN(4)), time.Duration(random.IntN(5))*time.Second)
		waiting := map[int]bucket.Receipt{}
		var went []limittest.Taken
		for i := range 40 {
			c.Cost = limit.Tokens(1 + random.IntN(int(c.Part.Capacity)))
			now := limit.Micros(f.at.UnixMicro())
			for j, r := range waiting {
				if r.Turn <= now {
					delete(waiting, j)
				} else if random.IntN(4) == 0 {
					f.back(r, r.FromPart)
					delete(waiting, j)
					went[j].Cost = 0
				}
			}
			if v := f.charge(c); v.Outcome == bucket.Admitted {
				if v.Delay > 0 {
					waiting[len(went)] = v.Receipts[0]
				}
				went = append(went, limittest.Taken{At: now + v.Delay, Cost: c.Cost})
			}
			if i%3 == 0 {
				f.wait(time.Duration(random.IntN(2_000_000)) * time.Microsecond)
			}
		}
		if over := limittest.Excess(went, c.Part); over > 0 {
			f.Fatalf("%d µt more than a bucket of %s lets through", over, c.Part)
		}
	}
}

func (f *fixture) queueLife() {
	c := f.leaky(10, 100*time.Second)
	equal(f, "admitted", f.charged(110, c), 110)
	life, err := f.raw.PTTL(f.ctx(), recordOf(c.Ref)).Result()
	f.must(err)
	if life < 215*time.Second || life > 221*time.Second {
		f.Fatalf("lives %s, want twice the 110 s until it is full", life)
	}
}
