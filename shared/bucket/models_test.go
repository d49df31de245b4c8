package bucket_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/limit/limittest"
)

// reference is a model of one algorithm.
type reference interface {
	Take(at limit.Micros, cost limit.Tokens) limittest.Answer
}

// anyLimit draws a limit, and its model. Its cost is what all costs are a multiple of.
func anyLimit(t *rapid.T) (bucket.Charge, reference) {
	n := limit.Tokens(rapid.Int64Range(0, 40).Draw(t, "n"))
	large := rapid.SampledFrom([]limit.Tokens{1, limit.MaxWindowTokens/40 - 1}).Draw(t, "large")
	length := rapid.SampledFrom([]time.Duration{time.Millisecond, 7 * time.Second, time.Minute, time.Hour}).Draw(t, "window")
	window, err := limit.Every(length)
	if err != nil {
		t.Fatal(err)
	}
	c := bucket.Charge{Policy: "p", Revision: 1, Part: limit.Budget{Capacity: n}, Window: window, Cost: 1}
	switch rapid.SampledFrom([]limit.Algorithm{limit.TokenBucket, limit.FixedWindow, limit.SlidingWindowLog, limit.SlidingWindowCounter}).Draw(t, "algorithm") {
	case limit.FixedWindow:
		n *= large
		c.Algorithm, c.Part.Capacity, c.Cost = limit.FixedWindow, n, large
		if zone := rapid.SampledFrom([]string{"", "Europe/Rome", "Pacific/Apia"}).Draw(t, "zone"); zone != "" {
			in, err := time.LoadLocation(zone)
			if err != nil {
				t.Fatal(err)
			}
			c.Window = limit.Days(in)
		}
		return c, &limittest.FixedWindow{N: n, Window: c.Window}
	case limit.SlidingWindowLog:
		c.Algorithm = limit.SlidingWindowLog
		return c, &limittest.Log{N: n, Length: window.Length()}
	case limit.SlidingWindowCounter:
		n *= large
		c.Algorithm, c.Part.Capacity, c.Cost = limit.SlidingWindowCounter, n, large
		return c, &limittest.Counter{N: n, Length: window.Length()}
	default:
		c.Window = limit.Window{}
		c.Part.Capacity = max(n, 1)
		c.Part.Rate = limit.Rate(rapid.SampledFrom([]int64{1, 99_999, 1_666_666, 40_000_000}).Draw(t, "rate"))
		c.MaxDelay = rapid.SampledFrom([]time.Duration{0, time.Millisecond, 3 * time.Second, time.Hour}).Draw(t, "max_delay")
		return c, &limittest.Bucket{Budget: c.Part, MaxDelay: limit.Micros(c.MaxDelay.Microseconds())}
	}
}

// TestScriptsAreTheirModels plays the same random takes to each algorithm's script and to its plain model, at the same readings
// of a clock that goes back now and then, and compares every answer.
func TestScriptsAreTheirModels(t *testing.T) {
	server := miniredis.RunT(t)
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "embedded"})
	raw := redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = raw.Close() })
	key := byte(0)
	rapid.Check(t, func(t *rapid.T) {
		server.FlushAll()
		now := time.Date(2026, 3, 28, 22, 59, 59, 999_999_000, time.UTC)
		c, model := anyLimit(t)
		latest, each := int64(0), c.Cost
		key++
		c.Key = limit.Key{key, 1}
		length, back := max(c.Window.Longest(), 10*limit.MicrosPerSecond), int64(0)
		if rapid.Bool().Draw(t, "backwards") {
			back = -1_900_000
		}
		server.ClockTTL(back == 0) // it takes off what a key lives again when its clock passes the same time again
		later := rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, int64(length)/20), rapid.Int64Range(back, 2*int64(length)),
			rapid.SampledFrom([]int64{int64(length), int64(length) - 1, int64(length) + 1, 1}))
		for range rapid.IntRange(1, 40).Draw(t, "takes") {
			now = now.Add(time.Duration(later.Draw(t, "later")) * time.Microsecond)
			server.SetTime(now)
			if raw.Exists(t.Context(), "annona:1:{s00}:shard").Val() > 0 {
				if err := raw.HSet(t.Context(), "annona:1:{s00}:shard", "tick", now.UnixMicro()).Err(); err != nil {
					t.Fatal(err)
				}
			}
			c.Cost = each * limit.Tokens(rapid.Int64Range(0, 45).Draw(t, "cost"))
			if each > 1 && c.Cost > limit.MaxWindowTokens {
				c.Cost = 7
			}
			v, err := store.Take(t.Context(), bucket.Request{Charges: []bucket.Charge{c}})
			if err != nil {
				t.Fatal(err)
			}
			s, want := v.States[0], model.Take(limit.Micros(now.UnixMicro()), c.Cost)
			got := limittest.Answer{Admitted: v.Outcome == bucket.Admitted, Remaining: s.Remaining, RetryIn: s.RetryIn, Reset: s.Reset, Delay: s.Delay}
			if got.Admitted {
				got.RetryIn = 0 // that of another one
			}
			latest = max(latest, now.UnixMicro())
			if c.Algorithm == limit.SlidingWindowCounter && now.UnixMicro() < latest {
				got.RetryIn, got.Reset = want.RetryIn, want.Reset // which do not count how long the clock will stand still
			}
			if got != want {
				t.Fatalf("%s: Take(%s, %d) = %+v, the model says %+v", c.Algorithm, now.Format(time.RFC3339Nano), c.Cost, got, want)
			}
		}
	})
}
