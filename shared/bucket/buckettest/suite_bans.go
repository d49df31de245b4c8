package buckettest

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

var banScenarios = map[string]func(*fixture){
	"bans: k denials within a time, in the take itself":        (*fixture).bans,
	"bans: a ban is checked first and charges none":            (*fixture).banCharges,
	"bans: denials from memory count":                          (*fixture).banFromMemory,
	"bans: listed, removed, over a new epoch":                  (*fixture).banList,
	"bans: no more are listed than one can":                    (*fixture).banBound,
	"blocks: made, changed, announced, ended, removed":         (*fixture).blocks,
	"blocks: no more than one can hold; what ended makes room": (*fixture).blocksBound,
}

func member(h bucket.Holder, at time.Time) redis.Z {
	return redis.Z{Score: float64(at.UnixMicro()), Member: name(h)}
}

func holdersOf(ref bucket.Ref) string { return fmt.Sprintf("annona:1:{s%02d}:holders", ref.Shard) }

func bansOf(ref bucket.Ref) string { return fmt.Sprintf("annona:1:{s%02d}:bans", ref.Shard) }

// banned makes every kind of limit one with a ban after three denials.
func (f *fixture) banned(n limit.Tokens) map[string]bucket.Charge {
	f.Helper()
	kinds := f.kinds(n)
	for name, c := range kinds {
		c.Ban = bucket.Ban{Denials: 3, Within: time.Minute, For: 10 * time.Minute}
		kinds[name] = c
	}
	return kinds
}

func (f *fixture) bans() {
	for name, c := range f.banned(1) {
		f.charge(c)
		for range 2 {
			v := f.charge(c)
			equal(f, name+": outcome", v.Outcome, bucket.Denied)
			equal(f, name+": banned", v.States[0].Banned, 0)
		}
		v := f.charge(c)
		equal(f, name+": outcome of the third denial", v.Outcome, bucket.Denied)
		equal(f, name+": banned", v.States[0].Banned, 600*limit.MicrosPerSecond)
		raised := reload(c, 100)
		v = f.charge(raised)
		equal(f, name+": outcome, whatever the limit is", v.Outcome, bucket.Banned)
		if s := v.States[0]; s.Banned <= 590*limit.MicrosPerSecond || s.RetryIn < s.Banned || len(v.Receipts) > 0 {
			f.Fatalf("%s: verdict = %+v", name, v)
		}
		if f.SetTime == nil {
			continue
		}
		f.wait(10*time.Minute - time.Microsecond)
		equal(f, name+": outcome before the end", f.charge(raised).Outcome, bucket.Banned)
		f.wait(time.Microsecond)
		equal(f, name+": outcome at the end", f.charge(raised).Outcome, bucket.Admitted)

		none := reload(raised, 0)
		f.charge(none)
		f.charge(none)
		f.wait(time.Minute)
		f.charge(none)
		f.charge(none)
		equal(f, name+": outcome of the third within another time", f.charge(none).Outcome, bucket.Denied)
		equal(f, name+": outcome after it", f.charge(none).Outcome, bucket.Banned)
	}
}

func (f *fixture) banCharges() {
	for name, c := range f.banned(1) {
		f.charged(4, c)
		other := f.counted(limit.FixedWindow, 5, time.Hour)
		other.Ban = c.Ban
		v := f.charge(other, c)
		equal(f, name+": outcome", v.Outcome, bucket.Banned)
		equal(f, name+": banned", v.States[0].Banned, 0)
		equal(f, name+": remaining of the other", f.remains(other), 5)
		if s, err := f.raw.HGet(f.ctx(), recordOf(other.Ref), "denials").Result(); err == nil {
			f.Fatalf("%s: the other's denials = %s", name, s)
		}
	}
}

func (f *fixture) banFromMemory() {
	for name, c := range f.banned(5) {
		c.Denials = 2
		equal(f, name+": outcome after two", f.charge(c).Outcome, bucket.Admitted)
		c.Denials = 1
		equal(f, name+": outcome after three", f.charge(c).Outcome, bucket.Banned)
		c.Denials = 0
		equal(f, name+": outcome", f.charge(c).Outcome, bucket.Banned)
	}
}

