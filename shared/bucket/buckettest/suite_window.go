package buckettest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

var windowScenarios = map[string]func(*fixture){
	"golden: previous 80, current 20, 15 s into a minute":              (*fixture).goldenCounter,
	"golden: 60 + 60 and 100 + 100 around a window's edge":             (*fixture).windowEdge,
	"log: an entry exactly W old is out":                               (*fixture).logEdge,
	"log: heavy costs are exact":                                       (*fixture).logHeavy,
	"log: no more is kept than twice the limit":                        (*fixture).logBounded,
	"case 18: a day's quota resets once, at the zone's midnight":       (*fixture).midnight,
	"case 4: two gateways whose clocks differ by hours: one window":    (*fixture).oneWindow,
	"windows: a clock that goes back opens no older window":            (*fixture).windowBack,
	"windows: the largest numbers":                                     (*fixture).largestWindows,
	"windows: a give-back of a window that has ended is not credited":  (*fixture).windowEnded,
	"E3: a clock that steps back over a window's edge adds nothing":    (*fixture).edgeBack,
	"E3: on_loss empty: nothing in a window begun before, then all":    (*fixture).windowLost,
	"windows: a window that a reload changes the limit of is the same": (*fixture).windowReload,
}

func (f *fixture) goldenCounter() {
	if f.SetTime == nil {
		return
	}
	f.toEdge(time.Minute)
	for most, want := range map[limit.Tokens]int{80: 0, 81: 1} {
		c := f.counted(limit.SlidingWindowCounter, 1000, time.Minute)
		equal(f, "previous", f.charged(80, c), 80)
		f.wait(time.Minute)
		equal(f, "current", f.charged(20, c), 20)
		f.wait(15 * time.Second)
		equal(f, "remaining", f.remains(c), 1000-80)
		equal(f, fmt.Sprintf("more of %d", most), f.charged(5, reload(c, most)), want)
		f.toEdge(time.Minute)
	}
}

// toEdge lets time pass until a multiple of length.
func (f *fixture) toEdge(length time.Duration) {
	f.Helper()
	f.wait(length - time.Duration(f.at.UnixNano())%length)
}

// windowEdge: half before and half after the edge, within 2 s, in the terms of each algorithm's promise.
func (f *fixture) windowEdge() {
	if f.SetTime == nil {
		return
	}
	for _, n := range []int{6, 10} {
		for a, want := range map[limit.Algorithm]int{
			limit.FixedWindow: 2 * n, limit.SlidingWindowLog: 10, limit.SlidingWindowCounter: 10, limit.TokenBucket: 10,
		} {
			c := f.counted(a, 100, time.Minute)
			c.Cost = 10
			f.toEdge(time.Minute)
			f.wait(59 * time.Second)
			got := f.charged(n, c)
			f.wait(2 * time.Second)
			got += f.charged(n, c)
			equal(f, fmt.Sprintf("%s: %d + %d in 2 s around the edge", a, 10*n, 10*n), 10*got, 10*want)
		}
	}
}

func (f *fixture) logEdge() {
	if f.SetTime == nil {
		return
	}
	c := f.counted(limit.SlidingWindowLog, 3, 7*time.Second)
	equal(f, "charged", f.charged(1, c), 1)
	f.wait(time.Second)
	equal(f, "charged", f.charged(3, c), 2)
	f.wait(6*time.Second - time.Microsecond)
	equal(f, "retry", f.charge(c).States[0].RetryIn, 1)
	f.wait(time.Microsecond)
	equal(f, "charged when one is exactly W old", f.charged(3, c), 1)
	f.wait(time.Second)
	equal(f, "charged when two more are", f.charged(3, c), 2)
}

func (f *fixture) logHeavy() {
	c := f.counted(limit.SlidingWindowLog, 10_000, time.Hour)
	var left limit.Tokens = 10_000
	for _, cost := range []limit.Tokens{1, 15, 16, 17, 255, 4096, 4097} {
		c.Cost = cost
		r := f.charge(c).Receipts[0]
		left -= cost
		equal(f, "left", f.remains(c), left)
		f.back(r, cost/2)
		left += cost / 2
		equal(f, "left with half of it back", f.remains(c), left)
	}
	c.Cost = left + 1
	equal(f, "outcome of one too many", f.charge(c).Outcome, bucket.Denied)
	c.Cost = left
	equal(f, "outcome", f.charge(c).Outcome, bucket.Admitted)
}

func (f *fixture) logBounded() {
	if f.SetTime == nil {
		return
	}
	c := f.counted(limit.SlidingWindowLog, 100, time.Second)
	entries := fmt.Sprintf("annona:1:{s%02d}:l:%s", c.Shard, c.Key)
	for range 2 {
		for range 100 {
			f.wait(9 * time.Millisecond)
			f.charge(c)
			if n, err := f.raw.ZCard(f.ctx(), entries).Result(); err != nil || n > 200 {
				f.Fatalf("%d entries of a limit of 100, %v", n, err)
			}
		}
		f.wait(700 * time.Millisecond)
	}
	f.wait(2 * time.Second)
	f.charge(c)
	if n, err := f.raw.ZCard(f.ctx(), entries).Result(); err != nil || n != 1 {
		f.Fatalf("%d entries when all others are out, %v", n, err)
	}
}

