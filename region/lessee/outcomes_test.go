package lessee_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// An item that was refused counted nothing: one that may be taken yet is sent again as it is, and a session that was refused
// is given up when its item's deadline has passed.
func TestRefusedItems(t *testing.T) {
	rows := map[string]struct {
		why leasepb.Refusal
		// within is how long after the refusals end the lease is there; session and seq are its item's.
		within       time.Duration
		session, seq uint64
	}{
		"busy: the same item again":                 {leasepb.Refusal_REFUSAL_BUSY, 600 * time.Millisecond, 1, 1},
		"unknown policy: the same item in a second": {leasepb.Refusal_REFUSAL_UNKNOWN_POLICY, 1300 * time.Millisecond, 1, 1},
		"old session: another session":              {leasepb.Refusal_REFUSAL_OLD_SESSION, 3300 * time.Millisecond, 2, 1},
		"invalid: another session":                  {leasepb.Refusal_REFUSAL_INVALID, 3300 * time.Millisecond, 2, 1},
		"old seq: a newer seq":                      {leasepb.Refusal_REFUSAL_OLD_SEQ, 3500 * time.Millisecond, 1, 2},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			refusals := 1
			inBubble(t, func(_ *store, a *allocator) {
				a.refuse = func(*leasepb.Item) leasepb.Refusal {
					if refusals == 0 {
						return leasepb.Refusal_REFUSAL_UNSPECIFIED
					}
					refusals--
					return row.why
				}
			}, func(r *rig) {
				at := ref(3, 1)
				r.store.demand(at, 2)
				r.pass(90 * time.Millisecond)
				if got := r.store.look(at); got.Left != 0 {
					t.Fatalf("left %d after a refusal", got.Left)
				}
				r.pass(row.within)
				got := r.store.look(at)
				if got.Left != 2 || got.Session != row.session || got.Seq != row.seq {
					t.Errorf("left %d in session %d, seq %d; want 2 in %d, %d", got.Left, got.Session, got.Seq, row.session, row.seq)
				}
				if r.tel.items(t, "refused") != 1 {
					t.Errorf("%d items counted as refused, want 1", r.tel.items(t, "refused"))
				}
			})
		})
	}
}

// An allocator that keeps refusing is not asked all the time, by however many requests wait.
func TestRefusalsDoNotSpin(t *testing.T) {
	for _, why := range []leasepb.Refusal{
		leasepb.Refusal_REFUSAL_BUSY, leasepb.Refusal_REFUSAL_UNKNOWN_POLICY, leasepb.Refusal_REFUSAL_INVALID, leasepb.Refusal_REFUSAL_OLD_SEQ,
	} {
		t.Run(why.String(), func(t *testing.T) {
			inBubble(t, func(_ *store, a *allocator) {
				a.refuse = func(*leasepb.Item) leasepb.Refusal { return why }
			}, func(r *rig) {
				for range 200 {
					r.store.demand(ref(3, 1), 1)
					r.pass(50 * time.Millisecond)
				}
				if n := len(r.alloc.sent()); n > 35 {
					t.Errorf("%d items in 10 s about one refused bucket, want a few a second", n)
				}
			})
		})
	}
}

// A whole envelope that is refused is sent again, not at once, until its deadline.
func TestARefusedEnvelopeIsSentAgain(t *testing.T) {
	inBubble(t, func(_ *store, a *allocator) { a.refused = "replaying" }, func(r *rig) {
		at := ref(3, 1)
		r.store.demand(at, 2)
		r.pass(1200 * time.Millisecond)
		if n := len(r.alloc.sent()); n < 2 || n > 3 {
			t.Errorf("%d envelopes in 1.2 s of refusals, want 2 or 3", n)
		}
		r.alloc.change(func(a *allocator) { a.refused = "" })
		r.pass(700 * time.Millisecond)
		if got := r.store.look(at); got.Left != 2 || got.Seq != 1 {
			t.Errorf("left %d, seq %d after the refusals; want the first item's 2", got.Left, got.Seq)
		}
	})
}