func (f *fixture) banList() {
	all := f.banned(1)
	for name, c := range all {
		c.Sealed = []byte("\x00sealed " + name)
		f.charged(4, c)
		f.must(f.raw.HSet(f.ctx(), shardOf(c.Ref), "server", "the-master-before").Err())
		equal(f, name+": outcome in a new epoch", f.charge(c).Outcome, bucket.Banned)
	}
	var list []bucket.BannedKey
	for from, pages := 0, 0; ; pages++ {
		some, next, err := f.Store.Bans(f.ctx(), 32, from, 1)
		f.must(err)
		list = append(list, some...)
		if from = next; next == 0 {
			break
		}
		if pages > 32 {
			f.Fatal("no end of pages")
		}
	}
	equal(f, "bans", len(list), len(all))
	for _, b := range list {
		if !strings.HasPrefix(b.Policy, "p-") || !strings.HasPrefix(string(b.Sealed), "\x00sealed ") || b.Left <= 0 || b.Left > 10*time.Minute {
			f.Fatalf("ban = %+v", b)
		}
		ended, err := f.Store.Unban(f.ctx(), b.Ref)
		f.must(err)
		equal(f, "ended", ended, true)
		ended, err = f.Store.Unban(f.ctx(), b.Ref)
		f.must(err)
		equal(f, "ended again", ended, false)
	}
	for name, c := range all {
		equal(f, name+": outcome when it was removed", f.charge(c).Outcome, bucket.Denied)
	}
	list, _, err := f.Store.Bans(f.ctx(), 32, 0, 100)
	f.must(err)
	equal(f, "bans", len(list), 0)
}

func (f *fixture) banBound() {
	c := f.banned(1)[limit.FixedWindow.String()]
	ends := f.now().Add(time.Hour)
	for i := range bucket.MaxBans {
		f.must(f.raw.ZAdd(f.ctx(), bansOf(c.Ref), redis.Z{Score: float64(ends.Add(time.Duration(i) * time.Second).UnixMicro()), Member: fmt.Sprint(i)}).Err())
	}
	c.Ban.For = 366 * 24 * time.Hour
	f.charged(4, c)
	n, err := f.raw.ZCard(f.ctx(), bansOf(c.Ref)).Result()
	f.must(err)
	equal(f, "listed", n, bucket.MaxBans)
	list, _, err := f.Store.Bans(f.ctx(), c.Shard+1, c.Shard, 1)
	f.must(err)
	equal(f, "listed with a record", len(list), 1)
	equal(f, "key", list[0].Key, c.Key)
}

func (f *fixture) blocks() {
	ctx, cancel := context.WithCancel(f.ctx())
	defer cancel()
	told := make(chan struct{}, 100)
	go func() { _ = f.Store.BlockChanges(ctx, func() { told <- struct{}{} }) }()
	f.subscribed("annona:1:blocks")
	hears := func(what string) {
		select {
		case <-told:
		case <-time.After(5 * time.Second):
			f.Fatalf("%s was not announced", what)
		}
	}
	b := bucket.Block{ID: f.ref().Key, Sealed: []byte("a sealed: identity\x00"), Reason: "scraping, 2 July", Left: time.Minute}
	f.must(f.Store.Block(f.ctx(), b))
	hears("a block")
	got := f.blocked()
	equal(f, "blocks", len(got), 1)
	if g := got[0]; g.ID != b.ID || string(g.Sealed) != string(b.Sealed) || g.Reason != b.Reason || g.Left <= 0 || g.Left > time.Minute || g.Since > 10*time.Second {
		f.Fatalf("block = %+v, want %+v", g, b)
	}
	b.Left, b.Sealed = 0, nil
	f.must(f.Store.Block(f.ctx(), b))
	hears("a changed block")
	equal(f, "left of a block without an end", f.blocked()[0].Left, 0)
	if f.SetTime != nil {
		short := bucket.Block{ID: f.ref().Key, Left: time.Second}
		f.must(f.Store.Block(f.ctx(), short))
		equal(f, "blocks", len(f.blocked()), 2)
		f.wait(time.Second)
		equal(f, "blocks when one has ended", len(f.blocked()), 1)
		hears("a short block")
	}
	removed, err := f.Store.Unblock(f.ctx(), b.ID)
	f.must(err)
	equal(f, "removed", removed, true)
	hears("a removed block")
	removed, err = f.Store.Unblock(f.ctx(), b.ID)
	f.must(err)
	equal(f, "removed again", removed, false)
	equal(f, "blocks", len(f.blocked()), 0)
	if err := f.Store.Block(f.ctx(), bucket.Block{Reason: strings.Repeat("x", bucket.MaxReason+1)}); err == nil {
		f.Fatal("a reason without end was kept")
	}
}

func (f *fixture) blocked() []bucket.Block {
	f.Helper()
	list, err := f.Store.Blocks(f.ctx())
	f.must(err)
	return list
}

func (f *fixture) blocksBound() {
	values := make([]any, 0, 2*bucket.MaxBlocks)
	for i := range bucket.MaxBlocks {
		ends := 0
		if i == 0 {
			ends = 1 // long ago
		}
		values = append(values, fmt.Sprintf("%032x", i), fmt.Sprintf("1 %d 0: ", ends))
	}
	f.must(f.raw.HSet(f.ctx(), "annona:1:blocks", values...).Err())
	equal(f, "blocks", len(f.blocked()), bucket.MaxBlocks-1)
	f.must(f.Store.Block(f.ctx(), bucket.Block{ID: f.ref().Key}))
	if err := f.Store.Block(f.ctx(), bucket.Block{ID: f.ref().Key}); err == nil {
		f.Fatal("one block too many was made")
	}
	equal(f, "blocks", len(f.blocked()), bucket.MaxBlocks)
}
