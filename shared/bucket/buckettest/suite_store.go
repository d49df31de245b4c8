package buckettest

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

func (f *fixture) otherServer() {
	c := f.global(100)
	asked := f.lease(c, 5)
	old := f.view(c.Ref)
	f.must(f.raw.HSet(f.ctx(), shardOf(c.Ref), "server", "the-master-before").Err())
	v := f.take(c)
	equal(f, "outcome with the old epoch's lease", v.Outcome, bucket.Denied)
	fresh := f.view(c.Ref)
	if fresh.Epoch == old.Epoch {
		f.Fatal("the epoch is still the other server's")
	}
	equal(f, "left", fresh.Left, 0)
	equal(f, "session", fresh.Session, 0)
	equal(f, "an answer of the old epoch", f.fill(answer(asked, 5)), false)
	if f.ask(bucket.Plan{View: old, Want: 1}) != nil {
		f.Fatal("an item was made of an old epoch's view")
	}
	next := f.ask(bucket.Plan{View: fresh, Want: 1})
	equal(f, "epoch of the next item", next.Epoch, fresh.Epoch)
	if next.Item.GetSession() <= asked.Item.GetSession() {
		f.Fatalf("session %d in the new epoch, after %d", next.Item.GetSession(), asked.Item.GetSession())
	}
	reason, err := f.raw.HGet(f.ctx(), shardOf(c.Ref), "reason").Result()
	f.must(err)
	equal(f, "reason", reason, "server")
	// A record that is gone begins one too, and its shard alone.
	f.must(f.raw.Del(f.ctx(), shardOf(c.Ref)).Err())
	equal(f, "found after the shard record was lost", f.view(c.Ref).Found, false)
	reason, err = f.raw.HGet(f.ctx(), shardOf(c.Ref), "reason").Result()
	f.must(err)
	equal(f, "reason", reason, "missing")
}

func (f *fixture) unknownLeased() {
	c := f.global(100)
	c.Part = limit.Budget{Capacity: 10, Rate: 10 * limit.MicroPerToken}
	v := f.take(c)
	equal(f, "outcome in a young epoch", v.Outcome, bucket.Denied)
	if retry := v.States[0].RetryIn; retry != 0 {
		f.Fatalf("retry in %d, want 0: the pool may have tokens", retry)
	}
	f.age(c.Ref, 15*time.Second)
	c.Ref = bucket.Ref{Shard: c.Shard, Key: f.ref().Key}
	if got := f.admitted(20, c); got > 6 {
		f.Fatalf("admitted %d as soon as demoted_for had passed, want the refill since then", got)
	}
	f.age(c.Ref, time.Minute)
	c.Ref = bucket.Ref{Shard: c.Shard, Key: f.ref().Key}
	if got := f.admitted(10, c); got != 10 {
		f.Fatalf("admitted %d in an old epoch, want the whole part", got)
	}
	// A known bucket of an older epoch is as an unknown one.
	f.must(f.raw.Del(f.ctx(), shardOf(c.Ref)).Err())
	equal(f, "admitted in the next epoch", f.admitted(3, c), 0)
}

func (f *fixture) regionKeepsLevel() {
	c := f.region(10, 1)
	equal(f, "admitted", f.admitted(4, c), 4)
	// An idle hour before the new epoch is the gap: how much of it the store was there for, nobody knows.
	f.must(f.raw.HIncrBy(f.ctx(), recordOf(c.Ref), "mark", -time.Hour.Microseconds()).Err())
	f.must(f.raw.HSet(f.ctx(), shardOf(c.Ref), "server", "the-master-before").Err())
	got := f.admitted(10, c)
	if got < 6 || got > 7 || (f.SetTime != nil && got != 6) {
		f.Fatalf("admitted %d in the new epoch, want the 6 that it held", got)
	}
	other := f.region(10, 1)
	equal(f, "admitted of an unknown one", f.admitted(10, other), 10)
}