// Two secrets among running gateways would double every limit: the agent asks for nothing and says so, until they agree.
func TestTwoSecretsAskForNothing(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.store.change(ref(0, 0), func(*record) {
			r.store.gateways = append(r.store.gateways, bucket.Gateway{ID: "g2", Fingerprint: "f2"})
		})
		r.pass(5100 * time.Millisecond)
		r.store.demand(ref(3, 1), 1)
		r.pass(time.Second)
		if n := len(r.alloc.sent()); n != 0 {
			t.Errorf("%d envelopes while gateways disagree, want none", n)
		}
		if r.lessee.Secret() == nil || r.tel.items(t, "secrets") == 0 {
			t.Error("the agent keeps it to itself that gateways disagree")
		}
		r.store.change(ref(0, 0), func(*record) { r.store.gateways[1].Heard = time.Minute }) // it ended
		r.pass(5 * time.Second)
		if left := r.store.look(ref(3, 1)).Left; left != 1 || r.lessee.Secret() != nil {
			t.Errorf("left %d, %v: want the lease once gateways agree", left, r.lessee.Secret())
		}
	})
}

// While no gateway has registered the agent does not know the fingerprint that its envelopes must have.
func TestNoGatewayNoAsking(t *testing.T) {
	inBubble(t, func(s *store, _ *allocator) { s.gateways = nil }, func(r *rig) {
		r.store.demand(ref(3, 1), 1)
		r.pass(time.Second)
		if n := len(r.alloc.sent()); n != 0 {
			t.Fatalf("%d envelopes before a gateway has registered, want none", n)
		}
		r.store.change(ref(0, 0), func(*record) { r.store.gateways = []bucket.Gateway{{ID: "g1", Fingerprint: "f9"}} })
		r.pass(400 * time.Millisecond)
		if left := r.store.look(ref(3, 1)).Left; left != 1 || r.alloc.envelopes[0].GetFingerprint() != "f9" {
			t.Errorf("left %d, fingerprint %q; want 1 with the gateway's", left, r.alloc.envelopes[0].GetFingerprint())
		}
		r.store.change(ref(0, 0), func(*record) { r.store.gateways = nil })
		r.pass(6 * time.Second)
		r.store.demand(ref(3, 2), 1)
		r.pass(100 * time.Millisecond)
		if left := r.store.look(ref(3, 2)).Left; left != 1 {
			t.Errorf("left %d: want the last known fingerprint to do while none is registered", left)
		}
	})
}

// What is unused goes back after a second but for one cost, and that at half of the lease's life; then the bucket is off the
// schedule and every token accounted for.
func TestUnusedTokensGoBack(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		at := ref(3, 1)
		r.store.demand(at, 10)
		r.pass(200 * time.Millisecond)
		for range 4 {
			r.store.spend(at)
		}
		r.pass(2200 * time.Millisecond)
		if left := r.store.look(at).Left; left != 1 {
			t.Errorf("left %d two seconds after the last use, want one cost", left)
		}
		r.pass(8 * time.Second)
		got, pool := r.store.look(at), r.alloc.pool(at)
		if got.Left != 0 || pool.granted != pool.spent+pool.returned || pool.spent != 4 || !got.due.IsZero() {
			t.Errorf("left %d, granted %d = spent %d + returned %d?, due %v: want all settled and off the schedule",
				got.Left, pool.granted, pool.spent, pool.returned, got.due)
		}
	})
}

// At its end the agent settles and returns everything, in a moment.
func TestDrainReturnsEverything(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		for n := range 50 {
			r.store.demand(ref(n%32, n), 5)
		}
		r.pass(300 * time.Millisecond)
		for n := range 50 {
			r.store.spend(ref(n%32, n))
		}
		begun := time.Now()
		r.end()
		if err := <-r.ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the drain took %v, want a round trip or two", took)
		}
		for n := range 50 {
			got, pool := r.store.look(ref(n%32, n)), r.alloc.pool(ref(n%32, n))
			if got.Left != 0 || pool.spent != 1 || pool.returned != 4 || pool.granted != 5 {
				t.Fatalf("bucket %d: left %d, %+v; want 1 spent and 4 returned of 5", n, got.Left, pool)
			}
		}
		r.ended <- nil
	})
}

// A drain ends in time although nobody answers.
func TestDrainEndsWithoutAnAllocator(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.store.demand(ref(3, 1), 5)
		r.pass(300 * time.Millisecond)
		r.alloc.change(func(a *allocator) {
			a.fault = func(*leasepb.Envelope) (bool, error) { return false, nats.ErrNoResponders }
		})
		begun := time.Now()
		r.end()
		r.ended <- <-r.ended
		if took := time.Since(begun); took < 8*time.Second || took > 10*time.Second {
			t.Errorf("the drain took %v, want it to try for most of 10 s and no longer", took)
		}
	})
}

