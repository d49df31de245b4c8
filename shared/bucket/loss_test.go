package bucket_test

import (
	"context"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/limit"
)

// takes charges r as soon as the store can be asked, and fails after 5 s.
func takes(t *testing.T, store *bucket.Store, r bucket.Request) bucket.Verdict {
	t.Helper()
	var v bucket.Verdict
	err := buckettest.Poll(t.Context(), 5*time.Second, func() (err error) {
		v, err = store.Take(t.Context(), r)
		return err
	})
	if err != nil {
		t.Fatalf("no recovery: %v", err)
	}
	return v
}

// ticking keeps the store's clock vouched for until the test ends.
func ticking(t testing.TB, store *bucket.Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { store.Ticks(ctx, func() int { return 32 }) })
}

// TestE3_OnLoss: what a lost store makes of a bucket of scope region that it does not know any more.
func TestE3_OnLoss(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, server *buckettest.Server){
		"FLUSHALL": func(t *testing.T, server *buckettest.Server) {
			t.Helper()
			if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
		},
		"restart without data": func(_ *testing.T, server *buckettest.Server) { server.Restart() },
	} {
		for _, empty := range []bool{false, true} {
			t.Run(name+map[bool]string{false: ", on_loss full", true: ", on_loss empty"}[empty], func(t *testing.T) {
				server := buckettest.StartRedis(t)
				store := openStore(t, bucket.Config{Addrs: []string{server.Addr}})
				r := oneOf(3)
				takes(t, store, r)
				r.Charges[0].OnLossEmpty = empty
				lose(t, server)
				v := takes(t, store, r)
				if admitted := v.Outcome == bucket.Admitted; admitted == empty {
					t.Errorf("outcome after the loss = %d", v.Outcome)
				}
			})
		}
	}
	t.Run("restart with data, on_loss empty", func(t *testing.T) {
		server := buckettest.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
		store := openStore(t, bucket.Config{Addrs: []string{server.Addr}})
		r := oneOf(3)
		takes(t, store, r)
		r.Charges[0].OnLossEmpty = true
		server.Restart()
		takes(t, store, r)
		if got := level(t, store, 3); got != 1 {
			t.Errorf("level = %d, want 1: what is known stays known", got)
		}
	})
}

// TestE1_PromotedReplica: a replica that lost writes is another server, though its record says otherwise and though the
// connection was there before the promotion: its leases are void and its allotments empty, and a bucket of scope region has what it knows.
func TestE1_PromotedReplica(t *testing.T) {
	master, replica := buckettest.StartRedis(t), buckettest.StartRedis(t)
	host, port, err := net.SplitHostPort(master.Addr)
	if err != nil {
		t.Fatal(err)
	}
	store := openStore(t, bucket.Config{Addrs: []string{master.Addr}})
	second := replica.Client()
	known, leased := oneOf(10), oneOf(10)
	leased.Charges[0].Key[3], leased.Charges[0].Leased, leased.Charges[0].Policy = 1, true, "g"
	if err := store.Vouch(t.Context(), 32); err != nil {
		t.Fatal(err)
	}
	ticking(t, store)
	takes(t, store, known)
	takes(t, store, leased)
	if err := second.ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	err = buckettest.Poll(t.Context(), 10*time.Second, func() error {
		info, err := second.Info(t.Context(), "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = context.DeadlineExceeded
		}
		return err
	})
	if err != nil {
		t.Fatalf("the replica does not follow: %v", err)
	}
	var epochs begun
	after := openStore(t, bucket.Config{Addrs: []string{replica.Addr}, EpochBegun: epochs.add})
	// It is a replica still: nothing can be asked of it.
	_, err = after.Take(t.Context(), known)
	wantCouldNotAsk(t, err)
	// What the master admits from now on never reaches the replica.
	if err := second.ReplicaOf(t.Context(), "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		takes(t, store, known)
		takes(t, store, leased)
	}
	// The connection is the one from before the promotion: no new one tells.
	if v := takes(t, after, leased); v.Outcome != bucket.Denied {
		t.Errorf("an allotment that lost writes: %+v, want denied", v)
	}
	takes(t, after, known)
	if got := level(t, after, 10); got != 8 {
		t.Errorf("level of scope region = %d, want 8: the 9 that it knew, less 1", got)
	}
	if got := epochs.String(); got != "server" {
		t.Errorf("epochs begun = %s, want server", got)
	}
}

