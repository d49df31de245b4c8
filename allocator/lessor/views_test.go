package lessor_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/allocator/journal/journaltest"
	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/allocator/lessor"
)

func TestPoolsAreTheFirstOfAllShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &journaltest.Memory{})
		for n := range 5 {
			for shard := range shards {
				r.granted(envelope("eu", shard, want(keyOf(shard, n), 1, 1)))
			}
		}
		all := func(ledger.Pool) bool { return true }
		pools, err := r.lessor.Pools(t.Context(), all, 100)
		if err != nil || len(pools) != 5*shards {
			t.Fatalf("Pools = %d, %v, want %d", len(pools), err, 5*shards)
		}
		for i := 1; i < len(pools); i++ {
			if pools[i-1].Key.String() >= pools[i].Key.String() {
				t.Errorf("pool %d is out of order", i)
			}
		}
		first, err := r.lessor.Pools(t.Context(), all, 7)
		if err != nil || len(first) != 7 || first[6].Key != pools[6].Key {
			t.Errorf("the first 7 = %d, %v, want the first of all", len(first), err)
		}
		one := func(p ledger.Pool) bool { return p.Key == keyOf(2, 3) }
		if found, err := r.lessor.Pools(t.Context(), one, 7); err != nil || len(found) != 1 || found[0].Key != keyOf(2, 3) {
			t.Errorf("one filtered = %v, %v", found, err)
		}
		pool, ok, err := r.lessor.Pool(t.Context(), "per-user", keyOf(2, 3))
		if err != nil || !ok || pool.Holdings[0].Outstanding != 1 || pool.Now == 0 {
			t.Errorf("Pool = %+v, %t, %v, want one token out", pool, ok, err)
		}
		if _, ok, err := r.lessor.Pool(t.Context(), "per-user", keyOf(2, 99)); ok || err != nil {
			t.Errorf("Pool of an unknown key = %t, %v, want none", ok, err)
		}
	})
}

func TestViewsDoNotWaitForAShardThatDoesNotServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		gate := make(chan struct{})
		memory.Fault = func(shard int, _ []byte) (bool, error) {
			if shard == 2 {
				<-gate
			}
			return true, nil
		}
		r := start(t, memory)
		defer close(gate)
		if _, _, err := r.lessor.Pool(t.Context(), "per-user", keyOf(2, 1)); err == nil {
			t.Error("Pool of a shard that does not serve = nil, want an error")
		}
		if _, err := r.lessor.Pools(t.Context(), func(ledger.Pool) bool { return true }, 1); err == nil {
			t.Error("Pools without one of the shards = nil, want an error: the list would lack some")
		}
		if got := len(r.lessor.Regions()); got != 3 {
			t.Errorf("Regions = %d, want the document's 3", got)
		}
	})
}

func TestViewsEndWithTheirContextWhileAnAppendIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		gate := make(chan struct{})
		memory.Fault = func(_ int, record []byte) (bool, error) {
			if !isBegun(record) {
				<-gate
			}
			return true, nil
		}
		r := start(t, memory)
		defer close(gate)
		r.ask(envelope("eu", 0, want(keyOf(0, 1), 1, 1)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := r.lessor.Pool(ctx, "per-user", keyOf(0, 1)); err == nil {
			t.Error("Pool during an append = nil, want its context's end")
		}
	})
}