// An agent that ends in the middle of asking leaves a seq in flight: the next one waits for its deadline, then goes on from
// the schedule, and no token is lost or doubled.
func TestC4_RestartWithASeqInFlight(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		at := ref(3, 1)
		r.store.change(at, func(rec *record) {
			rec.Session, rec.Seq, rec.Waiting = 1, 1, 4
			r.store.sessions = 1
			rec.AskedAt, rec.deadline = clock(), clock()+limit.Micros((3*time.Second).Microseconds())
			rec.due = time.Now().Add(3 * time.Second)
		})
		r.pass(2900 * time.Millisecond)
		if n := len(r.alloc.sent()); n != 0 {
			t.Errorf("%d envelopes before the deadline of the seq in flight, want none", n)
		}
		r.pass(600 * time.Millisecond)
		if got := r.store.look(at); got.Left != 4 || got.Seq != 2 {
			t.Errorf("left %d, seq %d; want 4 by the second seq", got.Left, got.Seq)
		}
	})
}

// A store that began a new epoch has forgotten its leases: the next demand begins a new session there, and the agent is told
// that its store lost what was mirrored.
func TestE3_ANewEpochIsANewSession(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		at := ref(3, 1)
		r.store.demand(at, 4)
		r.pass(200 * time.Millisecond)
		r.store.change(at, func(*record) { r.store.epoch = "e2" })
		r.pass(2 * time.Second)
		r.store.demand(at, 3)
		r.pass(200 * time.Millisecond)
		if got := r.store.look(at); got.Left != 3 || got.Session != 2 {
			t.Errorf("left %d in session %d, want 3 in the second", got.Left, got.Session)
		}
		if r.epochs != 1 {
			t.Errorf("told of a new epoch %d times, want once", r.epochs)
		}
		last := r.alloc.envelopes[len(r.alloc.envelopes)-1]
		if last.GetEpoch() != "e2" {
			t.Errorf("envelope of epoch %q, want e2", last.GetEpoch())
		}
	})
}

// A store that fails a call, before or after it did its work, costs a retry and never a token.
func TestStoreFailures(t *testing.T) {
	for _, verb := range []string{"views", "ask", "fill", "due", "schedule", "gateways", "demands"} {
		for _, written := range []bool{false, true} {
			name := verb + " fails and did nothing"
			if written {
				name = verb + " fails but was done"
			}
			t.Run(name, func(t *testing.T) { storeFails(t, verb, written) })
		}
	}
}

func storeFails(t *testing.T, verb string, written bool) {
	failures := 2
	inBubble(t, func(s *store, _ *allocator) {
		s.fault = func(called string) (bool, error) {
			if called != verb || failures == 0 {
				return false, nil
			}
			failures--
			return written, errStore
		}
	}, func(r *rig) {
		at := ref(3, 1)
		r.pass(time.Second)
		r.store.demand(at, 5)
		r.pass(8 * time.Second)
		r.store.demand(at, 5) // whose clients had given up; others come
		r.pass(500 * time.Millisecond)
		got := r.store.look(at)
		if got.Left == 0 {
			t.Error("nothing left, want progress once the store works")
		}
		r.pass(15 * time.Second)
		got, pool := r.store.look(at), r.alloc.pool(at)
		if out := pool.granted - pool.spent - pool.returned - pool.lapsed; got.Left != 0 || out != 0 {
			t.Errorf("left %d, outstanding %d: want everything back or accounted for", got.Left, out)
		}
	})
}

// The round trip is measured by heartbeats, which are envelopes without items.
func TestHeartbeatsMeasureTheRoundTrip(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.pass(5 * time.Second)
		if got := r.lessee.RoundTrip(); got != 80*time.Millisecond {
			t.Errorf("round trip %v, want the 80 ms there are", got)
		}
		if r.alloc.sequence < 5 || len(r.alloc.sent()) != 0 {
			t.Errorf("%d heartbeats and %d envelopes with items in 5 s, want at least 5 and none", r.alloc.sequence, len(r.alloc.sent()))
		}
	})
}
