package region

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// redisFake remembers what is mirrored, or is out.
type redisFake struct {
	mu     sync.Mutex
	out    bool
	writes []bucket.Mirror
}

func (s *redisFake) SetMirror(_ context.Context, m bucket.Mirror) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out {
		return errors.New("connection refused")
	}
	s.writes = append(s.writes, m)
	return nil
}

// all returns what was written so far.
func (s *redisFake) all() []bucket.Mirror {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

// last returns what was written last.
func (s *redisFake) last() bucket.Mirror {
	all := s.all()
	return all[len(all)-1]
}

func (s *redisFake) set(out bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = out
}

// leasesFake has a round trip and remembers the regions document.
type leasesFake struct {
	mu        sync.Mutex
	roundTrip time.Duration
	regions   *policy.Regions
}

func (l *leasesFake) RoundTrip() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.roundTrip
}

func (l *leasesFake) SetRegions(r *policy.Regions) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.regions = r
}

func (l *leasesFake) measured(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.roundTrip = d
}

// regionsDocument is the fourth revision.
func regionsDocument(t *testing.T, shards int) bus.Document {
	t.Helper()
	data, err := policy.EncodeRegions(&policy.Regions{
		Regions: []policy.Region{{Name: "eu", Weight: 1}}, Shards: shards, Times: policy.DefaultTimes(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return bus.Document{Revision: 4, Data: data}
}

// inBubble runs f with a running mirror.
func inBubble(t *testing.T, f func(m *mirror, store *redisFake, leases *leasesFake)) {
	t.Helper()
	tel := telemetry.ForTest(io.Discard)
	synctest.Test(t, func(t *testing.T) {
		store, leases := &redisFake{}, &leasesFake{}
		m := newMirror("eu", store, leases, tel)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { m.run(ctx) })
		f(m, store, leases)
		cancel()
		group.Wait()
	})
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestMirrorWritesEachChangeAtOnceAndAllAgainEveryTenSeconds(t *testing.T) {
	inBubble(t, func(m *mirror, store *redisFake, leases *leasesFake) {
		pass(time.Minute)
		if len(store.all()) != 0 || m.problem() == nil {
			t.Fatalf("%d writes, problem %v; want none before there is a document, and to hear that", len(store.all()), m.problem())
		}
		m.setPolicy(bus.Document{Revision: 3, Data: []byte("p3")})
		m.setRegions(regionsDocument(t, 16))
		pass(time.Millisecond)
		last := store.last()
		if last.PolicyRevision != 3 || string(last.Policy) != "p3" || last.RegionsRevision != 4 || len(last.Regions) == 0 {
			t.Errorf("mirrored %+v, want revisions 3 and 4", last)
		}
		if m.problem() != nil || leases.regions == nil || leases.regions.Shards != 16 {
			t.Errorf("problem %v, regions %v; want none, and 16 shards known", m.problem(), leases.regions)
		}
		n := len(store.all())
		pass(31 * time.Second)
		if again := len(store.all()) - n; again != 2 && again != 3 {
			t.Errorf("%d writes in 31 s without a change, want one in 10 s", again)
		}
		n = len(store.all())
		m.again()
		pass(time.Millisecond)
		if len(store.all()) != n+1 {
			t.Errorf("%d writes after the store had lost all, want 1 at once", len(store.all())-n)
		}
	})
}

func TestMirrorTriesAgainWhileTheStoreIsOut(t *testing.T) {
	inBubble(t, func(m *mirror, store *redisFake, _ *leasesFake) {
		store.set(true)
		m.setPolicy(bus.Document{Revision: 3, Data: []byte("p3")})
		m.setRegions(regionsDocument(t, 32))
		pass(5 * time.Second)
		if m.problem() == nil {
			t.Error("no problem is told while nothing could be mirrored")
		}
		store.set(false)
		pass(1100 * time.Millisecond)
		if m.problem() != nil || len(store.all()) == 0 {
			t.Errorf("problem %v and %d writes a second after the store came back", m.problem(), len(store.all()))
		}
	})
}

// A regions document that is wrong changes nothing.
func TestMirrorKeepsTheLastGoodRegions(t *testing.T) {
	inBubble(t, func(m *mirror, store *redisFake, leases *leasesFake) {
		m.setRegions(regionsDocument(t, 16))
		m.setRegions(bus.Document{Revision: 5, Data: []byte(`{"shards": 0}`)})
		pass(time.Millisecond)
		if last := store.last(); last.RegionsRevision != 4 || leases.regions.Shards != 16 {
			t.Errorf("revision %d with %d shards, want the good 4 with 16", last.RegionsRevision, leases.regions.Shards)
		}
	})
}

// Gateways wait for leases as long as the round trip tells them to, so the first measurement is told soon.
func TestMirrorTellsTheFirstRoundTrip(t *testing.T) {
	inBubble(t, func(m *mirror, store *redisFake, leases *leasesFake) {
		m.setPolicy(bus.Document{Revision: 3, Data: []byte("p3")})
		m.setRegions(regionsDocument(t, 16))
		pass(3500 * time.Millisecond)
		leases.measured(80 * time.Millisecond)
		pass(time.Second)
		if !slices.ContainsFunc(store.all(), func(m bucket.Mirror) bool { return m.RoundTrip == 80*time.Millisecond }) {
			t.Errorf("mirrored %+v, want the round trip of 80 ms within a second", store.all())
		}
	})
}
