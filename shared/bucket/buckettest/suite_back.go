package buckettest

import (
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// open takes c and may give it back within a minute.
func (f *fixture) open(c bucket.Charge) bucket.Receipt {
	f.Helper()
	v, err := f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{c}, GiveBackFor: time.Minute})
	f.must(err)
	if v.Outcome != bucket.Admitted || len(v.Receipts) != 1 {
		f.Fatalf("take = %+v, want it admitted with a receipt", v)
	}
	return v.Receipts[0]
}

func (f *fixture) back(r bucket.Receipt, n limit.Tokens) bucket.Credited {
	f.Helper()
	credited, err := f.Store.GiveBack(f.ctx(), []bucket.Back{{Receipt: r, Tokens: n}})
	f.must(err)
	return credited[0]
}

func (f *fixture) givesBack() {
	c := f.region(10, 0)
	c.Cost = 6
	r := f.open(c)
	equal(f, "credited", f.back(r, 4), bucket.Credited{Part: limit.Tokens(4).Micro()})
	equal(f, "left", f.levelOf(c), 8)
	nothing := bucket.Credited{}

	r = f.open(c)
	other := r
	other.Epoch = "another"
	equal(f, "credited in another epoch", f.back(other, 6), nothing)
	other = r
	other.At, other.Until = r.At-2, r.At-1
	equal(f, "credited too late", f.back(other, 6), nothing)
	raised := reload(c, 20)
	equal(f, "left of 20", f.levelOf(raised), 12)
	equal(f, "credited to other numbers", f.back(r, 6), nothing)
	equal(f, "left of 20 after that", f.levelOf(raised), 12)

	r = f.open(raised)
	f.must(f.raw.HSet(f.ctx(), shardOf(c.Ref), "server", "the-master-before").Err())
	equal(f, "credited after a new epoch", f.back(r, 6), nothing)
	equal(f, "left in the new epoch", f.levelOf(raised), 6)
	if _, err := f.Store.GiveBack(f.ctx(), []bucket.Back{{Receipt: r, Tokens: 7}}); err == nil {
		f.Fatal("more was given back than taken")
	}
}

// givesBackRoom: a bucket that was full since the take would not hold the tokens, had they never been taken.
func (f *fixture) givesBackRoom() {
	c := f.region(10, 5)
	c.Cost = 6
	r := f.open(c)
	f.wait(2 * time.Second)
	c.Cost = 10
	f.take(c) // it was full, and is empty again
	equal(f, "credited", f.back(r, 6), bucket.Credited{})

	c = f.region(10, 0)
	c.Cost = 3
	one, two := f.open(c), f.open(c)
	equal(f, "left", f.levelOf(c), 4)
	equal(f, "credited of the first", f.back(one, 3).Part.Whole(), 3)
	equal(f, "credited of the second, whose mark the first raised", f.back(two, 3).Part.Whole(), 0)
	// All are closed: the next take has its own mark.
	r = f.open(c)
	equal(f, "credited", f.back(r, 3).Part.Whole(), 3)
	equal(f, "left", f.levelOf(c), 7)
}

func (f *fixture) givesBackLease() {
	c := f.global(100)
	f.lease(c, 10)
	c.Cost = 4
	r := f.open(c)
	equal(f, "taken of the lease", r.FromLease, 4)
	equal(f, "credited", f.back(r, 3), bucket.Credited{Lease: 3})
	v := f.view(c.Ref)
	equal(f, "left", v.Left, 9)
	equal(f, "spent", v.Spent, 1)

	// What an item has reported as spent stays spent.
	r = f.open(c)
	asked := f.ask(bucket.Plan{View: f.view(c.Ref), Want: 5})
	equal(f, "spent in the item", asked.Item.GetSpent(), 5)
	equal(f, "credited after the report", f.back(r, 4), bucket.Credited{})
	g := answer(asked, 5)
	g.TTL = 300 * time.Millisecond
	equal(f, "applied", f.fill(g), true)

	asked = f.ask(bucket.Plan{View: f.view(c.Ref), Want: 5})
	r = f.open(c) // of the lease before, and after the item: nobody has reported it
	f.wait(g.TTL)
	equal(f, "applied", f.fill(answer(asked, 5)), true)
	equal(f, "credited to the next lease", f.back(r, 4), bucket.Credited{})
	equal(f, "left of the next lease", f.view(c.Ref).Left, 5)
}