// midnight: 25 and 23 hours, in Rome, on the days on which clocks change.
func (f *fixture) midnight() {
	if f.SetTime == nil {
		return
	}
	rome, err := time.LoadLocation("Europe/Rome")
	f.must(err)
	for day, hours := range map[time.Time]int{
		time.Date(2026, 10, 25, 0, 0, 0, 0, rome): 25, time.Date(2027, 3, 28, 0, 0, 0, 0, rome): 23, time.Date(2027, 5, 1, 0, 0, 0, 0, rome): 24,
	} {
		c := f.counted(limit.FixedWindow, 2, time.Hour)
		c.Window = limit.Days(rome)
		f.at = day
		f.wait(0)
		f.must(f.raw.FlushAll(f.ctx()).Err())
		equal(f, "charged", f.charged(3, c), 2)
		resets := 0
		for range hours {
			f.wait(time.Hour)
			if f.charged(3, c) > 0 {
				resets++
			}
		}
		equal(f, fmt.Sprintf("resets within the %d hours of %s", hours, day.Format(time.DateOnly)), resets, 1)
	}
}

// oneWindow: the store's clock decides, however far the gateway's is away.
func (f *fixture) oneWindow() {
	c := f.counted(limit.FixedWindow, 4, time.Second)
	if f.SetTime != nil {
		for range 5 {
			f.toEdge(time.Second)
			f.wait(500 * time.Millisecond)
			equal(f, "charged", f.charged(6, c), 4)
		}
		return
	}
	c.Window = limit.Days(time.UTC)
	equal(f, "charged", f.charged(6, c), 4)
}

func (f *fixture) windowBack() {
	if f.SetTime == nil {
		return
	}
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowLog, limit.SlidingWindowCounter} {
		c := f.counted(a, 5, 10*time.Second)
		f.toEdge(10 * time.Second)
		total := f.charged(9, c)
		for range 3 {
			f.wait(-time.Second)
			total += f.charged(9, c)
			f.wait(time.Second)
			total += f.charged(9, c)
		}
		equal(f, a.String()+": charged over an edge that the clock crosses again and again", total, 5)
	}
}

func (f *fixture) largestWindows() {
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowCounter} {
		c := f.counted(a, limit.MaxWindowTokens, 31*24*time.Hour)
		c.Cost = limit.MaxWindowTokens - 1
		equal(f, "outcome", f.charge(c).Outcome, bucket.Admitted)
		equal(f, "remaining", f.remains(c), 1)
		c.Cost = 1
		equal(f, "charged", f.charged(2, c), 1)
		if f.SetTime == nil {
			continue
		}
		f.wait(31 * 24 * time.Hour)
		s := f.charge(c).States[0]
		if a == limit.FixedWindow {
			equal(f, "remaining in the next window", s.Remaining, limit.MaxWindowTokens-1)
			continue
		}
		into := limit.Micros(f.at.UnixMicro()) % c.Window.Length()
		want := max(0, limit.MaxWindowTokens-limit.Estimate(limit.MaxWindowTokens, 1, into, c.Window.Length()))
		equal(f, "remaining in the next window", s.Remaining, want)
	}
}

func (f *fixture) windowEnded() {
	if f.SetTime == nil {
		return
	}
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowLog, limit.SlidingWindowCounter} {
		c := f.counted(a, 5, 10*time.Second)
		f.toEdge(10 * time.Second)
		f.wait(5 * time.Second)
		r := f.charge(c).Receipts[0]
		f.wait(10 * time.Second)
		before := f.remains(c)
		f.back(r, 1)
		equal(f, a.String()+": remaining", f.remains(c), before)
		f.charge(c)
		before = f.remains(c)
		f.back(r, 1)
		equal(f, a.String()+": remaining", f.remains(c), before)
	}
}

// edgeBack: the clock steps over an edge and back, with a new epoch each time; what was charged on either side is spent.
func (f *fixture) edgeBack() {
	if f.SetTime == nil {
		return
	}
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowCounter} {
		c := f.counted(a, 10, time.Minute)
		f.toEdge(time.Minute)
		f.wait(50 * time.Second)
		equal(f, "charged", f.charged(4, c), 4)
		for _, step := range []time.Duration{20 * time.Second, -20 * time.Second} {
			f.must(Poll(f.ctx(), 5*time.Second, func() error { return f.Store.Tick(f.ctx(), 32) }))
			f.step(step)
			f.recover(f.region(1, 1))
			if step > 0 {
				f.charged(3, c)
			}
		}
		equal(f, a.String()+": charged in the first window again", f.charged(20, c), 3)
	}
}

func (f *fixture) windowLost() {
	if f.SetTime == nil {
		return
	}
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowLog, limit.SlidingWindowCounter} {
		c := f.counted(a, 10, time.Minute)
		c.OnLossEmpty = true
		f.toEdge(time.Minute)
		f.must(f.raw.FlushAll(f.ctx()).Err())
		f.view(c.Ref)
		f.tick()
		f.wait(50 * time.Second)
		equal(f, a.String()+": charged in the window of the loss", f.charged(3, c), 0)
		f.wait(time.Duration(f.charge(c).States[0].Reset) * time.Microsecond)
		equal(f, a.String()+": charged once nothing can be missing", f.charged(20, c), 10)
	}
}

func (f *fixture) windowReload() {
	if f.SetTime == nil {
		return
	}
	random := rand.New(rand.NewPCG(5, 6))
	for _, a := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowLog, limit.SlidingWindowCounter} {
		c := f.counted(a, 10, time.Minute)
		f.toEdge(time.Minute)
		var largest limit.Tokens
		total := 0
		for range 25 {
			c = reload(c, limit.Tokens(random.IntN(30)))
			largest = max(largest, c.Part.Capacity)
			total += f.charged(3, c)
			if limit.Tokens(total) > largest {
				f.Fatalf("%s: %d charged in one window, of at most %d at any time", a, total, largest)
			}
		}
		equal(f, "remaining", f.remains(reload(c, 100)), limit.Tokens(100-total))
	}
}
