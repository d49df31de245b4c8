package buckettest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// likeTheModel drives store and model with the same random calls at the same readings of a settable clock, and compares
// every answer and every bucket after every call.
func (f *fixture) likeTheModel() {
	rapid.Check(f.T, func(t *rapid.T) {
		f.must(f.raw.flushAll(f.ctx()))
		p := &pair{fixture: f, t: t, model: NewModel(), backwards: rapid.Bool().Draw(t, "backwards")}
		for i := range 4 {
			p.refs = append(p.refs, bucket.Ref{Shard: i % 2, Key: f.ref().Key})
		}
		p.epoch(0)
		p.epoch(1)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			p.step()
			p.compareViews()
		}
	})
}

// bound takes greedily at random moments: what is admitted in any interval is at most C + R·T, and in all it is C + R·T but
// for one token and the microsecond that each credit may round up; the takes that are denied in between cost nothing.
func (f *fixture) bound() {
	type admission struct {
		at   limit.Micros
		cost limit.Tokens
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 15 {
		c := f.region(limit.Tokens(2+random.IntN(10)), 0)
		c.Part.Rate = limit.Rate(1 + random.Int64N(50_000_000))
		begun := limit.Micros(f.at.UnixMicro())
		var all []admission
		for range 40 {
			for f.take(c).Outcome == bucket.Admitted {
				all = append(all, admission{limit.Micros(f.at.UnixMicro()), c.Cost})
			}
			// Never long enough to be full, so that nothing is idle and the whole refill can be taken.
			f.wait(time.Duration(random.Int64N(int64(c.Part.TimeTo(900_000)))) * time.Microsecond)
		}
		var total limit.Tokens
		for i := range all {
			var sum limit.Tokens
			for _, a := range all[i:] {
				sum += a.cost
				if most := int64(c.Part.Capacity)*1e12 + int64(a.at-all[i].at)*int64(c.Part.Rate); int64(sum)*1e12 > most {
					f.Fatalf("%d admitted within %d µs of a bucket of %s", sum, a.at-all[i].at, c.Part)
				}
			}
			total += all[i].cost
		}
		passed := int64(all[len(all)-1].at-begun) - int64(len(all))
		if least := int64(c.Part.Capacity-1)*1e12 + passed*int64(c.Part.Rate); int64(total)*1e12 < least {
			f.Fatalf("%d admitted in %d µs of a bucket of %s", total, passed, c.Part)
		}
	}
}

// pair is a store and its model in one state.
type pair struct {
	*fixture
	t     *rapid.T
	model *Model
	refs  []bucket.Ref
	asked []*bucket.Asked
	old   []bucket.View
	// receipts are those that may be given back, revision is that of the newest document.
	receipts []bucket.Receipt
	revision uint64
	// rounds are as the last takes told them.
	rounds map[bucket.Ref]limit.Micros
	// backwards lets the clock go back, and then forth for less than a record's life altogether: a settable clock that goes
	// forth again ages records each time.
	backwards bool
	forth     time.Duration
}

func (p *pair) micros() limit.Micros { return limit.Micros(p.at.UnixMicro()) }

func (p *pair) step() {
	switch rapid.SampledFrom([]string{"take", "take", "take", "take", "back", "reload", "ask", "ask", "fill", "fill", "wait", "wait", "epoch"}).Draw(p.t, "call") {
	case "take":
		p.takeBoth()
	case "back":
		p.backBoth()
	case "reload":
		p.revision++
	case "ask":
		p.askBoth()
	case "fill":
		p.fillBoth()
	case "wait":
		p.waitBoth()
	case "epoch":
		if rapid.IntRange(0, 3).Draw(p.t, "rarely") == 0 {
			p.epoch(rapid.IntRange(0, 1).Draw(p.t, "shard"))
		}
	}
}

func (p *pair) waitBoth() {
	if p.backwards {
		d := time.Duration(rapid.Int64Range(-3_000_000, 3_000_000).Draw(p.t, "wait")) * time.Microsecond
		if d > 0 {
			p.forth += d
		}
		if p.forth < time.Minute {
			p.wait(d)
		}
		return
	}
	most := rapid.SampledFrom([]int64{1, 1000, 300_000, 5_000_000, 100_000_000}).Draw(p.t, "scale")
	p.wait(time.Duration(rapid.Int64Range(0, most).Draw(p.t, "wait")) * time.Microsecond)
}

// epoch makes the shard's record another server's, so that the next call begins a new epoch, in the store and in the model.
func (p *pair) epoch(shard int) {
	p.must(p.raw.HSet(p.ctx(), shardOf(bucket.Ref{Shard: shard}), "server", "another").Err())
	v := p.view(p.refs[shard])
	p.model.Begin(p.micros(), shard, v.Epoch)
}

func (p *pair) takeBoth() {
	q := bucket.Request{
		MayWait: rapid.Bool().Draw(p.t, "may wait"),
		WaitFor: time.Duration(rapid.IntRange(0, 1000).Draw(p.t, "wait for")) * time.Millisecond,
	}
	if rapid.Bool().Draw(p.t, "traced") {
		q.Traceparent = traceparent
	}
	first, count := rapid.IntRange(0, 3).Draw(p.t, "bucket"), rapid.IntRange(1, 3).Draw(p.t, "charges")
	for i := range count {
		c := p.charge((first + i) % len(p.refs))
		c.Denied = rapid.SampledFrom([]limit.Tokens{0, 0, 3}).Draw(p.t, "denied from memory")
		c.Waits = rapid.SampledFrom([]limit.Micros{0, 1, p.rounds[c.Ref]}).Draw(p.t, "waits since")
		q.Charges = append(q.Charges, c)
	}
	q.GiveBackFor = time.Duration(rapid.IntRange(0, 1).Draw(p.t, "may give back")*rapid.IntRange(0, 5000).Draw(p.t, "for")) * time.Millisecond
	got, err := p.Store.Take(p.ctx(), q)
	want, ok := p.model.Take(p.micros(), q)
	if !ok {
		if !errors.Is(err, bucket.ErrOlderRevision) || !errors.Is(err, bucket.ErrCouldNotAsk) {
			p.t.Fatalf("Take(%+v) = %v, the model says that its revision is too old", q, err)
		}
		return
	}
	p.must(err)
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Fatalf("Take(%+v) (-model +store):\n%s", q, diff)
	}
	p.receipts = append(p.receipts, got.Receipts...)
	if p.rounds == nil {
		p.rounds = map[bucket.Ref]limit.Micros{}
	}
	for i, c := range q.Charges {
		p.rounds[c.Ref] = got.States[i].Round
	}
}

