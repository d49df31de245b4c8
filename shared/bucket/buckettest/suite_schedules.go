package buckettest

import (
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// schedules are sequences that broke a rule once.
var schedules = map[string]func(*fixture){
	"E3: two epochs for the clock in a row add nothing":              (*fixture).twoClockEpochs,
	"A3, E5: a give-back refills nothing by numbers of before":       (*fixture).giveBackAfterChange,
	"A3: a raised limit is asked for at once, dry before or not":     (*fixture).raisedWhileDry,
	"A3: a lease is not spent on top of a limit of scope region":     (*fixture).leaseOfChangedScope,
	"A3: a record is kept until its larger numbers would be full":    (*fixture).keptForLargerNumbers,
	"B6: what a pool lacks for a large cost it may have for a small": (*fixture).dryForLargeCost,
}

func (f *fixture) twoClockEpochs() {
	if f.SetTime == nil {
		return // suite_tick.go alters a real store's ticks; here time itself has to stand still
	}
	c := f.global(100)
	c.Part = limit.Budget{Capacity: 10, Rate: 1000}
	other := f.region(10, 0)
	other.Shard = c.Shard
	f.vouch(c.Ref)
	equal(f, "admitted", f.admitted(20, c), 10)
	for range 2 {
		f.must(Poll(f.ctx(), 5*time.Second, func() error { return f.Store.Tick(f.ctx(), 32) }))
		f.step(3 * time.Second)
		f.couldNotAsk(other)
		f.recover(other)
	}
	equal(f, "admitted after two epochs, six seconds later", f.admitted(20, c), 0)
}

func (f *fixture) giveBackAfterChange() {
	c := f.region(100, 100)
	c.Cost = 100
	receipt := f.open(c)
	slow := c
	slow.Revision, slow.Part.Rate = 2, 1000
	other := slow // brings the new numbers into the shard
	other.Key[15]++
	other.Cost = 1
	f.take(other)
	f.wait(time.Second)
	f.back(receipt, 1)
	slow.Cost = 1
	if got := f.admitted(200, slow); got > 1 {
		f.Fatalf("%d admitted a second after the rate was lowered and all was spent; want at most the one given back", got)
	}
}

func (f *fixture) raisedWhileDry() {
	c := f.global(10)
	f.wants(c)
	g := answer(f.ask(bucket.Plan{View: f.view(c.Ref), Want: 1, Waiting: 1}), 0)
	g.DryFor, g.FitsIn = 2*time.Hour, 2*time.Hour
	equal(f, "applied", f.fill(g), true)
	equal(f, "outcome while dry", f.wants(c).Outcome, bucket.Denied)
	c.Revision++
	c.Pool = limit.Budget{Capacity: 1000, Rate: 100 * limit.MicroPerToken}
	equal(f, "outcome after the raise", f.wants(c).Outcome, bucket.Wait)
}

func (f *fixture) leaseOfChangedScope() {
	c := f.global(90)
	f.lease(c, 90)
	c.Leased, c.Pool, c.Revision = false, limit.Budget{}, 2
	c.Part = limit.Budget{Capacity: 100, Rate: 1000}
	if got := f.admitted(300, c); got > 100 {
		f.Fatalf("%d admitted at one instant of a limit of 100", got)
	}
}

func (f *fixture) keptForLargerNumbers() {
	if f.SetTime == nil {
		return // a minute of a real store's time would pass
	}
	large := f.global(900)
	large.Variant, large.Part = "tier:premium", limit.Budget{Capacity: 60, Rate: 100_000}
	small := large
	small.Variant, small.Part = "", limit.Budget{Capacity: 1, Rate: limit.MicroPerToken}
	f.age(large.Ref, time.Hour)
	admitted := f.admitted(100, large)
	f.take(small)
	for range 62 {
		f.wait(time.Second)
	}
	if again := f.admitted(100, large); admitted+again > 60+7 {
		f.Fatalf("%d and, 62 s later, %d admitted of 60 and 0.1/s", admitted, again)
	}
}

func (f *fixture) dryForLargeCost() {
	c := f.global(100)
	large := c
	large.Cost = 50
	f.wants(large)
	g := answer(f.ask(bucket.Plan{View: f.view(c.Ref), Want: 50, Waiting: 50}), 0)
	g.DryFor, g.FitsIn, g.PoolLevel = time.Minute, time.Minute, 40
	equal(f, "applied", f.fill(g), true)
	equal(f, "outcome of the large cost", f.wants(large).Outcome, bucket.Denied)
	equal(f, "outcome of the small one", f.wants(c).Outcome, bucket.Wait)
}
