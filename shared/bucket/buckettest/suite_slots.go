package buckettest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/limit/limittest"
)

var slotScenarios = map[string]func(*fixture){
	"B8: the slots of a holder that is not renewed are free after 10 s": (*fixture).holderEnds,
	"B8: a holder that is gone is told, and takes nothing":              (*fixture).holderGone,
	"B8: slots last as long as they are renewed":                        (*fixture).longStream,
	"B8: a slot is released once, in another epoch too":                 (*fixture).releases,
	"B8: a holder that the store has lost is gone":                      (*fixture).holderLost,
	"slots: random calls: store and reference model agree":              (*fixture).likeSlots,
	"A3: a reload with slots held":                                      (*fixture).slotsReload,
}

func newRandom() *rand.Rand { return rand.New(rand.NewPCG(9, 10)) }

// by takes c by h.
func (f *fixture) by(h bucket.Holder, c bucket.Charge) bucket.Verdict {
	f.Helper()
	v, err := f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{c}, Holder: h})
	f.must(err)
	return v
}

func (f *fixture) newHolder() bucket.Holder {
	f.Helper()
	h := bucket.NewHolder()
	f.must(f.Store.Hold(f.ctx(), h, 32))
	return h
}

// renewed tells in how many shards h is gone.
func (f *fixture) renewed(h bucket.Holder) int {
	f.Helper()
	gone, err := f.Store.Renew(f.ctx(), h, 32)
	f.must(err)
	return len(gone)
}

func (f *fixture) holderEnds() {
	if f.SetTime == nil {
		return
	}
	c := f.counted(limit.Concurrency, 3, 0)
	killed, lives := f.newHolder(), f.newHolder()
	f.by(killed, c)
	f.by(killed, c)
	f.by(lives, c)
	for range 9 {
		f.wait(time.Second)
		equal(f, "renewed", f.renewed(lives), 0)
		equal(f, "outcome", f.by(lives, c).Outcome, bucket.Denied)
	}
	f.wait(time.Second - time.Microsecond)
	equal(f, "outcome just before 10 s", f.by(lives, c).Outcome, bucket.Denied)
	f.wait(time.Microsecond)
	equal(f, "remaining after 10 s", f.by(lives, c).States[0].Remaining, 1)
	equal(f, "outcome", f.by(lives, c).Outcome, bucket.Admitted)
	equal(f, "outcome of one more", f.by(lives, c).Outcome, bucket.Denied)
	for _, field := range f.fields(recordOf(c.Ref)) {
		if field == fmt.Sprintf("slots:%d", killed) {
			f.Fatal("the count of a holder that is gone was kept")
		}
	}
}

func (f *fixture) fields(key string) []string {
	f.Helper()
	fields, err := f.raw.HKeys(f.ctx(), key).Result()
	f.must(err)
	return fields
}

func (f *fixture) holderGone() {
	c := f.counted(limit.Concurrency, 3, 0)
	if _, err := f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{c}, Holder: bucket.NewHolder()}); !errors.Is(err, bucket.ErrHolderGone) {
		f.Fatalf("a holder that nobody began: %v", err)
	}
	h := f.newHolder()
	f.by(h, c)
	f.must(f.raw.ZAdd(f.ctx(), holdersOf(c.Ref), member(h, f.now().Add(-10*time.Second))).Err())
	if _, err := f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{c}, Holder: h}); !errors.Is(err, bucket.ErrHolderGone) || !errors.Is(err, bucket.ErrCouldNotAsk) {
		f.Fatalf("a holder that was not renewed: %v", err)
	}
	equal(f, "shards where it is gone", f.renewed(h), 1)
	equal(f, "remaining", f.by(f.newHolder(), c).States[0].Remaining, 2)
	equal(f, "shards where it stays gone", f.renewed(h), 1)
}

func (f *fixture) longStream() {
	if f.SetTime == nil {
		return
	}
	c := f.counted(limit.Concurrency, 1, 0)
	c.Shard = 0
	h := f.newHolder()
	r := f.by(h, c).Receipts[0]
	for range 800 { // two hours
		f.wait(9 * time.Second)
		gone, err := f.Store.Renew(f.ctx(), h, 1)
		f.must(err)
		equal(f, "shards where it is gone", len(gone), 0)
	}
	equal(f, "outcome of another", f.by(h, c).Outcome, bucket.Denied)
	f.back(r, 1)
	equal(f, "outcome when it has ended", f.by(h, c).Outcome, bucket.Admitted)
}