func TestRegionsTellWhoWasHeardAndWhatIsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &journaltest.Memory{})
		r.granted(envelope("eu", 0, want(keyOf(0, 1), 1, 4)))
		r.granted(envelope("eu", 1, want(keyOf(1, 1), 1, 6)))
		for i := range 40 {
			env := envelope("us", 0)
			env.Agent = fmt.Sprint("agent-", i)
			r.ask(env)
		}
		pass(2 * time.Second)
		regions := r.lessor.Regions()
		if len(regions) != 3 {
			t.Fatalf("Regions = %+v, want 3", regions)
		}
		ap, eu, us := regions[0], regions[1], regions[2]
		if ap.Name != "ap" || ap.Heard >= 0 || ap.Outstanding != 0 || len(ap.Agents) != 0 {
			t.Errorf("ap = %+v, want never heard", ap)
		}
		if eu.Heard != 2*time.Second || eu.Outstanding != 10 || eu.Epoch != "epoch-eu" || len(eu.Agents) != 1 || eu.Agents[0] != "agent-eu" {
			t.Errorf("eu = %+v, want heard 2 s ago with 10 out", eu)
		}
		if len(us.Agents) != 16 {
			t.Errorf("%d agents of us are remembered, want no more than 16", len(us.Agents))
		}
		pass(2 * time.Minute)
		if eu := r.lessor.Regions()[1]; len(eu.Agents) != 0 || eu.Outstanding != 0 {
			t.Errorf("eu after 2 minutes of silence = %+v, want no agents and nothing out", eu)
		}
	})
}

func TestC5ADenialIsRememberedOnceWithItsTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		r := start(t, memory)
		key := keyOf(0, 1)
		item := want(key, 1, 5)
		item.Denied = 2
		r.granted(envelope("eu", 0, item))
		item = want(key, 2, 5)
		item.Denied, item.Traceparent = 5, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		r.granted(envelope("eu", 0, item))
		r.granted(envelope("eu", 0, item)) // a repeat
		item = want(key, 3, 5)
		item.Denied = 5
		r.granted(envelope("eu", 0, item)) // no growth
		got := r.lessor.Denials(key)
		if len(got) != 2 || got[0].Cost != 3 || got[1].Cost != 2 || got[0].Region != "eu" || got[0].At.IsZero() {
			t.Fatalf("Denials = %+v, want 3 and before it 2", got)
		}
		if got[0].TraceID != "0af7651916cd43dd8448eb211c80319c" || got[1].TraceID != "" {
			t.Errorf("traces %q and %q, want that of the request, and none", got[0].TraceID, got[1].TraceID)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		r = start(t, memory)
		item = want(key, 4, 5)
		item.Denied = 5
		r.granted(envelope("eu", 0, item))
		if got := r.lessor.Denials(key); len(got) != 0 {
			t.Errorf("Denials after a restart = %+v, want none: the counter did not grow", got)
		}
	})
}

func TestDenialsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, &journaltest.Memory{})
		for n := range lessor.DenialKeys + 1 {
			for seq := uint64(1); seq <= 2; seq++ {
				item := want(keyOf(0, n), seq, 1)
				item.Denied = int64(seq)
				r.granted(envelope("eu", 0, item))
			}
		}
		if got := r.lessor.Denials(keyOf(0, 0)); len(got) != 0 {
			t.Errorf("the oldest key still has %d denials, want none", len(got))
		}
		last := keyOf(0, lessor.DenialKeys)
		for seq := uint64(3); seq < 3*lessor.DenialsEach; seq++ {
			item := want(last, seq, 1)
			item.Denied = int64(seq)
			r.granted(envelope("eu", 0, item))
		}
		if got := len(r.lessor.Denials(last)); got != lessor.DenialsEach {
			t.Errorf("%d denials of one key, want %d", got, lessor.DenialsEach)
		}
	})
}

// TestGoroutinesAreBounded counts them while the journal hangs and envelopes keep coming.
func TestGoroutinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &journaltest.Memory{}
		gate := make(chan struct{})
		memory.Fault = func(_ int, record []byte) (bool, error) {
			if !isBegun(record) {
				<-gate
			}
			return true, nil
		}
		r := start(t, memory)
		before := runtime.NumGoroutine()
		for n := range 5000 {
			r.send(envelope("eu", n%shards, want(keyOf(n%shards, n%200), 1, 1)), nil)
		}
		synctest.Wait()
		if got := runtime.NumGoroutine(); got > before {
			t.Errorf("%d goroutines after 5000 envelopes, %d before", got, before)
		}
		close(gate)
	})
}
