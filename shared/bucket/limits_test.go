package bucket_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/limit"
)

// limitOf is a charge of cost 1 of a limit of n an hour by a.
func limitOf(t testing.TB, a limit.Algorithm, n limit.Tokens, key uint64) bucket.Charge {
	t.Helper()
	c := bucket.Charge{Policy: a.String(), Revision: 1, Algorithm: a, Cost: 1, Sealed: make([]byte, 48), Part: limit.Budget{Capacity: n}}
	binary.BigEndian.PutUint64(c.Key[:], key)
	c.Shard = c.Key.Shard(32)
	if a.Windowed() {
		window, err := limit.Every(time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		c.Window = window
	}
	return c
}

// TestOneLeft_TwoGateways: two gateways ask for the last token, or slot, at the same instant, 10,000 times by each algorithm:
// exactly one is admitted.
func TestOneLeft_TwoGateways(t *testing.T) {
	const rounds, atOnce = 10_000, 50
	server := buckettest.StartRedis(t)
	var stores [2]*bucket.Store
	var holders [2]bucket.Holder
	for i := range stores {
		stores[i] = openStore(t, bucket.Config{Addrs: []string{server.Addr}, PoolSize: atOnce})
		holders[i] = bucket.NewHolder()
		if err := stores[i].Hold(t.Context(), holders[i], 32); err != nil {
			t.Fatal(err)
		}
	}
	ticking(t, stores[0])
	renewing(t, stores[0], holders[:]...)
	for _, a := range limit.Algorithms() {
		t.Run(a.String(), func(t *testing.T) {
			admitted := make([]int, rounds) // by one goroutine each
			var wg sync.WaitGroup
			for worker := range atOnce {
				wg.Go(func() {
					for round := worker; round < rounds; round += atOnce {
						for again := range uint64(5) { // another key where a busy machine's tick was late
							n, err := race(t.Context(), stores, holders, limitOf(t, a, 1, uint64(round)+again*rounds))
							if admitted[round] = n; err == nil {
								break
							}
						}
					}
				})
			}
			wg.Wait()
			if i := slices.IndexFunc(admitted, func(n int) bool { return n != 1 }); i >= 0 {
				t.Errorf("round %d: %d admitted, want 1", i, admitted[i])
			}
		})
	}
}

// race takes c by both stores at once and returns how many were admitted.
func race(ctx context.Context, stores [2]*bucket.Store, holders [2]bucket.Holder, c bucket.Charge) (admitted int, err error) {
	var outcomes [2]bucket.Outcome
	var errs [2]error
	var wg sync.WaitGroup
	for i := range stores {
		wg.Go(func() {
			v, err := stores[i].Take(ctx, bucket.Request{Charges: []bucket.Charge{c}, Holder: holders[i]})
			outcomes[i], errs[i] = v.Outcome, err
		})
	}
	wg.Wait()
	for _, o := range outcomes {
		if o == bucket.Admitted {
			admitted++
		}
	}
	return admitted, errors.Join(errs[:]...)
}

// renewing renews holders while the test runs.
func renewing(t testing.TB, store *bucket.Store, holders ...bucket.Holder) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		every := time.NewTicker(bucket.RenewEvery)
		defer every.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-every.C:
				for _, h := range holders {
					if gone, err := store.Renew(ctx, h, 32); len(gone) > 0 {
						t.Errorf("gone in shards %v, %v", gone, err)
					}
				}
			}
		}
	})
}

// TestCase04_ClockOfAnotherYear: a store whose clock is a year from ours charges the window that it is in, in one further call.
func TestCase04_ClockOfAnotherYear(t *testing.T) {
	h := miniHarness(t)
	at := time.Date(2031, 3, 1, 11, 59, 59, 0, time.UTC)
	for range 3 {
		h.SetTime(at)
		c := limitOf(t, limit.FixedWindow, 2, 1)
		raw := redis.NewClient(&redis.Options{Addr: h.Addr, Protocol: 2})
		defer raw.Close()
		if err := raw.FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		v, err := h.Store.Take(t.Context(), bucket.Request{Charges: []bucket.Charge{c}})
		if err != nil || v.Outcome != bucket.Admitted {
			t.Fatalf("take = %+v, %v", v, err)
		}
		if got, want := v.States[0].Reset, limit.Micros(c.Window.Next(at).Sub(at).Microseconds()); got != want {
			t.Errorf("reset = %d, want %d", got, want)
		}
		at = at.AddDate(3, 0, 0)
	}
}

// benchCharges are what is measured: a limit that is never reached, and one that is.
func benchCharges(b testing.TB) map[string]bucket.Charge {
	all := map[string]bucket.Charge{}
	for _, a := range limit.Algorithms() {
		all[a.String()] = limitOf(b, a, min(a.MaxN(), 1_000_000), 0)
	}
	bucketOf := all[limit.TokenBucket.String()]
	bucketOf.Part.Rate = 300 // about a token an hour: the record lives for two hours
	all[limit.TokenBucket.String()] = bucketOf
	bucketOf.MaxDelay = time.Second
	all["leaky bucket"] = bucketOf
	return all
}

