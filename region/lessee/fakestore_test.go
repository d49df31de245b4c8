package lessee_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// record is one bucket of the fake store: its view, and what only its scripts see.
type record struct {
	bucket.View
	deadline                   limit.Micros
	askedReturned, askedLapsed limit.Tokens
	due                        time.Time // zero: not on the schedule
}

// store is a region's Redis in memory, by the rules of shared/bucket's scripts.
type store struct {
	mu       sync.Mutex
	epoch    string
	sessions uint64
	records  map[bucket.Ref]*record
	gateways []bucket.Gateway
	hear     func(bucket.Announcement)
	// fault, if set, may fail a call: before it did anything (written false) or after.
	fault func(verb string) (written bool, err error)
	calls map[string]int
}

func newStore() *store {
	return &store{
		epoch: "e1", records: map[bucket.Ref]*record{}, calls: map[string]int{},
		gateways: []bucket.Gateway{{ID: "g1", Fingerprint: "f1"}},
	}
}

var errStore = errors.New("connection reset")

// call runs do under the lock, unless a fault says otherwise.
func (s *store) call(verb string, do func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[verb]++
	if s.fault != nil {
		if written, err := s.fault(verb); err != nil {
			if written {
				do()
			}
			return err
		}
	}
	do()
	return nil
}

func clock() limit.Micros { return limit.Micros(time.Now().UnixMicro()) }

func (s *store) Views(_ context.Context, refs []bucket.Ref) ([]bucket.View, error) {
	views := make([]bucket.View, len(refs))
	return views, s.call("views", func() {
		for i, ref := range refs {
			views[i] = bucket.View{Ref: ref, Epoch: s.epoch, Now: clock()}
			if r := s.records[ref]; r != nil && r.Epoch == s.epoch {
				views[i] = r.View
				views[i].Found, views[i].Now, views[i].InFlight = true, clock(), r.deadline > clock()
			}
		}
	})
}

func (s *store) Ask(_ context.Context, plans []bucket.Plan) ([]*bucket.Asked, error) {
	asked := make([]*bucket.Asked, len(plans))
	return asked, s.call("ask", func() {
		for i, p := range plans {
			r := s.records[p.View.Ref]
			if r == nil || r.Epoch != p.View.Epoch || r.Session != p.View.Session || r.Seq != p.View.Seq || r.deadline > clock() {
				continue
			}
			asked[i] = s.ask(r, p)
		}
	})
}

func (s *store) ask(r *record, p bucket.Plan) *bucket.Asked {
	s.lapse(r)
	if r.Session == 0 || p.NewSession {
		s.sessions++
		r.Session, r.Seq, r.Applied, r.Left = s.sessions, 0, 0, 0
		r.Spent, r.Returned, r.Lapsed, r.AnsweredSpent, r.AnsweredReturned, r.AnsweredLapsed = 0, 0, 0, 0, 0, 0
	}
	back := min(p.Return, r.Left)
	r.Left -= back
	r.Returned += back
	r.Seq++
	r.AskedAt, r.deadline = clock(), clock()+limit.Micros(p.Deadline.Microseconds())
	r.AskedSpent, r.AskedDenied, r.AskedDemand, r.askedReturned, r.askedLapsed = r.Spent, r.Denied, p.Demand, r.Returned, r.Lapsed
	r.due = time.Now().Add(p.Deadline)
	return &bucket.Asked{Ref: r.Ref, Epoch: r.Epoch, Item: &leasepb.Item{
		Policy: r.Policy, Key: r.Key[:], Session: r.Session, Seq: r.Seq, Applied: r.Applied,
		Spent: int64(r.Spent), Returned: int64(r.Returned), Lapsed: int64(r.Lapsed), Denied: int64(r.Denied), Left: int64(r.Left),
		Want: int64(p.Want), Waiting: int64(p.Waiting), Cost: int64(r.Cost), Demand: int64(p.Demand.Up()), Draining: p.Draining,
		Traceparent: r.Traceparent,
	}}
}

func (s *store) lapse(r *record) {
	if r.Left > 0 && r.ExpiresAt <= clock() {
		r.Lapsed += r.Left
		r.Left = 0
	}
}

