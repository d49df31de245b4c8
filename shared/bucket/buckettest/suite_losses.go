package buckettest

import (
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// everyLimitLost: after FLUSHALL an unknown limit is full, or with on_loss empty it has nothing until nothing can be missing.
func (f *fixture) everyLimitLost() {
	for _, empty := range []bool{false, true} {
		for name, c := range f.kinds(3) {
			c.OnLossEmpty = empty
			f.vouch(c.Ref)
			equal(f, name+": charged", f.charged(5, c), 3)
			f.must(f.raw.FlushAll(f.ctx()).Err())
			f.view(c.Ref) // begins the epoch
			if f.SetTime == nil {
				f.tick()
			}
			want := 3
			if empty {
				want = 0
			}
			equal(f, name+": charged after the loss", f.charged(5, c), want)
			if empty && f.SetTime != nil {
				s := f.charge(c).States[0]
				if s.RetryIn <= 0 || s.Remaining != 0 {
					f.Fatalf("%s: state after the loss = %+v", name, s)
				}
				f.wait(time.Duration(s.RetryIn) * time.Microsecond)
				if got := f.charged(5, c); got == 0 {
					f.Fatalf("%s: nothing charged when it should fit", name)
				}
			}
		}
	}
}

// everyLimitEpoch: another server, and a clock that steps forth and back, take nothing from what is known and add nothing.
func (f *fixture) everyLimitEpoch() {
	kinds := f.kinds(3)
	for name, c := range kinds {
		equal(f, name+": charged", f.charged(2, c), 2)
		f.must(f.raw.HSet(f.ctx(), shardOf(c.Ref), "server", "the-master-before").Err())
		equal(f, name+": charged in the new epoch", f.charged(5, c), 1)
	}
	if f.SetTime == nil {
		return
	}
	for _, step := range []time.Duration{30 * time.Second, -time.Minute, 20 * time.Second} {
		f.holder()
		f.must(Poll(f.ctx(), 5*time.Second, func() error { return f.Store.Tick(f.ctx(), 32) }))
		f.step(step)
		f.recover(kinds[limit.TokenBucket.String()])
		for name, c := range kinds {
			equal(f, name+": reason of the epoch", f.reason(c.Ref), "clock")
			equal(f, name+": charged after a step by "+step.String(), f.charged(5, c), 0)
		}
	}
}

// everyLimitExpires: the record outlives twice its window or time to full; when it has gone nothing is missing.
func (f *fixture) everyLimitExpires() {
	for name, c := range f.kinds(3) {
		f.charged(3, c)
		life, err := f.raw.PTTL(f.ctx(), recordOf(c.Ref)).Result()
		f.must(err)
		least, most := 2*time.Hour, 2*time.Hour
		if c.Algorithm == limit.Concurrency {
			least, most = 31*24*time.Hour, 31*24*time.Hour
		}
		if life < least-time.Minute || life > most+time.Minute {
			f.Fatalf("%s: lives %s, want %s", name, life, least)
		}
		f.must(f.raw.Del(f.ctx(), recordOf(c.Ref)).Err())
		equal(f, name+": charged when it has expired", f.charged(5, c), 3)
		equal(f, name+": left", f.remains(c), 0)
	}
}

func (f *fixture) everyLimitOldReceipt() {
	for name, c := range f.kinds(3) {
		r := f.charge(c).Receipts[0]
		f.charged(2, c)
		r.Epoch = "another"
		want := limit.Tokens(0)
		if c.Algorithm == limit.Concurrency {
			want = 1 // its holder lives on, and so does the slot
		}
		f.back(r, 1)
		equal(f, name+": left", f.remains(c), want)
	}
}

func (f *fixture) everyLimitSealed() {
	for name, c := range f.kinds(3) {
		c.Sealed = []byte("sealed by " + name)
		f.charge(c)
		sealed, err := f.raw.HGet(f.ctx(), recordOf(c.Ref), "sealed").Result()
		f.must(err)
		equal(f, name+": sealed", sealed, "sealed by "+name)
	}
}

// everyLimitLives: a key of a bucket that has no life would never go.
func (f *fixture) everyLimitLives() {
	for _, c := range f.kinds(3) {
		c.Ban = bucket.Ban{Denials: 2, Within: time.Minute, For: time.Minute}
		f.charged(5, c)
	}
	keys, err := f.raw.Keys(f.ctx(), "annona:1:*").Result()
	f.must(err)
	for _, key := range keys {
		life, err := f.raw.PTTL(f.ctx(), key).Result()
		f.must(err)
		if bounded := strings.HasSuffix(key, ":shard") || strings.HasSuffix(key, ":holders") || strings.HasSuffix(key, ":bans"); life < 0 && !bounded {
			f.Errorf("%s has no life", key)
		}
	}
}
