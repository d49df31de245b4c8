package bucket_test

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/limit"
)

// TestBadArguments: what no script may be asked is an error before anything is sent.
func TestBadArguments(t *testing.T) {
	server := miniredis.RunT(t)
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "embedded"})
	charge := func(change func(*bucket.Charge)) bucket.Request {
		r := oneOf(5)
		change(&r.Charges[0])
		return r
	}
	many := bucket.Request{}
	for i := range bucket.MaxCharges + 1 {
		c := oneOf(5).Charges[0]
		c.Key[1] = byte(i)
		many.Charges = append(many.Charges, c)
	}
	twice := oneOf(5)
	twice.Charges = append(twice.Charges, twice.Charges[0])
	waits := oneOf(5)
	waits.WaitFor = -time.Second
	for what, r := range map[string]bucket.Request{
		"no charge":        {},
		"too many charges": many,
		"one bucket twice": twice,
		"negative wait":    waits,
		"negative cost":    charge(func(c *bucket.Charge) { c.Cost = -1 }),
		"huge cost":        charge(func(c *bucket.Charge) { c.Cost = limit.MaxTokens + 1 }),
		"huge capacity":    charge(func(c *bucket.Charge) { c.Part.Capacity = limit.MaxTokens + 1 }),
		"negative rate":    charge(func(c *bucket.Charge) { c.Part.Rate = -1 }),
		"huge rate":        charge(func(c *bucket.Charge) { c.Part.Rate = limit.MaxRate + 1 }),
		"negative pool":    charge(func(c *bucket.Charge) { c.Pool.Capacity = -1 }),
		"negative shard":   charge(func(c *bucket.Charge) { c.Shard = -1 }),
		"unknown shard":    charge(func(c *bucket.Charge) { c.Shard = bucket.MaxShards }),
		"no policy":        charge(func(c *bucket.Charge) { c.Policy = "" }),
		"long variant":     charge(func(c *bucket.Charge) { c.Variant = strings.Repeat("x", 1000) }),
		"long identity":    charge(func(c *bucket.Charge) { c.Sealed = make([]byte, 5000) }),
		"gives back ever":  {Charges: oneOf(5).Charges, GiveBackFor: 25 * time.Hour},
		"huge revision":    charge(func(c *bucket.Charge) { c.Revision = math.MaxUint64 }),
	} {
		if _, err := store.Take(t.Context(), r); err == nil {
			t.Errorf("%s: no error", what)
		} else {
			wantCouldNotAsk(t, err)
		}
	}
	_, err := store.Ask(t.Context(), []bucket.Plan{{Return: -1, Deadline: time.Second}})
	wantCouldNotAsk(t, err)
	_, err = store.Ask(t.Context(), []bucket.Plan{{}})
	wantCouldNotAsk(t, err)
	_, err = store.Fill(t.Context(), []bucket.Grant{{Granted: -1}})
	wantCouldNotAsk(t, err)
	_, err = store.Fill(t.Context(), []bucket.Grant{{TTL: -1 * time.Second}})
	wantCouldNotAsk(t, err)
	_, err = store.Due(t.Context(), 0, 1)
	wantCouldNotAsk(t, err)
	_, err = store.GiveBack(t.Context(), []bucket.Back{{Tokens: 1}})
	wantCouldNotAsk(t, err)
	_, err = store.GiveBack(t.Context(), []bucket.Back{{}})
	wantCouldNotAsk(t, err)
	wantCouldNotAsk(t, store.Tick(t.Context(), 0))
	if n := server.CommandCount(); n != 0 {
		t.Errorf("%d commands were sent, want none", n)
	}
}

// TestLongestTake: 32 policies in 32 shards are one call of 64 keys.
func TestLongestTake(t *testing.T) {
	store := openStore(t, bucket.Config{Addrs: []string{buckettest.StartRedis(t).Addr}})
	var r bucket.Request
	for i := range bucket.MaxCharges {
		c := oneOf(5).Charges[0]
		c.Key[1], c.Shard = byte(i), i
		r.Charges = append(r.Charges, c)
	}
	v, err := store.Take(t.Context(), r)
	if err != nil || v.Outcome != bucket.Admitted || len(v.States) != bucket.MaxCharges {
		t.Fatalf("%+v, %v", v, err)
	}
}