func (f *fixture) life() {
	ttl := func(c bucket.Charge) time.Duration {
		d, err := f.raw.PTTL(f.ctx(), recordOf(c.Ref)).Result()
		f.must(err)
		return d
	}
	short := f.region(10, 1)
	f.take(short)
	if d := ttl(short); d < 59*time.Second || d > 61*time.Second {
		f.Fatalf("a bucket soon full lives %s, want a minute", d)
	}
	long := f.region(1000, 1)
	f.admitted(200, long)
	if d := ttl(long); d < 395*time.Second || d > 401*time.Second {
		f.Fatalf("a bucket that is full in 200 s lives %s, want 400 s", d)
	}
	leased := f.global(100)
	f.wants(leased)
	g := answer(f.ask(bucket.Plan{View: f.view(leased.Ref), Want: 5}), 5)
	g.TTL = 5 * time.Minute
	equal(f, "applied", f.fill(g), true)
	if d := ttl(leased); d < 599*time.Second || d > 601*time.Second {
		f.Fatalf("a bucket with a lease of 5 min lives %s, want 10 min", d)
	}
}

// heard collects announcements from when it listens until act is done. Each server is made to say when that is: what one server
// announces keeps its order, what several do does not, so a cluster's announcements come sorted.
func (f *fixture) heard(channel string, listen func(context.Context, func(bucket.Announcement)) error, act func()) []bucket.Announcement {
	f.Helper()
	marks := map[bucket.Ref]int{}
	begin, end := f.ref(), f.ref()
	begun := make(chan struct{})
	ctx, cancel := context.WithCancel(f.ctx())
	defer cancel()
	var all []bucket.Announcement
	var wg sync.WaitGroup
	wg.Go(func() {
		err := listen(ctx, func(a bucket.Announcement) {
			if a.Ref != begin && a.Ref != end {
				all = append(all, a)
				return
			}
			switch marks[a.Ref]++; {
			case marks[a.Ref] != f.raw.servers():
			case a.Ref == begin:
				all = nil // said before anybody listened
				close(begun)
			default:
				cancel()
			}
		})
		if err != nil {
			f.Error(err)
		}
	})
	f.subscribed(channel)
	mark := func(ref bucket.Ref) {
		f.must(f.raw.masters(f.ctx(), func(one *redis.Client) error {
			return one.Publish(f.ctx(), channel, fmt.Sprintf("%d %s ", ref.Shard, ref.Key)).Err()
		}))
	}
	mark(begin)
	select {
	case <-begun:
	case <-time.After(5 * time.Second):
		f.Fatal("the listener heard nothing")
	}
	act()
	mark(end)
	wg.Wait()
	return f.sorted(all)
}

