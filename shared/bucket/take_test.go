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

// TestBadArguments_Limits: the same of the other algorithms, bans, holders and blocks.
func TestBadArguments_Limits(t *testing.T) {
	server := miniredis.RunT(t)
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "embedded"})
	charge := func(change func(*bucket.Charge)) bucket.Request {
		r := oneOf(5)
		change(&r.Charges[0])
		return r
	}
	for what, r := range map[string]bucket.Request{
		"unknown algorithm":      charge(func(c *bucket.Charge) { c.Algorithm = 5 }),
		"a window of nothing":    charge(func(c *bucket.Charge) { c.Algorithm = limit.FixedWindow }),
		"a bucket with a window": charge(func(c *bucket.Charge) { c.Window = limit.Days(nil) }),
		"a log by the calendar": charge(func(c *bucket.Charge) {
			c.Algorithm, c.Part.Rate, c.Window = limit.SlidingWindowLog, 0, limit.Days(nil)
		}),
		"a window with a rate":    charge(func(c *bucket.Charge) { c.Algorithm, c.Part.Rate, c.Window = limit.FixedWindow, 1, limit.Days(nil) }),
		"a leased window":         charge(func(c *bucket.Charge) { c.Algorithm, c.Leased, c.Window = limit.FixedWindow, true, limit.Days(nil) }),
		"a leased queue":          charge(func(c *bucket.Charge) { c.Leased, c.MaxDelay = true, time.Second }),
		"a log of 10,001":         charge(func(c *bucket.Charge) { c.Algorithm, c.Part.Capacity = limit.SlidingWindowLog, limit.MaxLogTokens+1 }),
		"a window above 10^12":    charge(func(c *bucket.Charge) { c.Algorithm, c.Part.Capacity = limit.FixedWindow, limit.MaxWindowTokens+1 }),
		"slots without a holder":  charge(func(c *bucket.Charge) { c.Algorithm, c.Part.Rate = limit.Concurrency, 0 }),
		"a delay of 25 h":         charge(func(c *bucket.Charge) { c.MaxDelay = 25 * time.Hour }),
		"a ban for nothing":       charge(func(c *bucket.Charge) { c.Ban = bucket.Ban{Denials: 1, Within: time.Second} }),
		"a ban after no denials":  charge(func(c *bucket.Charge) { c.Ban = bucket.Ban{Within: time.Second, For: time.Second} }),
		"a ban for two years":     charge(func(c *bucket.Charge) { c.Ban = bucket.Ban{Denials: 1, Within: time.Second, For: 17520 * time.Hour} }),
		"negative denials":        charge(func(c *bucket.Charge) { c.Denials = -1 }),
		"more keys than 64 in it": manyLogs(t),
	} {
		if _, err := store.Take(t.Context(), r); err == nil {
			t.Errorf("%s: no error", what)
		} else {
			wantCouldNotAsk(t, err)
		}
	}
	wantCouldNotAsk(t, store.Hold(t.Context(), 0, 32))
	_, err := store.Renew(t.Context(), 1, 0)
	wantCouldNotAsk(t, err)
	_, _, err = store.Bans(t.Context(), 32, 32, 1)
	wantCouldNotAsk(t, err)
	_, err = store.Unban(t.Context(), bucket.Ref{Shard: -1})
	wantCouldNotAsk(t, err)
	wantCouldNotAsk(t, store.Block(t.Context(), bucket.Block{Left: -1}))
	wantCouldNotAsk(t, store.Correct(t.Context(), []bucket.Correction{{Actual: limit.MaxTokens + 1}}))
	wantCouldNotAsk(t, store.Correct(t.Context(), []bucket.Correction{{Receipt: bucket.Receipt{Ref: bucket.Ref{Shard: 1}}}}))
	if n := server.CommandCount(); n != 0 {
		t.Errorf("%d commands were sent, want none", n)
	}
}

// manyLogs is a take of 32 logs, which have two keys each.
func manyLogs(t *testing.T) (r bucket.Request) {
	t.Helper()
	for i := range uint64(bucket.MaxCharges) {
		r.Charges = append(r.Charges, limitOf(t, limit.SlidingWindowLog, 5, i<<40))
	}
	return r
}

