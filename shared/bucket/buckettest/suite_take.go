package buckettest

import (
	"slices"
	"sync"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

func (f *fixture) golden() {
	c := f.region(20, 5)
	equal(f, "admitted at once", f.admitted(20, c), 20)
	v := f.take(c)
	empty := f.now()
	equal(f, "outcome of the 21st", v.Outcome, bucket.Denied)
	if s := v.States[0]; !s.Lacking || s.RetryIn <= 0 || s.RetryIn > 200_000 {
		f.Fatalf("state of the 21st = %+v, want lacking, to be retried within 200 ms", s)
	}
	f.wait(time.Second)
	got := f.admitted(20, c)
	if most := int(f.now().Sub(empty).Seconds()*5) + 1; got < 5 || got > most || (f.SetTime != nil && got != 5) {
		f.Fatalf("admitted after 1 s = %d, want 5 (at most %d by the time that passed)", got, most)
	}
	if f.SetTime != nil {
		f.wait(time.Hour)
	} else {
		f.must(f.raw.HIncrBy(f.ctx(), recordOf(c.Ref), "mark", -time.Hour.Microseconds()).Err())
	}
	equal(f, "admitted after an idle hour", f.admitted(20, c), 20)
	equal(f, "outcome after those", f.take(c).Outcome, bucket.Denied)
}

func (f *fixture) clockBack() {
	c := f.region(4, 1)
	equal(f, "admitted", f.admitted(4, c), 4)
	before := f.field(recordOf(c.Ref), "mark")
	total := 0
	if f.SetTime != nil {
		// Two gateways whose clocks differ by 10 s, in turn, were one clock that jumps. (Not for longer than the record lives:
		// a settable clock that goes forth again ages it each time.)
		for range 5 {
			f.wait(-10 * time.Second)
			total += f.admitted(2, c)
			f.wait(10 * time.Second)
			total += f.admitted(2, c)
		}
	} else {
		f.must(f.raw.HIncrBy(f.ctx(), recordOf(c.Ref), "mark", (10 * time.Second).Microseconds()).Err())
		total += f.admitted(10, c)
	}
	equal(f, "admitted while the clock jumped", total, 0)
	if after := f.field(recordOf(c.Ref), "mark"); after < before {
		f.Fatalf("mark went back from %d to %d", before, after)
	}
}

func (f *fixture) scriptFlush() {
	c := f.region(100, 0)
	for range 50 {
		f.must(f.raw.ScriptFlush(f.ctx()).Err())
		equal(f, "outcome", f.take(c).Outcome, bucket.Admitted)
	}
	equal(f, "level", f.field(recordOf(c.Ref), "level"), int64(limit.Tokens(50).Micro()))
	// In a pipeline too.
	global := []bucket.Charge{f.global(10), f.global(10), f.global(10)}
	refs := make([]bucket.Ref, len(global))
	for i, c := range global {
		f.wants(c)
		refs[i] = c.Ref
	}
	f.must(f.raw.ScriptFlush(f.ctx()).Err())
	views, err := f.Store.Views(f.ctx(), refs)
	f.must(err)
	for i, v := range views {
		equal(f, "found", v.Found && v.Ref == refs[i], true)
	}
}

func (f *fixture) allOrNothingRegion() {
	org, user1, user2 := f.region(10, 0), f.region(5, 0), f.region(5, 0)
	equal(f, "user1 admitted", f.admitted(8, org, user1), 5)
	equal(f, "org's level", f.field(recordOf(org.Ref), "level"), int64(limit.Tokens(5).Micro()))
	equal(f, "user2 admitted", f.admitted(5, user2, org), 5)
	equal(f, "org's level", f.field(recordOf(org.Ref), "level"), 0)
}

func (f *fixture) allOrNothingGlobal() {
	org, user1, user2 := f.global(10), f.global(5), f.global(5)
	f.lease(org, 10)
	f.lease(user1, 5)
	f.lease(user2, 5)
	equal(f, "user1 admitted", f.admitted(8, org, user1), 5)
	equal(f, "org's lease", f.view(org.Ref).Left, 5)
	equal(f, "org's denied", f.view(org.Ref).Denied, 0)
	equal(f, "user1's denied", f.view(user1.Ref).Denied, 3)
	equal(f, "user2 admitted", f.admitted(5, user2, org), 5)
	equal(f, "org's lease", f.view(org.Ref).Left, 0)
}

// oneToken: two takers of one token at the same time, thousands of times.
func (f *fixture) oneToken() {
	const takers = 2
	rounds := 10_000
	if f.SetTime != nil {
		rounds = 2_000 // an embedded server interprets Lua in Go, some ten times slower
	}
	charges := make([]bucket.Charge, rounds)
	for i := range charges {
		charges[i] = f.region(1, 0)
	}
	won := make([][]bool, takers)
	var wg sync.WaitGroup
	for taker := range won {
		won[taker] = make([]bool, rounds)
		wg.Go(func() {
			for i, c := range charges {
				v, err := f.Store.Take(f.ctx(), bucket.Request{Charges: []bucket.Charge{c}})
				if err != nil {
					f.Error(err)
					return
				}
				won[taker][i] = v.Outcome == bucket.Admitted
			}
		})
	}
	wg.Wait()
	for i := range charges {
		if won[0][i] == won[1][i] {
			f.Fatalf("round %d: admitted %v and %v, want exactly one", i, won[0][i], won[1][i])
		}
	}
	if !slices.Contains(won[0], true) || !slices.Contains(won[1], true) {
		f.Log("one taker won every round; they hardly met")
	}
}

func (f *fixture) ownPartFirst() {
	c := f.global(100)
	c.Part = limit.Budget{Capacity: 2, Rate: 500_000}
	f.age(c.Ref, 15*time.Second+3*time.Second) // 1.5 tokens since then
	equal(f, "outcome", f.take(c).Outcome, bucket.Admitted)
	f.lease(c, 3)
	c.Cost = 2
	v := f.take(c)
	equal(f, "outcome", v.Outcome, bucket.Admitted)
	equal(f, "left", v.States[0].Left, 1)
	view := f.view(c.Ref)
	equal(f, "spent", view.Spent, 2)
	if level := v.States[0].Level; level < 500_000 || level >= limit.MicroPerToken {
		f.Fatalf("level = %d, want the half token that no whole lease token needs", level)
	}
	c.Cost = 3
	v = f.take(c)
	equal(f, "outcome beyond both", v.Outcome, bucket.Denied)
	equal(f, "left after the denial", v.States[0].Left, 1)
}

func (f *fixture) peek() {
	c := f.region(5, 0)
	c.Cost = 0
	equal(f, "outcome", f.take(c).Outcome, bucket.Admitted)
	n, err := f.raw.Exists(f.ctx(), recordOf(c.Ref)).Result()
	f.must(err)
	equal(f, "records made by a cost of 0", n, 0)
	c.Cost = 5
	equal(f, "outcome of all", f.take(c).Outcome, bucket.Admitted)
	c.Cost = 0
	v := f.take(c)
	equal(f, "outcome of nothing from an empty bucket", v.Outcome, bucket.Admitted)
	equal(f, "level", v.States[0].Level, 0)
}
