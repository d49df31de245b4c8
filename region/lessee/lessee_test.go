package lessee_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/annona-gateway/annona/region/lessee"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
)

// rig is a lessee between a store and an allocator that fail as told, in a synctest bubble.
type rig struct {
	*testing.T
	store  *store
	alloc  *allocator
	lessee *lessee.Lessee
	tel    recorder
	epochs int
	ended  chan error
	end    func()
}

// inBubble runs f with a running lessee, whose gateway has registered, and ends it.
func inBubble(t *testing.T, prepare func(*store, *allocator), f func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, store: newStore(), alloc: newAllocator(), tel: newRecorder(t)}
		if prepare != nil {
			prepare(r.store, r.alloc)
		}
		r.start()
		f(r)
		r.end()
		if err := <-r.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// start runs a lessee; the agent may be restarted so.
func (r *rig) start() {
	cfg := lessee.Config{Region: "eu", Agent: "a1", NewEpoch: func() { r.epochs++ }}
	r.lessee = lessee.New(cfg, r.store, r.alloc, r.tel.Telemetry)
	ctx, cancel := contextOf(r.T)
	ended := make(chan error, 1)
	r.ended, r.end = ended, cancel
	running := r.lessee
	go func() { ended <- running.Run(ctx) }()
	synctest.Wait()
}

// pass lets time pass and everything that it brings happen.
func (r *rig) pass(d time.Duration) { pass(d) }

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestAWaitEndsInAFill(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		at := ref(3, 1)
		r.store.demand(at, 2)
		r.pass(100 * time.Millisecond)
		got := r.store.look(at)
		if got.Left != 2 || got.Waiting != 0 || got.Applied != 1 {
			t.Errorf("left %d, waiting %d, applied %d; want 2, 0, 1 after one round trip", got.Left, got.Waiting, got.Applied)
		}
		if subject := r.alloc.sent(); !slices.Equal(subject, []string{"3:1"}) {
			t.Errorf("envelopes %v, want one item to shard 3", subject)
		}
		e := r.alloc.envelopes[0]
		if e.GetRegion() != "eu" || e.GetAgent() != "a1" || e.GetFingerprint() != "f1" || e.GetEpoch() != "e1" {
			t.Errorf("envelope %v, want region eu, agent a1, fingerprint f1, epoch e1", e)
		}
	})
}

// What is announced within the time of coalescing shares an envelope by shard, each bucket once, 512 items at most.
func TestAnnouncementsShareEnvelopes(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		for n := range 3 {
			r.store.demand(ref(1, n), 1)
			r.store.demand(ref(1, n), 1)
			r.store.demand(ref(2, n), 1)
			r.pass(time.Millisecond)
		}
		r.pass(90 * time.Millisecond)
		if got := r.alloc.sent(); len(got) != 2 || !slices.Contains(got, "1:3") || !slices.Contains(got, "2:3") {
			t.Errorf("envelopes %v, want one of 3 items to each of shards 1 and 2", got)
		}
		for n := range 700 {
			r.store.change(ref(4, n), func(rec *record) { rec.Waiting = 1 })
			r.store.announce(ref(4, n))
		}
		r.pass(100 * time.Millisecond)
		total := 0
		for _, e := range r.alloc.envelopes[2:] {
			total += len(e.GetItems())
			if len(e.GetItems()) > lease.MaxItems {
				t.Errorf("an envelope of %d items, want at most %d", len(e.GetItems()), lease.MaxItems)
			}
		}
		if total != 700 {
			t.Errorf("%d items for 700 buckets that were announced once", total)
		}
	})
}

// A burst of announcements far beyond what an agent can look at is bounded, counted, and costs only a retry.
func TestAnnouncementsAreBounded(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		for n := range 40_000 {
			r.store.announce(ref(n%32, n/32))
		}
		r.pass(2 * time.Second)
		if got := r.tel.items(t, "dropped"); got == 0 {
			t.Error("no announcement was counted as dropped, want some of 40,000")
		}
		r.store.demand(ref(1, 1), 1)
		r.pass(100 * time.Millisecond)
		if left := r.store.look(ref(1, 1)).Left; left != 1 {
			t.Errorf("left %d after the burst, want the lease that a retry brings", left)
		}
	})
}

// So is what gathers while nothing may be asked.
func TestTheQueueIsBounded(t *testing.T) {
	inBubble(t, func(s *store, _ *allocator) { s.gateways = nil }, func(r *rig) {
		for round := range 4 {
			for n := range 5000 {
				r.store.announce(ref(n%32, round<<8+n/32))
			}
			r.pass(100 * time.Millisecond)
		}
		if got := r.tel.items(t, "dropped"); got != 4*5000-16_384 {
			t.Errorf("%d looks dropped of 20,000, want those beyond 16,384", got)
		}
	})
}

// An announcement that names a shard which there is not, or not the key's, is nobody's.
func TestAnnouncementsOfNoShardAreIgnored(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		wrong := ref(1, 1)
		wrong.Shard = 2
		for _, at := range []bucket.Ref{wrong, {Shard: -1}, {Shard: 32}} {
			r.store.announce(at)
		}
		r.pass(time.Second)
		if got := r.tel.items(t, "unknown"); got != 3 || r.store.count("views") != 0 {
			t.Errorf("%d counted as unknown and %d looks, want 3 and 0", got, r.store.count("views"))
		}
	})
}