// BenchmarkTakeBy is one take by each algorithm over 1,000 keys, against a real server; compare with BenchmarkRawEvalsha.
func BenchmarkTakeBy(b *testing.B) {
	for name, c := range benchCharges(b) {
		b.Run(name, func(b *testing.B) {
			server, store, holder := benchStore(b)
			var keys uint64
			for b.Loop() {
				keys++
				c.Key[6], c.Key[7] = byte(keys%1000>>8), byte(keys%1000)
				c.Shard = c.Key.Shard(32)
				if _, err := store.Take(b.Context(), bucket.Request{Charges: []bucket.Charge{c}, Holder: holder}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(usecPerCall(b, server), "script-µs/op")
		})
	}
}

// BenchmarkFullLog is a take of a log that holds 10,000 entries, the largest limit: admitted where one has just gone out of the
// window, or denied. It reports the script's time.
func BenchmarkFullLog(b *testing.B) {
	for name, heavy := range map[string]bool{"costs of 1": false, "costs of 1 to 20": true} {
		b.Run(name, func(b *testing.B) {
			server, store, holder := benchStore(b)
			window, err := limit.Every(5 * time.Second)
			if err != nil {
				b.Fatal(err)
			}
			c := limitOf(b, limit.SlidingWindowLog, limit.MaxLogTokens, 1)
			c.Window = window
			raw := server.Client()
			take := func(i int) {
				if heavy {
					c.Cost = limit.Tokens(1 + i%20)
				}
				if _, err := store.Take(b.Context(), bucket.Request{Charges: []bucket.Charge{c}, Holder: holder}); err != nil {
					b.Fatal(err)
				}
			}
			before := memory(b, server)
			for i := range 10_000 {
				take(i)
			}
			holds := memory(b, server) - before
			raw.ConfigSet(b.Context(), "slowlog-log-slower-than", "0")
			raw.ConfigSet(b.Context(), "slowlog-max-len", "100000")
			raw.Do(b.Context(), "SLOWLOG", "RESET")
			raw.ConfigResetStat(b.Context())
			for i := 0; b.Loop(); i++ {
				take(i)
			}
			b.ReportMetric(float64(holds)/10_000, "B/entry")
			b.ReportMetric(usecPerCall(b, server), "script-µs/op")
			entries, err := raw.SlowLogGet(b.Context(), -1).Result()
			if err != nil {
				b.Fatal(err)
			}
			var times []time.Duration
			for _, e := range entries {
				if len(e.Args) > 1 && strings.EqualFold(e.Args[0], "evalsha") && e.Args[2] == "3" {
					times = append(times, e.Duration)
				}
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "script-p99-µs")
			b.ReportMetric(float64(times[len(times)-1].Microseconds()), "script-max-µs")
		})
	}
}

func benchStore(b *testing.B) (*buckettest.Server, *bucket.Store, bucket.Holder) {
	b.Helper()
	server := buckettest.StartRedis(b)
	store := openStore(b, bucket.Config{Addrs: []string{server.Addr}, PoolSize: 64})
	holder := bucket.NewHolder()
	if err := store.Hold(b.Context(), holder, 32); err != nil {
		b.Fatal(err)
	}
	ticking(b, store)
	renewing(b, store, holder)
	return server, store, holder
}

// usecPerCall is the server's own account of a script call, in µs.
func usecPerCall(b *testing.B, server *buckettest.Server) float64 {
	b.Helper()
	info, err := server.Client().Info(b.Context(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "cmdstat_evalsha:")
	_, rest, _ = strings.Cut(rest, "usec_per_call=")
	number, _, _ := strings.Cut(rest, ",")
	usec, err := strconv.ParseFloat(number, 64)
	if err != nil {
		b.Fatal(err)
	}
	return usec
}

// BenchmarkMemory is the memory of 1,000,000 keys by each algorithm, of one take each, and the time of those takes. Run it with
// -benchtime 1x.
func BenchmarkMemory(b *testing.B) {
	const keys, atOnce = 1_000_000, 32 // few enough that the tick comes in time
	for name, c := range benchCharges(b) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				server, store, holder := benchStore(b)
				before := memory(b, server)
				begun := time.Now()
				fillKeys(b, store, holder, c, keys, atOnce)
				b.ReportMetric(float64(time.Since(begun).Microseconds())/keys, "µs/take")
				b.ReportMetric(float64(memory(b, server)-before)/keys, "B/key")
				b.ReportMetric(usecPerCall(b, server), "script-µs/op")
			}
		})
	}
}

// fillKeys takes each of so many keys once.
func fillKeys(b *testing.B, store *bucket.Store, holder bucket.Holder, c bucket.Charge, keys, atOnce int) {
	b.Helper()
	var wg sync.WaitGroup
	for worker := range atOnce {
		wg.Go(func() {
			c := c
			for i := worker; i < keys; i += atOnce {
				binary.BigEndian.PutUint64(c.Key[:], uint64(i))
				c.Shard = c.Key.Shard(32)
				request := bucket.Request{Charges: []bucket.Charge{c}, Holder: holder}
				_, err := store.Take(b.Context(), request)
				for tries := 0; err != nil && tries < 100; tries++ { // a busy machine's tick may be late
					<-time.After(100 * time.Millisecond)
					_, err = store.Take(b.Context(), request)
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func memory(b *testing.B, server *buckettest.Server) int64 {
	b.Helper()
	info, err := server.Client().Info(b.Context(), "memory").Result()
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if text, ok := strings.CutPrefix(line, "used_memory:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatal(fmt.Errorf("no used_memory in %q", info))
	return 0
}
