package buckettest

import (
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

func (f *fixture) lateAnswer() {
	c := f.global(100)
	f.wants(c)
	asked := f.ask(bucket.Plan{View: f.view(c.Ref), Want: 5})
	g := answer(asked, 5)
	g.TTL = 100 * time.Millisecond
	f.wait(g.TTL)
	equal(f, "applied", f.fill(g), true)
	v := f.view(c.Ref)
	equal(f, "left", v.Left, 0)
	equal(f, "lapsed", v.Lapsed, 5)
	equal(f, "applied seq", v.Applied, v.Seq)
	equal(f, "outcome", f.take(c).Outcome, bucket.Denied)

	// B2: an answer with ttl 0 renews nothing, and what it grants is not to be spent.
	f.wants(c)
	g = answer(f.ask(bucket.Plan{View: f.view(c.Ref), Want: 5}), 2)
	g.TTL = 0
	equal(f, "applied", f.fill(g), true)
	equal(f, "lapsed", f.view(c.Ref).Lapsed, 7)
}

// renewsNothingLapsed: the first lease runs out while the next item is in flight; its answer, in time, brings only its grant.
func (f *fixture) renewsNothingLapsed() {
	c := f.global(100)
	f.wants(c)
	g := answer(f.ask(bucket.Plan{View: f.view(c.Ref), Want: 5}), 5)
	g.TTL = 300 * time.Millisecond
	equal(f, "applied", f.fill(g), true)
	equal(f, "outcome", f.take(c).Outcome, bucket.Admitted)
	asked := f.ask(bucket.Plan{View: f.view(c.Ref), Want: 1})
	equal(f, "left in the item", asked.Item.GetLeft(), 4)
	f.wait(g.TTL)
	// Nothing else has touched the record since, so it is the fill that finds the lease lapsed.
	g = answer(asked, 1)
	g.TTL = time.Second
	equal(f, "applied", f.fill(g), true)
	v := f.view(c.Ref)
	equal(f, "left", v.Left, 1)
	equal(f, "lapsed", v.Lapsed, 4)
	equal(f, "spent", v.Spent, 1)
	equal(f, "answered spent", v.AnsweredSpent, 1)
	equal(f, "answered lapsed", v.AnsweredLapsed, 0)
	f.wait(g.TTL)
	equal(f, "outcome with a lapsed lease", f.take(c).Outcome, bucket.Denied)
	equal(f, "lapsed", f.view(c.Ref).Lapsed, 5)
}

func (f *fixture) foreignAnswer() {
	c := f.global(100)
	f.wants(c)
	asked := f.ask(bucket.Plan{View: f.view(c.Ref), Want: 5})
	good := answer(asked, 5)
	wrong := map[string]bucket.Grant{"session": good, "seq": good, "epoch": good, "bucket": good}
	for what, g := range wrong {
		switch what {
		case "session":
			g.Session++
		case "seq":
			g.Seq++
		case "epoch":
			g.Epoch += "0"
		case "bucket":
			g.Ref = f.ref()
		}
		before := f.view(c.Ref)
		equal(f, "applied with another "+what, f.fill(g), false)
		after := f.view(c.Ref)
		equal(f, "left", after.Left, before.Left)
		equal(f, "applied seq", after.Applied, before.Applied)
		equal(f, "in flight", after.InFlight, true)
	}
	equal(f, "applied", f.fill(good), true)
	equal(f, "left", f.view(c.Ref).Left, 5)
}

func (f *fixture) sameAnswer() {
	c := f.global(100)
	f.wants(c)
	g := answer(f.ask(bucket.Plan{View: f.view(c.Ref), Want: 5}), 5)
	equal(f, "applied first", f.fill(g), true)
	equal(f, "outcome", f.take(c).Outcome, bucket.Admitted)
	both, err := f.Store.Fill(f.ctx(), []bucket.Grant{g, g})
	f.must(err)
	equal(f, "applied again", both[0] || both[1], false)
	v := f.view(c.Ref)
	equal(f, "left", v.Left, 4)
	equal(f, "spent", v.Spent, 1)
}

func (f *fixture) deadline() {
	c := f.global(100)
	f.wants(c)
	v := f.view(c.Ref)
	first := f.ask(bucket.Plan{View: v, Want: 5, Deadline: 200 * time.Millisecond})
	if f.ask(bucket.Plan{View: v, Want: 5}) != nil {
		f.Fatal("an item was made from a view that another item had made old")
	}
	if f.ask(bucket.Plan{View: f.view(c.Ref), Want: 5}) != nil {
		f.Fatal("a second item was made while the first was in flight")
	}
	f.wait(200 * time.Millisecond)
	second := f.ask(bucket.Plan{View: f.view(c.Ref), Want: 5})
	equal(f, "session", second.Item.GetSession(), first.Item.GetSession())
	equal(f, "seq", second.Item.GetSeq(), first.Item.GetSeq()+1)
	equal(f, "applied", second.Item.GetApplied(), 0)
	equal(f, "the first's answer after the second", f.fill(answer(first, 5)), false)
	equal(f, "the second's answer", f.fill(answer(second, 3)), true)
	equal(f, "left", f.view(c.Ref).Left, 3)
}

func (f *fixture) demandOnce() {
	org, user := f.global(10), f.global(5)
	v := f.wants(org, user)
	equal(f, "outcome", v.Outcome, bucket.Wait)
	equal(f, "org waiting", f.view(org.Ref).Waiting, 1)
	equal(f, "org denied", f.view(org.Ref).Denied, 0)
	org.Waits, user.Waits = v.States[0].Round, v.States[1].Round
	f.wants(org, user)
	equal(f, "org waiting after taking again before a fill", f.view(org.Ref).Waiting, 1)
	f.lease(org, 5) // resets waiting
	equal(f, "org waiting after the fill", f.view(org.Ref).Waiting, 0)
	equal(f, "outcome again", f.wants(org, user).Outcome, bucket.Wait)
	equal(f, "org waiting, which has tokens", f.view(org.Ref).Waiting, 0)
	equal(f, "user waiting", f.view(user.Ref).Waiting, 1)
	equal(f, "outcome at the deadline", f.take(org, user).Outcome, bucket.Denied)
	equal(f, "user denied", f.view(user.Ref).Denied, 1)

	// The user's pool is dry: the org, which lacks too, is not asked for tokens that nobody can use.
	g := answer(f.ask(bucket.Plan{View: f.view(user.Ref), Want: 5}), 0)
	g.DryFor, g.FitsIn = time.Second, time.Minute
	equal(f, "applied", f.fill(g), true)
	org = f.global(10)
	v = f.wants(org, user)
	equal(f, "outcome while dry", v.Outcome, bucket.Denied)
	if f.Cluster != nil { // two slots know nothing of each other: a wait is left behind, which ends by itself
		equal(f, "org denied", f.view(org.Ref).Denied, 0)
	} else {
		equal(f, "org found", f.view(org.Ref).Found, false)
	}
	equal(f, "user denied", f.view(user.Ref).Denied, 2)
	if retry := v.States[1].RetryIn; retry <= 55_000_000 || retry > 60_000_000 {
		f.Fatalf("retry in %d µs, want what is left of a minute", retry)
	}
	// What waits is forgotten after its time.
	c := f.global(10)
	f.wants(c)
	f.wait(time.Second)
	equal(f, "waiting after its time", f.view(c.Ref).Waiting, 0)
}

// deniedFromMemory: a gateway that denied without asking tells so with its next take, whatever comes of that.
func (f *fixture) deniedFromMemory() {
	c := f.global(10)
	f.lease(c, 2)
	before := f.view(c.Ref).Denied
	c.Denied = 7
	equal(f, "outcome", f.take(c).Outcome, bucket.Admitted)
	equal(f, "denied", f.view(c.Ref).Denied, before+7)
	c.Denied = 0
	equal(f, "outcome", f.take(c).Outcome, bucket.Admitted)
	equal(f, "outcome without tokens", f.take(c).Outcome, bucket.Denied)
	equal(f, "denied", f.view(c.Ref).Denied, before+8)
}

func (f *fixture) waitersBound() {
	c := f.global(3)
	for range 3 {
		equal(f, "outcome", f.wants(c).Outcome, bucket.Wait)
	}
	equal(f, "outcome of the 4th", f.wants(c).Outcome, bucket.Denied)
	// One of the three takes again, for a message that it missed: it is no fourth.
	again := c
	again.Waits = 1
	equal(f, "outcome of one of the three", f.wants(again).Outcome, bucket.Wait)
	equal(f, "waiting", f.view(c.Ref).Waiting, 3)
	equal(f, "denied", f.view(c.Ref).Denied, 1)
	big := f.global(3)
	big.Cost = 4
	v := f.wants(big)
	equal(f, "outcome of a cost above the pool", v.Outcome, bucket.Denied)
	equal(f, "retry in", v.States[0].RetryIn, limit.Never)
}

func (f *fixture) returning() {
	c := f.global(100)
	f.lease(c, 5)
	f.take(c)
	asked := f.ask(bucket.Plan{View: f.view(c.Ref), Return: 10, Draining: true})
	equal(f, "returned", asked.Item.GetReturned(), 4)
	equal(f, "left", asked.Item.GetLeft(), 0)
	equal(f, "spent", asked.Item.GetSpent(), 1)
	equal(f, "draining", asked.Item.GetDraining(), true)
	equal(f, "outcome", f.take(c).Outcome, bucket.Denied)
	equal(f, "applied", f.fill(answer(asked, 0)), true)
	v := f.view(c.Ref)
	equal(f, "answered returned", v.AnsweredReturned, 4)
	equal(f, "asked spent", v.AskedSpent, 1)
}

func (f *fixture) newSession() {
	c := f.global(100)
	first := f.lease(c, 5)
	f.take(c)
	asked := f.ask(bucket.Plan{View: f.view(c.Ref), Want: 2, NewSession: true})
	item := asked.Item
	if item.GetSession() <= first.Item.GetSession() {
		f.Fatalf("session %d after %d", item.GetSession(), first.Item.GetSession())
	}
	equal(f, "seq", item.GetSeq(), 1)
	equal(f, "left", item.GetLeft(), 0)
	equal(f, "counters", item.GetSpent()+item.GetReturned()+item.GetLapsed()+item.GetDenied(), 0)
	equal(f, "an answer of the old session", f.fill(answer(first, 5)), false)
	equal(f, "applied", f.fill(answer(asked, 2)), true)
	equal(f, "left", f.view(c.Ref).Left, 2)
}