// C3: a lost reply is asked for again with the same bytes, and the grant arrives once.
func TestC3_ALostReplyIsAskedForAgain(t *testing.T) {
	lost := 2
	inBubble(t, func(_ *store, a *allocator) {
		a.fault = func(e *leasepb.Envelope) (bool, error) {
			if len(e.GetItems()) == 0 || lost == 0 {
				return true, nil
			}
			lost--
			return true, errLost
		}
	}, func(r *rig) {
		at := ref(3, 1)
		r.store.demand(at, 5)
		r.pass(2500 * time.Millisecond)
		if got := r.store.look(at); got.Returned+got.Left != 5 || r.alloc.pool(at).granted != 5 {
			t.Errorf("left %d and returned %d of %d granted, want 5 once", got.Left, got.Returned, r.alloc.pool(at).granted)
		}
		if len(r.alloc.raw) < 3 || !bytes.Equal(r.alloc.raw[0], r.alloc.raw[1]) || !bytes.Equal(r.alloc.raw[1], r.alloc.raw[2]) {
			t.Errorf("%d attempts, want the same bytes three times", len(r.alloc.raw))
		}
	})
}

// C3, C4: past its deadline a seq is given up, a newer one shows that the grant never came, and no token is counted twice.
func TestC4_PastTheDeadlineANewerSeqVoidsTheGrant(t *testing.T) {
	inBubble(t, func(_ *store, a *allocator) {
		a.fault = func(e *leasepb.Envelope) (bool, error) {
			if len(e.GetItems()) > 0 && e.GetItems()[0].GetSeq() == 1 {
				return true, errLost
			}
			return true, nil
		}
	}, func(r *rig) {
		at := ref(3, 1)
		r.store.demand(at, 5)
		r.pass(3900 * time.Millisecond)
		got, pool := r.store.look(at), r.alloc.pool(at)
		if got.Seq < 2 || int64(got.Left+got.Returned) != pool.granted || pool.granted != 5 {
			t.Errorf("seq %d, left %d, returned %d; granted %d: want the second seq's 5 and not the first's too",
				got.Seq, got.Left, got.Returned, pool.granted)
		}
		if r.tel.items(t, "lost") != 1 {
			t.Errorf("%d items counted as lost, want 1", r.tel.items(t, "lost"))
		}
	})
}

// C2: an answer to another seq than the bucket's changes nothing.
func TestC2_AnAnswerToAnotherSeqIsLate(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		at := ref(3, 1)
		r.store.demand(at, 5)
		r.pass(40 * time.Millisecond)
		r.store.change(at, func(rec *record) { rec.Seq++ }) // another agent's newer item
		r.pass(100 * time.Millisecond)
		if got := r.store.look(at); got.Left != 0 {
			t.Errorf("left %d, want nothing of an answer to an older seq", got.Left)
		}
		if got := r.tel.items(t, "late"); got != 1 {
			t.Errorf("%d answers counted as late, want 1", got)
		}
	})
}

// An hour without an allocator costs a bounded number of requests and goroutines, and nothing has to be restarted after it.
func TestAnHourWithoutAnAllocator(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		for n := range 4 {
			r.store.demand(ref(n, n), 1)
		}
		r.pass(time.Second)
		r.alloc.change(func(a *allocator) {
			a.attempts = 0
			a.fault = func(*leasepb.Envelope) (bool, error) { return false, nats.ErrNoResponders }
		})
		for range 720 {
			for n := range 4 {
				r.store.demand(ref(n, n), 1)
			}
			r.pass(5 * time.Second)
		}
		// Four items out at most, each a request every 100 ms and its 80 ms of way.
		if most := 3600 * 4 * 6; r.alloc.attempts > most {
			t.Errorf("%d requests in an hour of outage, want at most %d", r.alloc.attempts, most)
		}
		r.alloc.change(func(a *allocator) { a.fault, a.envelopes, a.raw = nil, nil, nil })
		r.pass(5 * time.Second)
		for n := range 4 {
			r.store.demand(ref(n, n), 1)
		}
		r.pass(500 * time.Millisecond)
		for n := range 4 {
			if got := r.store.look(ref(n, n)); got.Waiting != 0 {
				t.Errorf("bucket %d: %d wait after the outage, want none", n, got.Waiting)
			}
		}
	})
}

// Buckets of a shard whose writer is silent do not hold up the others'.
func TestASilentShardHoldsUpNoOther(t *testing.T) {
	inBubble(t, func(_ *store, a *allocator) {
		a.fault = func(e *leasepb.Envelope) (bool, error) {
			if e.GetShard() == 7 {
				return true, errLost
			}
			return true, nil
		}
	}, func(r *rig) {
		for n := range 100 {
			r.store.demand(ref(7, n), 1)
			r.pass(5 * time.Millisecond)
		}
		r.store.demand(ref(8, 1), 1)
		r.pass(100 * time.Millisecond)
		if left := r.store.look(ref(8, 1)).Left; left != 1 {
			t.Errorf("left %d in shard 8 while shard 7 is silent, want 1", left)
		}
	})
}

// F1: later envelopes echo the term and the highest sequence that their shard's writer told.
func TestF1_EnvelopesEchoTermAndSequence(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		for n := range 3 {
			r.store.demand(ref(5, n), 1)
			r.pass(200 * time.Millisecond)
		}
		var echoes []string
		var told uint64
		for i, e := range r.alloc.envelopes {
			echoes = append(echoes, fmt.Sprintf("%s/%d", e.GetTerm(), e.GetSequence()))
			switch {
			case i == 0 && (e.GetTerm() != "" || e.GetSequence() != 0):
				t.Errorf("the first envelope echoes %s", echoes[0])
			case i > 0 && (e.GetTerm() != "t1" || e.GetSequence() <= told || e.GetContact() != e.GetSequence() || e.GetContactAgeUs() <= 0):
				t.Errorf("envelope %d: %v, want an echo of the answer before", i, e)
			}
			told = e.GetSequence()
		}
		if len(echoes) < 3 {
			t.Errorf("echoes %v, want three envelopes", echoes)
		}
	})
}
