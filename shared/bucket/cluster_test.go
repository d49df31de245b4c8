package bucket_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/limit"
)

// of is a charge of cost 1 at a bucket of scope region in a shard, without refill.
func of(shard int, name string, capacity limit.Tokens) bucket.Charge {
	c := bucket.Charge{Ref: bucket.Ref{Shard: shard}, Policy: name, Cost: 1, Part: limit.Budget{Capacity: capacity}}
	copy(c.Key[:], name)
	return c
}

// leased is of scope global, with an allotment.
func leased(shard int, name string, allotment limit.Tokens) bucket.Charge {
	c := of(shard, name, allotment)
	c.Leased, c.Pool = true, limit.Budget{Capacity: 1000}
	return c
}

func all(charges ...bucket.Charge) bucket.Request { return bucket.Request{Charges: charges} }

// held is what a bucket's own part and lease hold.
func held(t *testing.T, store *bucket.Store, c bucket.Charge) limit.Tokens {
	t.Helper()
	c.Cost = 0
	v := takes(t, store, all(c))
	return v.States[0].Level.Whole() + v.States[0].Left
}

func openCluster(t *testing.T, cluster *buckettest.Cluster, begun func(int, string)) *bucket.Store {
	t.Helper()
	return openStore(t, bucket.Config{Mode: "cluster", Addrs: cluster.Addrs()[:1], EpochBegun: begun})
}

// apart returns two shards that different nodes serve.
func apart(t *testing.T, store *bucket.Store) (int, int) {
	t.Helper()
	for shard := range 32 {
		if store.Node(shard) != store.Node(0) {
			return 0, shard
		}
	}
	t.Fatal("one node serves every shard")
	return 0, 0
}

// TestSlotOf: as the cluster itself counts.
func TestSlotOf(t *testing.T) {
	client := buckettest.StartCluster(t, 1, false).Client()
	for _, key := range []string{
		"", "annona:1:mirror", "annona:1:{s07}:b:00ff", "annona:1:{s1023}:due", "{}x", "{}{a}", "a}{b", "{{a}}", "a{b}{c}", "ü{ö}",
	} {
		want, err := client.ClusterKeySlot(t.Context(), key).Result()
		if got := bucket.SlotOf(key); err != nil || int64(got) != want {
			t.Errorf("SlotOf(%q) = %d, want %d (%v)", key, got, want, err)
		}
	}
}

// TestE5_OneTokenOfTwoSlots: two gateways, ample in one slot and one token in the other: one of them is admitted each time, and
// the ample bucket is charged exactly for what was admitted.
func TestE5_OneTokenOfTwoSlots(t *testing.T) {
	const rounds = 500
	cluster := buckettest.StartCluster(t, 3, false)
	stores := []*bucket.Store{openCluster(t, cluster, nil), openCluster(t, cluster, nil)}
	ticking(t, stores[0])
	ample := of(0, "ample", 1_000_000)
	spent := ample
	spent.Cost = 500_000
	takes(t, stores[0], all(spent))
	takes(t, stores[1], all(ample))
	a, b := apart(t, stores[0])
	ample.Shard = a
	takes(t, stores[0], all(spent))
	before := held(t, stores[0], ample)
	for round := range rounds {
		scarce := of(b, fmt.Sprint("scarce-", round), 1)
		var admitted atomic.Int64
		var both sync.WaitGroup
		for _, store := range stores {
			both.Go(func() {
				v, err := store.Take(t.Context(), all(ample, scarce))
				switch {
				case err != nil:
					t.Error(err)
				case v.Outcome == bucket.Admitted:
					admitted.Add(1)
				case v.States[0].Lacking || !v.States[1].Lacking:
					t.Errorf("states of a denial: %+v", v.States)
				}
			})
		}
		if both.Wait(); admitted.Load() != 1 {
			t.Fatalf("round %d: %d admitted, want 1", round, admitted.Load())
		}
	}
	if got := before - held(t, stores[0], ample); got != rounds {
		t.Errorf("the ample bucket was charged %d for %d admitted", got, rounds)
	}
}

// TestE5_SpreadReceipts: a take over several slots that may be given back can be, by its caller; a look charges nothing.
func TestE5_SpreadReceipts(t *testing.T) {
	cluster := buckettest.StartCluster(t, 2, false)
	store := openCluster(t, cluster, nil)
	ticking(t, store)
	takes(t, store, all(of(0, "warm", 1)))
	a, b := apart(t, store)
	one, two := of(a, "one", 10), of(b, "two", 10)
	takes(t, store, all(one, two))
	r := all(one, two)
	r.GiveBackFor = time.Minute
	v := takes(t, store, r)
	if len(v.Receipts) != 2 {
		t.Fatalf("receipts: %+v", v.Receipts)
	}
	credited, err := store.GiveBack(t.Context(), []bucket.Back{{Receipt: v.Receipts[1], Tokens: 1}, {Receipt: v.Receipts[0]}})
	if err != nil || credited[0].Part.Whole() != 1 || credited[1].Part != 0 {
		t.Errorf("credited %+v, %v", credited, err)
	}
	if got := [2]limit.Tokens{held(t, store, one), held(t, store, two)}; got != [2]limit.Tokens{8, 9} {
		t.Errorf("held %v, want 8 and 9", got)
	}
}