// sorted brings a cluster's announcements into one order: by bucket.
func (f *fixture) sorted(all []bucket.Announcement) []bucket.Announcement {
	if f.Cluster != nil {
		slices.SortStableFunc(all, func(a, b bucket.Announcement) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	}
	return all
}

func (f *fixture) subscribed(channel string) {
	f.Helper()
	f.must(Poll(f.ctx(), 5*time.Second, func() error {
		n, err := f.raw.listeners(f.ctx(), channel)
		if err == nil && n == 0 {
			err = errNobody
		}
		return err
	}))
}

const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

func (f *fixture) demands() {
	c, other, low, dry := f.global(100), f.global(100), f.global(100), f.global(100)
	f.lease(low, 4)
	f.wants(dry)
	g := answer(f.ask(bucket.Plan{View: f.view(dry.Ref), Want: 5}), 0)
	g.DryFor = time.Minute
	f.fill(g)
	all := f.heard("annona:1:demand", f.Store.Demands, func() {
		_, err := f.Store.Take(f.ctx(), bucket.Request{
			Charges: []bucket.Charge{c}, MayWait: true, WaitFor: time.Second, Traceparent: traceparent,
		})
		f.must(err)
		if f.SetTime != nil { // not a moment passes
			f.wants(c)
		}
		f.wait(50 * time.Millisecond)
		f.wants(c)
		asked := f.ask(bucket.Plan{View: f.view(c.Ref), Want: 3})
		equal(f, "trace context of the item", asked.Item.GetTraceparent(), traceparent)
		f.wait(50 * time.Millisecond)
		f.wants(c) // an item is in flight
		f.take(low)
		f.take(low) // 2 of 4 left: half is not low
		f.wants(other)
		f.take(low)
		f.wants(dry)
	})
	want := []bucket.Announcement{{Ref: c.Ref, Traceparent: traceparent}, {Ref: c.Ref}, {Ref: other.Ref}, {Ref: low.Ref}}
	if !slices.Equal(all, f.sorted(want)) {
		f.Fatalf("announced %v, want %v", all, want)
	}
}

func (f *fixture) fills() {
	c := f.global(100)
	f.wants(c)
	g := answer(f.ask(bucket.Plan{View: f.view(c.Ref), Want: 3}), 3)
	all := f.heard("annona:1:fills", f.Store.Fills, func() {
		f.must(f.raw.Publish(f.ctx(), "annona:1:fills", "garbage").Err())
		f.fill(g)
		f.fill(g) // repeated: changes nothing, announces nothing
	})
	if want := []bucket.Announcement{{Ref: c.Ref}}; !slices.Equal(all, want) {
		f.Fatalf("announced %v, want %v", all, want)
	}
	changes := make(chan struct{}, 10)
	ctx, cancel := context.WithCancel(f.ctx())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		if err := f.Store.MirrorChanges(ctx, func() { changes <- struct{}{} }); err != nil {
			f.Error(err)
		}
	})
	f.subscribed("annona:1:mirror")
	f.must(f.Store.SetMirror(f.ctx(), bucket.Mirror{PolicyRevision: 1, Policy: []byte("one")}))
	select {
	case <-changes:
	case <-time.After(5 * time.Second):
		f.Fatal("a change of the mirror was not announced")
	}
}

func (f *fixture) schedule() {
	// Four buckets of each of two shards, and one that a fill scheduled.
	var refs []bucket.Ref
	var dues []bucket.Due
	for i := range 8 {
		ref := bucket.Ref{Shard: i % 2, Key: f.ref().Key}
		refs = append(refs, ref)
		dues = append(dues, bucket.Due{Ref: ref, In: time.Duration(i) * 10 * time.Millisecond})
	}
	f.must(f.Store.Schedule(f.ctx(), dues))
	f.must(f.Store.Schedule(f.ctx(), []bucket.Due{{Ref: refs[3], In: -1}, {Ref: refs[7], In: time.Hour}}))
	f.wait(100 * time.Millisecond)
	got, err := f.Store.Due(f.ctx(), 32, 100)
	f.must(err)
	want := []bucket.Ref{refs[0], refs[1], refs[2], refs[5], refs[4], refs[6]}
	if !slices.Equal(got, want) {
		f.Fatalf("due = %v, want every shard's longest overdue first: %v", got, want)
	}
	got, err = f.Store.Due(f.ctx(), 32, 3)
	f.must(err)
	if !slices.Equal(got, want[:3]) {
		f.Fatalf("due, 3 at most = %v, want %v", got, want[:3])
	}
	c := f.global(100)
	f.lease(c, 5)
	f.wait(time.Second)
	got, err = f.Store.Due(f.ctx(), 32, 100)
	f.must(err)
	if !slices.Contains(got, c.Ref) {
		f.Fatalf("due = %v, want the bucket that was filled a second ago: %v", got, c.Ref)
	}
}