// charge charges one of the buckets: two of scope region, two leased, with numbers that come from the revision, which is
// sometimes an old one, and from the variant.
func (p *pair) charge(i int) bucket.Charge {
	odd := rapid.IntRange(0, 4).Draw(p.t, "variant") / 4 // mostly 0
	revision := p.revision
	if revision > 0 && rapid.IntRange(0, 7).Draw(p.t, "an older document") == 0 {
		revision--
	}
	size := []int{3, 9, 3, 1, 0, 6}[(int(revision)+i)%6]
	rate := []int{333_333, 333_333, 50_000, 2_000_000}[(int(revision)+odd)%4]
	c := bucket.Charge{
		Ref: p.refs[i], Policy: fmt.Sprintf("policy-%d", i), Variant: []string{"", "tier:premium"}[odd], Revision: revision,
		Cost: limit.Tokens(rapid.IntRange(0, 3).Draw(p.t, "cost")), Sealed: []byte("sealed\x00"), Leased: i >= 2, OnLossEmpty: i == 1,
		Part: limit.Budget{Capacity: limit.Tokens(size + 4*odd), Rate: limit.Rate(rate)},
	}
	if c.Leased {
		c.Part.Capacity = max(0, c.Part.Capacity-2)
		c.Pool = limit.Budget{Capacity: limit.Tokens(2 + i + 6*odd), Rate: 1_000_000}
	}
	return c
}

