package region

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const (
	// mirrorEvery is how often everything is written again, in case the store lost it and nobody noticed.
	mirrorEvery = 10 * time.Second
	// mirrorLook is how soon a failed write is tried again and a first round trip is told.
	mirrorLook = time.Second
)

// mirrorStore is what the mirror needs of a region's Redis.
type mirrorStore interface {
	SetMirror(ctx context.Context, m bucket.Mirror) error
}

// leases is whom the mirror tells the regions document and asks the round trip.
type leases interface {
	SetRegions(r *policy.Regions)
	RoundTrip() time.Duration
}

// mirror copies the documents from NATS into the region's Redis, where gateways watch them.
type mirror struct {
	region string
	store  mirrorStore
	leases leases
	tel    *telemetry.Telemetry

	changed  chan struct{}
	complain rate.Sometimes

	loop struct { // owned by run
		written   time.Time
		roundTrip time.Duration
	}
	mu struct { // any goroutine
		sync.Mutex
		documents bucket.Mirror
		mirrored  bucket.Mirror // what was last written, documents' bytes left out
		err       error
	}
}

func newMirror(region string, store mirrorStore, leases leases, tel *telemetry.Telemetry) *mirror {
	return &mirror{
		region: region, store: store, leases: leases, tel: tel, changed: make(chan struct{}, 1),
		complain: rate.Sometimes{First: 1, Interval: mirrorEvery},
	}
}

// again has everything written now.
func (m *mirror) again() {
	select {
	case m.changed <- struct{}{}:
	default: // it will be
	}
}

// setPolicy takes a revision of the policy document. It is mirrored as it is: what a gateway of another version can read of
// it is the gateway's to say.
func (m *mirror) setPolicy(d bus.Document) {
	m.mu.Lock()
	m.mu.documents.PolicyRevision, m.mu.documents.Policy = d.Revision, d.Data
	m.mu.Unlock()
	m.tel.Metrics.PolicyRevision.Record(context.Background(), int64(d.Revision), metric.WithAttributes(
		telemetry.LabelRole.String("region"), telemetry.LabelRegion.String(m.region)))
	m.again()
}

// setRegions takes a revision of the regions document. One that is wrong changes nothing.
func (m *mirror) setRegions(d bus.Document) {
	regions, err := policy.DecodeRegions(d.Data)
	if err != nil {
		m.tel.Log.Error("the regions document can not be used; the one before stays", "revision", d.Revision, "error", err)
		return
	}
	if _, known := regions.Weights()[m.region]; !known {
		m.tel.Log.Warn("the regions document does not name this region: it has no share of any global limit", "revision", d.Revision)
	}
	m.leases.SetRegions(regions)
	m.mu.Lock()
	m.mu.documents.RegionsRevision, m.mu.documents.Regions = d.Revision, d.Data
	m.mu.Unlock()
	m.again()
}

// run mirrors until ctx ends.
func (m *mirror) run(ctx context.Context) {
	tick := time.NewTicker(mirrorLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.changed:
			m.write(ctx)
		case <-tick.C:
			if m.problem() != nil || time.Since(m.loop.written) >= mirrorEvery || m.loop.roundTrip == 0 && m.leases.RoundTrip() > 0 {
				m.write(ctx)
			}
		}
	}
}

// write writes what there is, which is bounded by the store's timeout.
func (m *mirror) write(ctx context.Context) {
	m.mu.Lock()
	documents := m.mu.documents
	m.mu.Unlock()
	documents.RoundTrip = m.leases.RoundTrip()
	if documents.Policy == nil && documents.Regions == nil && documents.RoundTrip == 0 {
		return
	}
	err := m.store.SetMirror(ctx, documents)
	if err == nil {
		m.loop.written, m.loop.roundTrip = time.Now(), documents.RoundTrip
	} else if ctx.Err() == nil {
		m.complain.Do(func() {
			m.tel.Log.Warn("the documents could not be mirrored into the region's Redis; it is tried again", "error", err)
		})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.err = err
	if err == nil {
		m.mu.mirrored = bucket.Mirror{PolicyRevision: documents.PolicyRevision, RegionsRevision: documents.RegionsRevision}
	}
}

// problem says what of the documents is not mirrored yet, nil if nothing.
func (m *mirror) problem() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch has := m.mu.documents; {
	case has.Policy == nil:
		return errors.New("the policy document has not come yet")
	case has.Regions == nil:
		return errors.New("the regions document has not come yet")
	case m.mu.err != nil:
		return m.mu.err
	case m.mu.mirrored.PolicyRevision != has.PolicyRevision || m.mu.mirrored.RegionsRevision != has.RegionsRevision:
		return errors.New("the documents' newest revisions are not mirrored yet")
	}
	return nil
}