// TestE5_UnknownIsRefused: where it is unknown whether what one slot charged came back, the answer is could not ask, not denied,
// and says that something may have been charged; so it is where a slot of several does not answer.
func TestE5_UnknownIsRefused(t *testing.T) {
	cluster := buckettest.StartCluster(t, 3, false)
	direct := openCluster(t, cluster, nil)
	ticking(t, direct)
	takes(t, direct, all(of(0, "warm", 1)))
	a, b := apart(t, direct)
	node := cluster.Nodes[cluster.Serving(a, 0)]
	proxy := startCutter(t, node.Addr)
	proxy.announce(t, node)
	store := openCluster(t, cluster, nil)
	ample, scarce := of(a, "ample", 10), of(b, "scarce", 0)
	err := buckettest.Poll(t.Context(), 10*time.Second, func() error {
		if err := store.Tick(t.Context(), 32); err != nil {
			return err
		}
		if store.Node(a) != proxy.addr {
			return errors.New("not behind the proxy")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if v := takes(t, store, all(ample, scarce)); v.Outcome != bucket.Denied || held(t, direct, ample) != v.States[0].Level.Whole() {
		t.Fatalf("with every answer: %+v, held %d", v, held(t, direct, ample))
	}
	proxy.cutAt(bucket.GiveBackSHA)
	v, err := store.Take(t.Context(), all(ample, scarce))
	if !errors.Is(err, bucket.ErrCouldNotAsk) || !errors.Is(err, bucket.ErrPartly) || proxy.lost.Load() != 1 {
		t.Errorf("the give-back's answer is lost: %+v, %v, %d lost", v, err, proxy.lost.Load())
	}
	proxy.cutAt("")
	other := cluster.Nodes[cluster.Serving(b, 0)]
	other.Kill()
	v, err = store.Take(t.Context(), all(ample, scarce))
	if !errors.Is(err, bucket.ErrCouldNotAsk) || !errors.Is(err, bucket.ErrPartly) {
		t.Errorf("a slot of two does not answer: %+v, %v", v, err)
	}
	var named interface{ Node() string }
	if !errors.As(err, &named) || named.Node() != other.Addr {
		t.Errorf("%v names not %s", err, other.Addr)
	}
}

// TestE1_Reshard: a slot that moves to another node begins a new epoch there, and at no moment of the move does a drained bucket
// admit anything. A bucket of scope region keeps what it knows; leases are void, allotments empty (E3).
func TestE1_Reshard(t *testing.T) {
	const shard = 7
	cluster := buckettest.StartCluster(t, 3, false)
	var epochs begun
	store := openCluster(t, cluster, func(s int, reason string) {
		if s == shard {
			epochs.add(s, reason)
		}
	})
	if err := store.Vouch(t.Context(), 32); err != nil {
		t.Fatal(err)
	}
	ticking(t, store)
	drained, known, allotted := of(shard, "drained", 3), of(shard, "known", 10), leased(shard, "allotted", 5)
	fresh := leased(shard, "fresh", 5)
	fresh.Key[15] = 1
	for range 3 {
		takes(t, store, all(drained))
		takes(t, store, all(known))
	}
	takes(t, store, all(allotted))
	lend(t, store, allotted, 20)
	from := cluster.Serving(shard, 0)
	to := (from + 1) % 3
	asked, admitted := 0, 0
	ask := func(c bucket.Charge) {
		if v, err := store.Take(t.Context(), all(c)); err == nil {
			asked++
			if v.Outcome == bucket.Admitted {
				admitted++
			}
		}
	}
	for _, target := range []int{to, from} {
		cluster.Move(shard, target, func(int) {
			for range 3 {
				ask(drained)
			}
			_ = store.Tick(t.Context(), 32)
		})
		ask(drained)
		ask(fresh)
	}
	if asked == 0 || admitted != 0 {
		t.Errorf("%d of %d takes of a drained or unknown bucket were admitted, want none of some", admitted, asked)
	}
	if v := takes(t, store, all(drained)); v.Outcome != bucket.Denied {
		t.Errorf("drained: %+v", v)
	}
	if got := held(t, store, known); got != 7 {
		t.Errorf("scope region holds %d, want the 7 that it knew", got)
	}
	if got := held(t, store, allotted); got != 0 {
		t.Errorf("scope global holds %d, want nothing: lease void, allotment empty", got)
	}
	if got, want := epochs.String(), strings.TrimSpace(strings.Repeat("server ", 2)); got != want {
		t.Errorf("epochs begun = %q, want one at each node that the slot came to", got)
	}
}

// lend gives c's bucket a lease.
func lend(t *testing.T, store *bucket.Store, c bucket.Charge, n limit.Tokens) {
	t.Helper()
	c.Cost = 1000
	takes(t, store, all(c)) // lacks, so the bucket is known
	views, err := store.Views(t.Context(), []bucket.Ref{c.Ref})
	if err != nil {
		t.Fatal(err)
	}
	asked, err := store.Ask(t.Context(), []bucket.Plan{{View: views[0], Want: n, Deadline: time.Minute}})
	if err != nil || asked[0] == nil {
		t.Fatalf("ask: %v, %v", asked, err)
	}
	item := asked[0].Item
	applied, err := store.Fill(t.Context(), []bucket.Grant{{
		Ref: c.Ref, Epoch: asked[0].Epoch, Session: item.GetSession(), Seq: item.GetSeq(), Granted: n, TTL: time.Minute,
	}})
	if err != nil || !applied[0] {
		t.Fatalf("fill: %v, %v", applied, err)
	}
}

// TestE1_FailoverOfANode: a node of six is killed, and its replica promoted without the last writes: a new epoch begins there and
// nothing is minted; the other nodes' shards have been served all the time.
func TestE1_FailoverOfANode(t *testing.T) {
	cluster := buckettest.StartCluster(t, 3, true)
	var epochs begun
	store := openCluster(t, cluster, epochs.add)
	if err := store.Vouch(t.Context(), 32); err != nil {
		t.Fatal(err)
	}
	ticking(t, store)
	a, b := apart(t, store)
	known, allotted, elsewhere := of(a, "known", 100), leased(a, "allotted", 100), of(b, "elsewhere", 1_000_000)
	for _, c := range []bucket.Charge{known, allotted, elsewhere} {
		takes(t, store, all(c))
	}
	master := cluster.Serving(a, 0)
	replica := master + 3
	awaitReplica(t, cluster, replica, a)
	cluster.Nodes[replica].Pause()
	if err := cluster.Nodes[master].Client().Do(t.Context(), "CLIENT", "KILL", "TYPE", "replica").Err(); err != nil {
		t.Fatal(err) // what comes now is lost
	}
	for range 20 {
		takes(t, store, all(known))
		takes(t, store, all(allotted))
	}
	cluster.Nodes[master].Kill()
	cluster.Nodes[replica].Resume()
	killed := time.Now()
	failed := 0
	err := buckettest.Poll(t.Context(), 20*time.Second, func() error {
		if _, err := store.Take(t.Context(), all(elsewhere)); err != nil {
			failed++
			t.Logf("another node's shard: %v", err)
		}
		_, err := store.Take(t.Context(), all(known))
		return err
	})
	if err != nil {
		t.Fatalf("no recovery: %v", err)
	}
	t.Logf("served again %s after the kill", time.Since(killed))
	if failed > 0 {
		t.Errorf("%d takes of other nodes' shards failed", failed)
	}
	if got := held(t, store, known); got != 98 {
		t.Errorf("scope region holds %d, want the 99 that the replica knew, less 1", got)
	}
	if v := takes(t, store, all(allotted)); v.Outcome == bucket.Admitted {
		t.Errorf("an allotment that lost writes: %+v", v)
	}
	if epochs.String() == "" {
		t.Error("no epoch was begun")
	}
}

// awaitReplica waits until a replica has the shard's keys.
func awaitReplica(t *testing.T, cluster *buckettest.Cluster, replica, shard int) {
	t.Helper()
	client := cluster.Nodes[replica].Client()
	err := buckettest.Poll(t.Context(), 10*time.Second, func() error {
		n, err := client.ClusterCountKeysInSlot(t.Context(), cluster.SlotOf(shard)).Result()
		if err == nil && n < 3 {
			err = fmt.Errorf("%d keys", n)
		}
		return err
	})
	if err != nil {
		t.Fatalf("the replica does not follow: %v", err)
	}
}

// TestE2_ASilentNodeStopsNoOther: while a node is silent the shards of the others are ticked, and served, all the time.
func TestE2_ASilentNodeStopsNoOther(t *testing.T) {
	cluster := buckettest.StartCluster(t, 3, false, "--cluster-node-timeout", "60000")
	var epochs begun
	store := openCluster(t, cluster, epochs.add)
	ticking(t, store)
	takes(t, store, all(of(0, "warm", 1)))
	a, b := apart(t, store)
	takes(t, store, all(of(b, "b", 1)))
	if err := buckettest.Poll(t.Context(), 10*time.Second, func() error {
		if n := len(strings.Fields(epochs.String())); n < 32 {
			return fmt.Errorf("%d shards have an epoch", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	before := epochs.String()
	silent := cluster.Nodes[cluster.Serving(a, 0)]
	silent.Pause()
	stood := undisturbed(t, 5*time.Second, func() error {
		_, err := store.Take(t.Context(), all(of(b, "b", 1)))
		return err
	})
	silent.Resume()
	if after := epochs.String(); after != before && !stood {
		t.Errorf("epochs begun meanwhile: %s", after[len(before):])
	}
	takes(t, store, all(of(a, "a", 1)))
}
