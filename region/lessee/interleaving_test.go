package lessee_test

import (
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/annona-gateway/annona/region/lessee"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// A bucket that is announced while a turn looks at it is looked at again: the turn may have read it just before.
func TestAnAnnouncementDuringATurnIsNotLost(t *testing.T) {
	at := ref(3, 1)
	inBubble(t, func(s *store, _ *allocator) {
		once := true
		s.fault = func(verb string) (bool, error) {
			if verb == "schedule" && once { // the plan was made: nothing to ask
				once = false
				s.records[at].Waiting = 1
				s.hear(bucket.Announcement{Ref: at})
			}
			return false, nil
		}
	}, func(r *rig) {
		r.store.demand(at, 0)
		r.pass(200 * time.Millisecond)
		if left := r.store.look(at).Left; left != 1 {
			t.Errorf("left %d, want the lease that was announced during the look", left)
		}
	})
}

// A bucket that asked for nothing need not wait until the others of its turn are answered.
func TestABucketThatAsksForNothingIsFreeAtOnce(t *testing.T) {
	inBubble(t, func(_ *store, a *allocator) { a.delay = 900 * time.Millisecond }, func(r *rig) {
		r.store.demand(ref(3, 1), 1)
		r.store.demand(ref(3, 2), 0)
		r.pass(50 * time.Millisecond)
		r.store.demand(ref(3, 2), 1)
		r.pass(910 * time.Millisecond)
		if left := r.store.look(ref(3, 2)).Left; left != 1 {
			t.Errorf("left %d one round trip after the second bucket's demand, want 1", left)
		}
	})
}

// F1: answers that overtake each other do not make the echo go back.
func TestF1_TheEchoOfATermNeverGoesBack(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.alloc.change(func(a *allocator) { a.sequence = 50 })
		r.store.demand(ref(5, 1), 1)
		r.pass(200 * time.Millisecond)
		r.alloc.change(func(a *allocator) { a.sequence = 10 })
		for n := range 2 {
			r.store.demand(ref(5, 2+n), 1)
			r.pass(200 * time.Millisecond)
		}
		if last := r.alloc.envelopes[len(r.alloc.envelopes)-1]; last.GetSequence() < 50 {
			t.Errorf("sequence %d is echoed after 50 was heard", last.GetSequence())
		}
	})
}

// A reply that does not fit its envelope is no answer.
func TestAReplyThatDoesNotFitIsNoAnswer(t *testing.T) {
	wrong := true
	inBubble(t, func(_ *store, a *allocator) {
		a.mangle = func(e *leasepb.Envelope, m *nats.Msg) {
			if len(e.GetItems()) > 0 && wrong {
				wrong = false
				m.Data = m.Data[:len(m.Data)/2]
			}
		}
	}, func(r *rig) {
		at := ref(3, 1)
		r.store.demand(at, 2)
		r.pass(90 * time.Millisecond)
		if left := r.store.look(at).Left; left != 0 {
			t.Errorf("left %d by half a reply", left)
		}
		r.pass(500 * time.Millisecond)
		if got := r.store.look(at); got.Left != 2 || got.Seq != 1 {
			t.Errorf("left %d, seq %d; want the first item's 2 by its repetition", got.Left, got.Seq)
		}
	})
}

// Two agents of one region ask and fill side by side: a seq goes out once, and no token is counted twice.
func TestTwoAgentsSideBySide(t *testing.T) {
	inBubble(t, nil, func(r *rig) {
		r.store.mu.Lock()
		first := r.store.hear
		r.store.mu.Unlock()
		firstEnd, firstEnded := r.end, r.ended
		r.start()
		r.store.mu.Lock()
		second := r.store.hear
		r.store.hear = func(a bucket.Announcement) { first(a); second(a) }
		r.store.mu.Unlock()
		for n := range 30 {
			r.store.demand(ref(n, n), 3)
			r.pass(30 * time.Millisecond)
		}
		r.pass(200 * time.Millisecond)
		for n := range 30 {
			got, pool := r.store.look(ref(n, n)), r.alloc.pool(ref(n, n))
			if int64(got.Left+got.Returned) != pool.granted {
				t.Errorf("bucket %d: left %d and returned %d of %d granted", n, got.Left, got.Returned, pool.granted)
			}
		}
		firstEnd()
		if err := <-firstEnded; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// The envelope's span is a child of the sampled request's, which came with the announcement, and its context goes along.
func TestTheTraceGoesAlong(t *testing.T) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	exporter := tracetest.NewInMemoryExporter()
	synctest.Test(t, func(t *testing.T) {
		tel, err := telemetry.Start(t.Context(), telemetry.Config{Role: "region", Region: "eu", Log: io.Discard, Exporter: exporter})
		if err != nil {
			t.Fatal(err)
		}
		s, a := newStore(), newAllocator()
		var headers []string
		a.mangle = func(e *leasepb.Envelope, _ *nats.Msg) {
			if len(e.GetItems()) > 0 {
				headers = append(headers, a.header.Get("Traceparent"))
			}
		}
		ctx, cancel := contextOf(t)
		ended := make(chan error, 1)
		go func() { ended <- lessee.New(lessee.Config{Region: "eu", Agent: "a1"}, s, a, tel).Run(ctx) }()
		synctest.Wait()
		s.change(ref(3, 1), func(r *record) { r.Traceparent = parent })
		s.demand(ref(3, 1), 1)
		pass(100 * time.Millisecond)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		// Flushing waits for the exporter; shutting down would forget the spans.
		if err := tel.Provider.ForceFlush(t.Context()); err != nil {
			t.Error(err)
		}
		spans := exporter.GetSpans()
		if err := tel.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		i := slices.IndexFunc(spans, func(s tracetest.SpanStub) bool { return s.Name == "lease ask" })
		if i < 0 {
			t.Fatalf("spans %v, want one of the envelope", spans)
		}
		span := spans[i]
		if got := span.Parent.SpanID().String(); got != "00f067aa0ba902b7" || span.SpanContext.TraceID() != span.Parent.TraceID() {
			t.Errorf("parent %s, want the request's span", got)
		}
		want := "00-4bf92f3577b34da6a3ce929d0e0e4736-" + span.SpanContext.SpanID().String() + "-01"
		if len(headers) == 0 || headers[0] != want {
			t.Errorf("headers %v, want %s", headers, want)
		}
	})
}