func (f *fixture) releases() {
	c := f.counted(limit.Concurrency, 4, 0)
	c.Cost = 2
	h := f.newHolder()
	one, two := f.by(h, c).Receipts[0], f.by(h, c).Receipts[0]
	f.must(f.raw.HSet(f.ctx(), shardOf(c.Ref), "server", "the-master-before").Err())
	equal(f, "outcome in the new epoch", f.by(h, c).Outcome, bucket.Denied)
	equal(f, "released", f.back(one, 2), bucket.Credited{Count: 2})
	equal(f, "released again", f.back(one, 2), bucket.Credited{})
	equal(f, "remaining", f.remains(c), 2)
	f.back(two, 2)
	equal(f, "remaining", f.remains(c), 4)
	if _, err := f.Store.GiveBack(f.ctx(), []bucket.Back{{Receipt: two, Tokens: 1}}); err == nil {
		f.Fatal("half a request's slots were given back")
	}
}

func (f *fixture) holderLost() {
	c := f.counted(limit.Concurrency, 2, 0)
	h := f.newHolder()
	r := f.by(h, c).Receipts[0]
	f.must(f.raw.FlushAll(f.ctx()).Err())
	equal(f, "shards where it is gone", f.renewed(h), 32)
	if f.SetTime == nil {
		f.tick()
	}
	other := f.newHolder()
	f.by(other, c)
	f.back(r, 1) // of the record that was lost, with the same number
	equal(f, "remaining", f.remains(c), 1)
}

func (f *fixture) slotsReload() {
	c := f.counted(limit.Concurrency, 3, 0)
	h := f.newHolder()
	r := f.by(h, c).Receipts[0]
	f.by(h, c)
	less := reload(c, 1)
	equal(f, "outcome with more held than there are", f.by(h, less).Outcome, bucket.Denied)
	f.back(r, 1)
	equal(f, "outcome with all held", f.by(h, less).Outcome, bucket.Denied)
	equal(f, "remaining of five", f.remains(reload(less, 5)), 4)
}

// likeSlots drives slots and their plain model with random arrivals, ends and lost holders.
func (f *fixture) likeSlots() {
	if f.SetTime == nil {
		return
	}
	random := newRandom()
	for range 3 {
		c := f.counted(limit.Concurrency, limit.Tokens(1+random.IntN(6)), 0)
		c.Shard = 0
		model := &limittest.Slots{N: c.Part.Capacity, Lapse: 10 * limit.MicrosPerSecond}
		holders := map[bucket.Holder]bool{}
		receipts := map[string]bucket.Receipt{}
		ids := 0
		for range 70 {
			now := limit.Micros(f.at.UnixMicro())
			if len(holders) < 3 {
				h := bucket.NewHolder()
				f.must(f.Store.Hold(f.ctx(), h, 1))
				holders[h] = true
				model.Renew(now, name(h))
			}
			for h := range holders {
				if random.IntN(40) == 0 {
					delete(holders, h) // killed
				} else {
					gone, err := f.Store.Renew(f.ctx(), h, 1)
					f.must(err)
					equal(f, "shards where it is gone", len(gone), 0)
					model.Renew(now, name(h))
				}
			}
			for h := range holders {
				ids++
				id := fmt.Sprint(ids)
				v := f.by(h, c)
				want := model.Take(now, name(h), id)
				equal(f, "admitted", v.Outcome == bucket.Admitted, want.Admitted)
				equal(f, "remaining", v.States[0].Remaining, want.Remaining)
				if want.Admitted {
					receipts[id] = v.Receipts[0]
				}
			}
			for id, r := range receipts {
				if random.IntN(3) == 0 {
					f.back(r, 1)
					model.Release(now, id)
					delete(receipts, id)
				}
			}
			f.wait(time.Duration(random.IntN(3000)) * time.Millisecond)
		}
	}
}

func name(h bucket.Holder) string { return fmt.Sprint(uint64(h)) }