// TestOpenRefusesWhatCanNeverWork lists the configurations that no waiting makes good.
func TestOpenRefusesWhatCanNeverWork(t *testing.T) {
	for what, cfg := range map[string]bucket.Config{
		"cluster":          {Mode: "cluster", Addrs: []string{"a:1", "b:1"}},
		"sentinel":         {Mode: "sentinel", Addrs: []string{"a:1"}},
		"no server":        {},
		"two servers":      {Mode: "single", Addrs: []string{"a:1", "b:1"}},
		"negative timeout": {Addrs: []string{"a:1"}, Timeout: -1},
		"no password file": {Addrs: []string{"a:1"}, PasswordFile: t.TempDir() + "/none"},
	} {
		if store, err := bucket.Open(cfg); err == nil {
			_ = store.Close()
			t.Errorf("%s: no error", what)
		}
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

// FuzzTakeBy asks for takes by any algorithm, of arbitrary numbers: they are refused before anything is sent, or answered within
// their bounds, and what they took can be given back and corrected.
func FuzzTakeBy(f *testing.F) {
	server := miniredis.RunT(f)
	store := openStore(f, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "embedded"})
	f.Add(uint8(1), int64(1), int64(5), int64(time.Minute), int64(0), 3, int64(0), "v", int64(2))
	f.Add(uint8(2), int64(9_999), int64(10_000), int64(time.Second), int64(1), 1, int64(time.Second), "", int64(65_536))
	f.Add(uint8(3), int64(1)<<39, int64(1_000_000_000_000), int64(31*24*time.Hour), int64(0), 0, int64(0), "%s {", int64(1)<<39)
	f.Add(uint8(4), int64(3), int64(4), int64(0), int64(0), 2, int64(time.Hour), "x y", int64(3))
	f.Add(uint8(0), int64(3), int64(4), int64(0), int64(time.Hour), 2, int64(time.Hour), "x y", int64(1_000_000_000))
	f.Fuzz(func(t *testing.T, algorithm uint8, cost, capacity, length, delay int64, denials int, banFor int64, text string, actual int64) {
		server.FlushAll()
		server.SetTime(time.UnixMicro(1_790_000_000_000_000))
		window, _ := limit.Every(time.Duration(length))
		c := bucket.Charge{
			Ref: bucket.Ref{Shard: 1}, Policy: "p" + text, Variant: text, Algorithm: limit.Algorithm(algorithm), Window: window,
			Cost: limit.Tokens(cost), Part: limit.Budget{Capacity: limit.Tokens(capacity)}, Sealed: []byte(text), MaxDelay: time.Duration(delay),
		}
		if denials != 0 {
			c.Ban = bucket.Ban{Denials: denials, Within: time.Minute, For: time.Duration(banFor)}
		}
		if algorithm == 0 {
			c.Part.Rate = limit.Rate(length)
		}
		r := bucket.Request{Charges: []bucket.Charge{c}, GiveBackFor: time.Minute, Holder: 1}
		if err := store.Hold(t.Context(), 1, 2); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			v, err := store.Take(t.Context(), r)
			if err != nil {
				if server.Exists("annona:1:{s01}:b:" + c.Key.String()) {
					t.Fatalf("sent, and failed: %v", err)
				}
				return
			}
			s := v.States[0]
			if s.Remaining < 0 || s.Remaining > c.Part.Capacity || s.RetryIn < 0 || s.RetryIn > limit.Never || s.Reset < 0 || s.Reset > limit.Never || s.Delay < 0 {
				t.Fatalf("Take(%+v) = %+v", r, v)
			}
			if v.Outcome != bucket.Admitted || c.Cost == 0 {
				continue
			}
			err = store.Correct(t.Context(), []bucket.Correction{{Charge: c, Receipt: v.Receipts[0], Actual: limit.Tokens(actual)}})
			refused := actual < 0 || limit.Tokens(actual) > max(limit.MaxTokens, c.Algorithm.MaxN()) || c.Algorithm == limit.Concurrency
			if (err != nil) != refused {
				t.Fatalf("corrected from %d to %d: %v", cost, actual, err)
			}
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
			if len(v.States) != len(r.Charges) || v.Outcome < bucket.Admitted || v.Outcome > bucket.Banned {
				t.Errorf("reply %v was read as %+v", reply, v)
			}
		}
		_, _ = bucket.ParseView(bucket.Ref{}, reply)
		_, _ = bucket.ParseAsked(bucket.Plan{}, reply)
		_, _ = bucket.ParseDue(0, reply)
		_, _ = bucket.ParseGateways(reply)
		_, _ = bucket.ParseBans(1, reply)
		if b, ok, err := bucket.ParseBlock("000102030405060708090a0b0c0d0e0f", string(data), 5); err == nil && ok && b.Left < 0 {
			t.Errorf("a block %q was read as %+v", data, b)
		}
		_, _ = bucket.ParseMirror(reply)
		_, _ = bucket.ParseClocks(reply, len(r.Charges), time.Time{})
		_, _ = bucket.ParseAnnouncement(string(data))
	})
}