func (s *store) Fill(_ context.Context, grants []bucket.Grant) ([]bool, error) {
	applied := make([]bool, len(grants))
	return applied, s.call("fill", func() {
		for i, g := range grants {
			r := s.records[g.Ref]
			if r == nil || r.Epoch != g.Epoch || r.Session != g.Session || r.Seq != g.Seq || r.Applied == r.Seq {
				continue
			}
			applied[i] = true
			s.lapse(r)
			r.Left += g.Granted
			r.ExpiresAt = max(r.ExpiresAt, r.AskedAt+limit.Micros(g.TTL.Microseconds()))
			r.Applied, r.deadline, r.Waiting = r.Seq, 0, 0
			r.DryUntil = clock() + limit.Micros(g.DryFor.Microseconds())
			r.AnsweredSpent, r.AnsweredReturned, r.AnsweredLapsed = r.AskedSpent, r.askedReturned, r.askedLapsed
			r.due = time.Now().Add(time.Second)
		}
	})
}

func (s *store) Due(_ context.Context, _, most int) ([]bucket.Ref, error) {
	var refs []bucket.Ref
	return refs, s.call("due", func() {
		for ref, r := range s.records {
			if !r.due.IsZero() && !r.due.After(time.Now()) && len(refs) < most {
				refs = append(refs, ref)
			}
		}
	})
}

func (s *store) Schedule(_ context.Context, dues []bucket.Due) error {
	return s.call("schedule", func() {
		for _, d := range dues {
			if r := s.records[d.Ref]; r != nil && d.In < 0 {
				r.due = time.Time{}
			} else if r != nil {
				r.due = time.Now().Add(d.In)
			}
		}
	})
}

func (s *store) Demands(ctx context.Context, f func(bucket.Announcement)) error {
	err := s.call("demands", func() { s.hear = f })
	if err == nil {
		<-ctx.Done()
	}
	return err
}

func (s *store) Gateways(context.Context) (gateways []bucket.Gateway, err error) {
	err = s.call("gateways", func() { gateways = slices.Clone(s.gateways) })
	return gateways, err
}

// ref names the nth bucket of a shard.
func ref(shard, n int) bucket.Ref {
	var k limit.Key
	k[7] = byte(shard)
	k[14], k[15] = byte(n>>8), byte(n)
	return bucket.Ref{Shard: shard, Key: k}
}

// demand has requests of one token each wait at a bucket and announces it.
func (s *store) demand(at bucket.Ref, waiting limit.Tokens) {
	s.change(at, func(r *record) { r.Waiting += waiting })
	s.announce(at)
}

func (s *store) announce(at bucket.Ref) {
	s.mu.Lock()
	hear := s.hear
	s.mu.Unlock()
	if hear != nil {
		hear(bucket.Announcement{Ref: at})
	}
}

// change lets a take, or a mishap, change a bucket's record, which begins in the present epoch if it is not there.
func (s *store) change(at bucket.Ref, f func(*record)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.records[at]
	if r == nil || r.Epoch != s.epoch {
		r = &record{View: bucket.View{Ref: at, Epoch: s.epoch, Policy: "p", Cost: 1}}
		s.records[at] = r
	}
	f(r)
}

// spend takes one lease token, if there is one.
func (s *store) spend(at bucket.Ref) {
	s.change(at, func(r *record) {
		s.lapse(r)
		if r.Left > 0 {
			r.Left--
			r.Spent++
			r.LastSpentAt = clock()
		}
	})
}

// look reads a bucket.
func (s *store) look(at bucket.Ref) (r record) {
	s.change(at, func(found *record) { r = *found })
	return r
}

func (s *store) count(verb string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[verb]
}

// recorder gives a test a telemetry whose counts it can read.
type recorder struct {
	*telemetry.Telemetry
	reader *sdkmetric.ManualReader
}

func newRecorder(t *testing.T) recorder {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	counter, err := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test").Int64Counter("items")
	if err != nil {
		t.Fatal(err)
	}
	return recorder{reader: reader, Telemetry: &telemetry.Telemetry{
		Log: slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider().Tracer(""),
		Metrics: &telemetry.Metrics{LeaseItems: counter},
	}}
}

// items returns how many items of a kind were counted.
func (r recorder) items(t *testing.T, kind string) (n int64) {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			sum, _ := m.Data.(metricdata.Sum[int64])
			for _, point := range sum.DataPoints {
				if value, _ := point.Attributes.Value(telemetry.LabelKind); value.AsString() == kind {
					n += point.Value
				}
			}
		}
	}
	return n
}

func contextOf(t *testing.T) (context.Context, context.CancelFunc) {
	return context.WithCancel(t.Context())
}