// backBoth gives back something of a receipt, once, or now and then twice.
func (p *pair) backBoth() {
	if len(p.receipts) == 0 {
		return
	}
	i := rapid.IntRange(0, len(p.receipts)-1).Draw(p.t, "receipt")
	b := bucket.Back{Receipt: p.receipts[i]}
	b.Tokens = limit.Tokens(rapid.Int64Range(0, int64(b.FromLease+b.FromPart)).Draw(p.t, "back"))
	if rapid.IntRange(0, 5).Draw(p.t, "twice") > 0 {
		p.receipts = slices.Delete(p.receipts, i, i+1)
	}
	got, err := p.Store.GiveBack(p.ctx(), []bucket.Back{b})
	p.must(err)
	if want := p.model.GiveBack(p.micros(), b); got[0] != want {
		p.t.Fatalf("GiveBack(%+v) = %+v, model says %+v", b, got[0], want)
	}
}

func (p *pair) askBoth() {
	v := p.view(p.refs[rapid.IntRange(0, 3).Draw(p.t, "bucket")])
	if len(p.old) > 0 && rapid.IntRange(0, 5).Draw(p.t, "stale") == 0 {
		v = rapid.SampledFrom(p.old).Draw(p.t, "view")
	}
	p.old = append(p.old, v)
	plan := bucket.Plan{
		View: v, Want: limit.Tokens(rapid.IntRange(0, 9).Draw(p.t, "want")), Return: limit.Tokens(rapid.IntRange(0, 5).Draw(p.t, "return")),
		Demand:     limit.Micro(rapid.IntRange(0, 9_000_000).Draw(p.t, "demand")),
		NewSession: rapid.IntRange(0, 9).Draw(p.t, "new session") == 0,
		Deadline:   time.Duration(rapid.IntRange(1, 3000).Draw(p.t, "deadline")) * time.Millisecond,
	}
	got, err := p.Store.Ask(p.ctx(), []bucket.Plan{plan})
	p.must(err)
	want := p.model.Ask(p.micros(), plan)
	if diff := cmp.Diff(want, got[0], protocmp.Transform()); diff != "" {
		p.t.Fatalf("Ask(%+v) (-model +store):\n%s", plan, diff)
	}
	if want != nil {
		p.asked = append(p.asked, want)
	}
}

func (p *pair) fillBoth() {
	if len(p.asked) == 0 {
		return
	}
	a := p.asked[len(p.asked)-1]
	if rapid.IntRange(0, 3).Draw(p.t, "stale") == 0 {
		a = rapid.SampledFrom(p.asked).Draw(p.t, "item")
	}
	g := answer(a, limit.Tokens(rapid.IntRange(0, 9).Draw(p.t, "granted")))
	g.TTL = rapid.SampledFrom([]time.Duration{0, 500 * time.Millisecond, 10 * time.Second, 2 * time.Minute}).Draw(p.t, "ttl")
	g.DryFor = time.Duration(rapid.IntRange(0, 1).Draw(p.t, "dry")*rapid.IntRange(0, 2000).Draw(p.t, "dry for")) * time.Millisecond
	g.FitsIn = time.Duration(rapid.IntRange(0, 3000).Draw(p.t, "fits in")) * time.Millisecond
	g.PoolLevel = limit.Tokens(rapid.IntRange(-3, 9).Draw(p.t, "pool level"))
	got := p.fill(g)
	if want := p.model.Fill(p.micros(), g); got != want {
		p.t.Fatalf("Fill(%+v) = %v, model says %v", g, got, want)
	}
}

func (p *pair) compareViews() {
	views, err := p.Store.Views(p.ctx(), p.refs)
	p.must(err)
	for i, ref := range p.refs {
		if diff := cmp.Diff(p.model.View(p.micros(), ref), views[i]); diff != "" {
			p.t.Fatalf("view of bucket %d (-model +store):\n%s", i, diff)
		}
	}
}