// undisturbed takes again and again for a period in which each take is answered. It tells whether that needed more than one: on a
// machine that stands still for seconds no tick comes in time, whoever ticks.
func undisturbed(t *testing.T, period time.Duration, take func() error) (stood bool) {
	t.Helper()
	var last error
	for attempt := range 5 {
		// After a standstill an epoch begins for the clock; only then another period says anything.
		if buckettest.Poll(t.Context(), 10*time.Second, func() error { last = take(); return last }) != nil {
			break
		}
		end := time.Now().Add(period)
		err := buckettest.Poll(t.Context(), period+5*time.Second, func() error {
			if last = take(); last == nil && time.Now().Before(end) {
				return context.DeadlineExceeded
			}
			return nil
		})
		if err == nil && last == nil {
			return attempt > 0
		}
	}
	t.Fatalf("in no %s was every take answered; the last: %v", period, last)
	return true
}

// TestE2_OneTickerIsEnough: while any process of a region ticks, a store can be asked; 2 s after the last it cannot.
func TestE2_OneTickerIsEnough(t *testing.T) {
	server := buckettest.StartRedis(t)
	var epochs begun
	one := openStore(t, bucket.Config{Addrs: []string{server.Addr}, EpochBegun: epochs.add})
	two := openStore(t, bucket.Config{Addrs: []string{server.Addr}, EpochBegun: epochs.add})
	takes(t, one, oneOf(1000))
	var wg sync.WaitGroup
	first, stopFirst := context.WithCancel(t.Context())
	second, stopSecond := context.WithCancel(t.Context())
	defer wg.Wait()
	defer stopSecond()
	defer stopFirst()
	shards := func() int { return 32 }
	wg.Go(func() { one.Ticks(first, shards) })
	wg.Go(func() { two.Ticks(second, shards) })
	take := func() error {
		_, err := one.Take(t.Context(), oneOf(1000))
		return err
	}
	stood := undisturbed(t, 3*time.Second, take)
	stopFirst()
	stood = undisturbed(t, 3*time.Second, take) || stood
	if strings.Contains(epochs.String(), "clock") && !stood {
		t.Errorf("an epoch began for the clock while somebody ticked")
	}
	stopSecond()
	err := buckettest.Poll(t.Context(), 5*time.Second, func() error {
		if _, err := one.Take(t.Context(), oneOf(1000)); err == nil {
			return context.DeadlineExceeded
		}
		return nil
	})
	if err != nil {
		t.Error("the store can be asked though nobody ticks")
	}
}

// TestA3_EntriesGo: the entry of a policy that nobody asks for any more goes when all of its buckets are surely full; the
// others stay.
func TestA3_EntriesGo(t *testing.T) {
	server := miniredis.RunT(t)
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr()}, ServerID: "embedded"})
	const record = "annona:1:{s07}:shard"
	used, old, slow := oneOf(10), oneOf(10), oneOf(10)
	old.Charges[0].Key[3], old.Charges[0].Policy, old.Charges[0].Part.Rate = 1, "old", limit.MicroPerToken
	slow.Charges[0].Key[3], slow.Charges[0].Policy = 2, "slow" // without refill it is never full
	for _, r := range []bucket.Request{used, old, slow} {
		takes(t, store, r)
	}
	long := time.Now().Add(-3 * time.Hour).UnixMicro()
	for _, name := range []string{"limit:3:old:", "limit:4:slow:"} {
		entry := server.HGet(record, name)
		server.HSet(record, name, entry[:strings.LastIndex(entry, " ")+1]+strconv.FormatInt(long, 10))
	}
	err := buckettest.Poll(t.Context(), 5*time.Second, func() error {
		if err := store.Tick(t.Context(), 32); err != nil {
			return err
		}
		if server.HGet(record, "limit:3:old:") != "" {
			return context.DeadlineExceeded
		}
		return nil
	})
	if err != nil {
		t.Errorf("the entry stays: %v", err)
	}
	for _, name := range []string{"limit:1:p:", "limit:4:slow:"} {
		if server.HGet(record, name) == "" {
			t.Errorf("%s is gone", name)
		}
	}
}

// TestE4_EvictionIsToldOf: a server that would evict is no error, and is named until it is set right.
func TestE4_EvictionIsToldOf(t *testing.T) {
	server := buckettest.StartRedis(t, "--maxmemory-policy", "allkeys-lru")
	store := openStore(t, bucket.Config{Addrs: []string{server.Addr}})
	if err := store.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := store.Warnings(); len(got) != 1 || !strings.Contains(got[0], "allkeys-lru") || !strings.Contains(got[0], "noeviction") {
		t.Errorf("warnings = %q, want one that names both policies", got)
	}
	if err := server.Client().ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err(); err != nil {
		t.Fatal(err)
	}
	if err := store.Ping(t.Context()); err != nil || len(store.Warnings()) > 0 {
		t.Errorf("ping: %v, warnings %q, want none", err, store.Warnings())
	}
}