// FuzzTake asks for takes of arbitrary numbers: they are refused before anything is sent, or answered as the model answers.
func FuzzTake(f *testing.F) {
	server := miniredis.RunT(f)
	store := openStore(f, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "embedded"})
	f.Add(int64(1), int64(20), int64(5_000_000), int64(0), true, uint64(1), "", int64(0))
	f.Add(int64(1_000_000_000), int64(1_000_000_000), int64(1_000_000_000_000_000), int64(1_000_000_000), false, uint64(1)<<53, "tier:x", int64(1)<<50)
	f.Add(int64(-1), int64(-1), int64(-1), int64(-1), true, uint64(math.MaxUint64), "\x00\n", int64(-5))
	f.Fuzz(func(t *testing.T, cost, capacity, rate, pool int64, leased bool, revision uint64, variant string, elapsed int64) {
		server.FlushAll()
		at := time.UnixMicro(1_790_000_000_000_000)
		server.SetTime(at)
		r := bucket.Request{MayWait: true, WaitFor: time.Second, Charges: []bucket.Charge{{
			Ref: bucket.Ref{Shard: 1}, Policy: "p", Variant: variant, Revision: revision, Leased: leased, Cost: limit.Tokens(cost),
			Part: limit.Budget{Capacity: limit.Tokens(capacity), Rate: limit.Rate(rate)},
			Pool: limit.Budget{Capacity: limit.Tokens(pool)}, Sealed: []byte(variant),
		}}}
		model := buckettest.NewModel()
		model.Begin(limit.Micros(at.UnixMicro()), 1, "")
		for range 3 {
			got, err := store.Take(t.Context(), r)
			if err != nil {
				if server.Exists("annona:1:{s01}:shard") {
					t.Fatalf("sent, and failed: %v", err)
				}
				return
			}
			want, ok := model.Take(limit.Micros(at.UnixMicro()), r)
			if !ok {
				t.Fatalf("Take(%+v) could not be asked, says the model", r)
			}
			if want.Outcome != got.Outcome || want.States[0] != got.States[0] {
				t.Fatalf("Take(%+v) = %+v, model says %+v", r, got, want)
			}
			at = at.Add(time.Duration(uint64(elapsed)%(1<<50)) * time.Microsecond)
			server.SetTime(at)
			server.HSet("annona:1:{s01}:shard", "tick", strconv.FormatInt(at.UnixMicro(), 10))
		}
	})
}

// FuzzReplies: no reply, however odd, is read as a decision that it is not, and none panics.
func FuzzReplies(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0}, 1)
	f.Add([]byte{1, 255, 3}, 0)
	f.Fuzz(func(t *testing.T, data []byte, charges int) {
		reply := make([]any, 0, len(data))
		for _, b := range data {
			switch b % 8 {
			case 0:
				reply = append(reply, string(data))
			case 1:
				reply = append(reply, nil)
			case 2:
				reply = append(reply, []any{int64(b)})
			default:
				reply = append(reply, int64(int8(b)))
			}
		}
		r := bucket.Request{
			Charges: make([]bucket.Charge, min(max(charges, 0), bucket.MaxCharges)), GiveBackFor: time.Duration(charges % 2),
		}
		if v, err := bucket.ParseVerdict(reply, r); err == nil {
			if len(v.States) != len(r.Charges) || v.Outcome < bucket.Admitted || v.Outcome > bucket.Wait {
				t.Errorf("reply %v was read as %+v", reply, v)
			}
		}
		_, _ = bucket.ParseView(bucket.Ref{}, reply)
		_, _ = bucket.ParseAsked(bucket.Plan{}, reply)
		_, _ = bucket.ParseDue(0, reply)
		_, _ = bucket.ParseGateways(reply)
		_, _ = bucket.ParseMirror(reply)
		_, _ = bucket.ParseClocks(reply, make([]int, len(r.Charges)), time.Time{})
		_, _ = bucket.ParseAnnouncement(string(data))
	})
}
