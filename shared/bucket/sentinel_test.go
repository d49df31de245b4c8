package bucket_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

func openSentinel(t *testing.T, sentinels *buckettest.Sentinels, begun func(int, string)) *bucket.Store {
	t.Helper()
	return openStore(t, bucket.Config{
		Mode: "sentinel", Addrs: sentinels.Addrs(), Master: buckettest.Master, EpochBegun: begun,
	})
}

// TestE1_SentinelFailover: the master is killed and its replica promoted without the last writes: the store goes on with it, in a
// new epoch, and nothing is minted. Listeners go along.
func TestE1_SentinelFailover(t *testing.T) {
	sentinels := buckettest.StartSentinels(t)
	var epochs begun
	store := openSentinel(t, sentinels, epochs.add)
	if err := store.Vouch(t.Context(), 32); err != nil {
		t.Fatal(err)
	}
	ticking(t, store)
	known, allotted := of(7, "known", 100), leased(7, "allotted", 100)
	takes(t, store, all(known))
	takes(t, store, all(allotted))
	follows(t, sentinels, "annona:1:{s07}:b:"+known.Key.String())
	sentinels.Replica.Pause()
	if err := sentinels.Master.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "replica").Err(); err != nil {
		t.Fatal(err) // what comes now is lost
	}
	for range 20 {
		takes(t, store, all(known))
		takes(t, store, all(allotted))
	}
	sentinels.Master.Kill()
	sentinels.Replica.Resume()
	sentinels.Promoted()
	promoted := time.Now()
	takes(t, store, all(known))
	if took := time.Since(promoted); took > 5*time.Second {
		t.Errorf("served again %s after the promotion, want within 5 s", took)
	}
	if got := held(t, store, known); got != 98 {
		t.Errorf("scope region holds %d, want the 99 that the replica knew, less 1", got)
	}
	if v := takes(t, store, all(allotted)); v.Outcome == bucket.Admitted {
		t.Errorf("an allotment that lost writes: %+v", v)
	}
	if got := epochs.String(); !strings.Contains(got, "server") {
		t.Errorf("epochs begun: %q, want server", got)
	}
}

// follows waits until the replica has a key.
func follows(t *testing.T, sentinels *buckettest.Sentinels, key string) {
	t.Helper()
	client := sentinels.Replica.Client()
	err := buckettest.Poll(t.Context(), 10*time.Second, func() error {
		n, err := client.Exists(t.Context(), key).Result()
		if err == nil && n == 0 {
			err = errors.New("not there")
		}
		return err
	})
	if err != nil {
		t.Fatalf("the replica does not follow: %v", err)
	}
}

// TestReadOnlyConnectionsRecover: the master is demoted where it is, and its connections stay: within 5 s of the promotion the
// store has left it, with no call of unknown outcome on the way. Killed connections cost no more than a call.
func TestReadOnlyConnectionsRecover(t *testing.T) {
	sentinels := buckettest.StartSentinels(t)
	store := openSentinel(t, sentinels, nil)
	ticking(t, store)
	c := of(7, "known", 1000)
	takes(t, store, all(c))
	for range 3 {
		if err := sentinels.Master.Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal").Err(); err != nil {
			t.Fatal(err)
		}
		takes(t, store, all(c))
	}
	if err := sentinels.Watchers[0].Client().Do(t.Context(), "SENTINEL", "FAILOVER", buckettest.Master).Err(); err != nil {
		t.Fatal(err)
	}
	sentinels.Promoted()
	err := buckettest.Poll(t.Context(), 5*time.Second, func() error {
		if _, err := store.Take(t.Context(), all(c)); err != nil {
			return err
		}
		if got := store.Node(7); got != sentinels.Replica.Addr { // the old master serves until its sentinels demote it
			return fmt.Errorf("the store works with %s, want %s", got, sentinels.Replica.Addr)
		}
		return nil
	})
	if err != nil {
		t.Errorf("within 5 s of the promotion: %v", err)
	}
}

// TestReadOnlyBehindOneName: where one address leads to the servers by turns, a demoted one's connections are made anew.
func TestReadOnlyBehindOneName(t *testing.T) {
	first, second := buckettest.StartRedis(t), buckettest.StartRedis(t)
	proxy := startCutter(t, first.Addr)
	store := openStore(t, bucket.Config{Addrs: []string{proxy.addr}, PoolSize: 1}) // no new connection tells
	ticking(t, store)
	takes(t, store, oneOf(10))
	host, port, _ := net.SplitHostPort(second.Addr)
	proxy.lead(second.Addr) // new connections only
	if err := first.Client().ReplicaOf(t.Context(), host, port).Err(); err != nil {
		t.Fatal(err)
	}
	demoted := time.Now()
	takes(t, store, oneOf(10))
	if took := time.Since(demoted); took > 5*time.Second {
		t.Errorf("served again after %s, want within 5 s", took)
	}
}

// TestWrongModeIsToldOf: a mode that does not fit what is there is named with its remedy.
func TestWrongModeIsToldOf(t *testing.T) {
	cluster, alone := buckettest.StartCluster(t, 2, false), buckettest.StartRedis(t)
	sentinels := buckettest.StartSentinels(t)
	for want, cfg := range map[string]bucket.Config{
		"set redis.mode: cluster":              {Addrs: cluster.Addrs()[:1]},
		"set redis.mode: single":               {Mode: "cluster", Addrs: []string{alone.Addr}},
		`knows no master "other"`:              {Mode: "sentinel", Addrs: sentinels.Addrs(), Master: "other"},
		"ask a sentinel: ERR unknown command ": {Mode: "sentinel", Addrs: []string{alone.Addr}, Master: "m"},
	} {
		store := openStore(t, cfg)
		var err error
		for shard := range 32 { // some of them are not the first node's
			if _, err = store.Take(t.Context(), all(of(shard, "p", 1))); err != nil {
				break
			}
		}
		wantCouldNotAsk(t, err)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want it to say %q", cfg, err, want)
		}
	}
}

// TestDemotedMasterWarning: a master that nothing stops once it is cut off from its sentinels is named.
func TestDemotedMasterWarning(t *testing.T) {
	sentinels := buckettest.StartSentinels(t)
	store := openSentinel(t, sentinels, nil)
	warned := func() bool {
		t.Helper()
		if err := store.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(strings.Join(store.Warnings(), "\n"), "min-replicas-to-write 1")
	}
	if !warned() {
		t.Errorf("warnings: %q", store.Warnings())
	}
	if err := sentinels.Master.Client().ConfigSet(t.Context(), "min-replicas-to-write", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if warned() {
		t.Errorf("warnings: %q, want none", store.Warnings())
	}
}