func (f *fixture) mirror() {
	m, err := f.Store.Mirror(f.ctx())
	f.must(err)
	if m.Policy != nil || m.Regions != nil || m.PolicyRevision != 0 {
		f.Fatalf("an empty store mirrors %+v", m)
	}
	set := func(m bucket.Mirror) { f.Helper(); f.must(f.Store.SetMirror(f.ctx(), m)) }
	set(bucket.Mirror{PolicyRevision: 7, Policy: []byte("seven\x00\n"), RoundTrip: 80 * time.Millisecond})
	set(bucket.Mirror{PolicyRevision: 6, Policy: []byte("six"), RegionsRevision: 2, Regions: []byte("two")})
	set(bucket.Mirror{PolicyRevision: 9}) // an unknown document is not a document
	m, err = f.Store.Mirror(f.ctx())
	f.must(err)
	equal(f, "policy", string(m.Policy), "seven\x00\n")
	equal(f, "policy revision", m.PolicyRevision, 7)
	equal(f, "regions", string(m.Regions), "two")
	equal(f, "regions revision", m.RegionsRevision, 2)
	equal(f, "round trip", m.RoundTrip, 80*time.Millisecond)
}

func (f *fixture) gateways() {
	register := func(g bucket.Gateway) { f.Helper(); f.must(f.Store.Register(f.ctx(), g)) }
	register(bucket.Gateway{ID: "g2", Revision: 3, Fingerprint: "abc"})
	register(bucket.Gateway{ID: "g1", Revision: 1, Fingerprint: "abc"})
	register(bucket.Gateway{ID: "g1", Revision: 4, Fingerprint: "def"})
	if err := f.Store.Register(f.ctx(), bucket.Gateway{ID: "no good", Fingerprint: "abc"}); err == nil {
		f.Fatal("an id with a space was accepted")
	}
	list, err := f.Store.Gateways(f.ctx())
	f.must(err)
	if len(list) != 2 || list[0].ID != "g1" || list[0].Revision != 4 || list[0].Fingerprint != "def" || list[1].ID != "g2" {
		f.Fatalf("gateways = %+v", list)
	}
	f.must(f.raw.HSet(f.ctx(), "annona:1:gateways", "g1", fmt.Sprintf("%d 4 def", f.now().Add(-11*time.Minute).UnixMicro())).Err())
	list, err = f.Store.Gateways(f.ctx())
	f.must(err)
	equal(f, "gateways heard of within 10 min", len(list), 1)
	register(bucket.Gateway{ID: "g2", Revision: 3, Fingerprint: "abc"})
	n, err := f.raw.HLen(f.ctx(), "annona:1:gateways").Result()
	f.must(err)
	equal(f, "gateways kept", n, 1)
}

// sealedOnly looks for an identity in everything that is stored after every verb ran.
func (f *fixture) sealedOnly() {
	const identity = "user=lucius.aemilius"
	secret, err := limit.NewSecret([]byte("a secret of enough bytes"))
	f.must(err)
	key := secret.Key("p", "token_bucket", "user", identity)
	c := f.global(100)
	c.Ref, c.Sealed = bucket.Ref{Shard: key.Shard(32), Key: key}, secret.Seal(identity)
	f.lease(c, 5)
	f.take(c)
	opened, err := secret.Open(f.view(c.Ref).Sealed)
	f.must(err)
	equal(f, "identity in the record", opened, identity)
	names, err := f.raw.keys(f.ctx())
	f.must(err)
	var dump strings.Builder
	for _, name := range names {
		fmt.Fprintln(&dump, name)
		switch f.raw.Type(f.ctx(), name).Val() {
		case "hash":
			fmt.Fprintln(&dump, f.raw.HGetAll(f.ctx(), name).Val())
		case "zset":
			fmt.Fprintln(&dump, f.raw.ZRange(f.ctx(), name, 0, -1).Val())
		default:
			f.Fatalf("%s is of a type that the layout does not know", name)
		}
	}
	if strings.Contains(dump.String(), "lucius") || !strings.Contains(dump.String(), "epoch") {
		f.Fatalf("the identity stands in the store, or nothing does:\n%s", dump.String())
	}
}
