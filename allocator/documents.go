package allocator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/metric"

	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// snapshot is both documents at one moment; either is nil until it was loaded.
type snapshot struct {
	policy  *policy.Document
	regions *policy.Regions
}

// documents is the allocator's copy of the stored documents: always one that was valid, never one older than before.
type documents struct {
	log      *slog.Logger
	revision metric.Int64Gauge

	mu      sync.Mutex // orders those who replace current
	current atomic.Pointer[snapshot]
}

func newDocuments(tel *telemetry.Telemetry) *documents {
	d := &documents{log: tel.Log, revision: tel.Metrics.PolicyRevision}
	d.current.Store(&snapshot{})
	return d
}

// both returns the documents in force.
func (d *documents) both() (*policy.Document, *policy.Regions) {
	s := d.current.Load()
	return s.policy, s.regions
}

// takePolicies puts a stored revision in force, unless it is not newer or does not parse: then the last good one stays.
func (d *documents) takePolicies(ctx context.Context, stored bus.Document) {
	doc, problems := policy.Parse(stored.Data)
	if doc == nil {
		d.log.ErrorContext(ctx, "the stored policies do not parse; the revision before stays in force",
			"revision", stored.Revision, "error", problems.Err())
		return
	}
	doc.Revision = stored.Revision
	d.mu.Lock()
	defer d.mu.Unlock()
	next := *d.current.Load()
	if next.policy != nil && next.policy.Revision >= doc.Revision {
		return
	}
	next.policy = doc
	d.current.Store(&next)
	d.revision.Record(ctx, int64(min(doc.Revision, 1<<62)), metric.WithAttributes(telemetry.LabelRole.String("allocator")))
	d.log.InfoContext(ctx, "policies in force", "revision", doc.Revision, "policies", len(doc.Policies))
}

// takeRegions does the same for the regions document. The number of shards never changes: it is the journal's.
func (d *documents) takeRegions(ctx context.Context, stored bus.Document) {
	doc, err := policy.DecodeRegions(stored.Data)
	if err != nil {
		d.log.ErrorContext(ctx, "the stored regions can not be used; the revision before stays in force",
			"revision", stored.Revision, "error", err)
		return
	}
	doc.Revision = stored.Revision
	d.mu.Lock()
	defer d.mu.Unlock()
	next := *d.current.Load()
	if next.regions != nil && next.regions.Revision >= doc.Revision {
		return
	}
	if next.regions != nil && next.regions.Shards != doc.Shards {
		d.log.ErrorContext(ctx, "the stored regions have another number of shards; the revision before stays in force",
			"revision", stored.Revision, "shards", doc.Shards, "in_force", next.regions.Shards)
		return
	}
	next.regions = doc
	d.current.Store(&next)
	d.log.InfoContext(ctx, "regions in force", "revision", doc.Revision, "regions", len(doc.Regions))
}

// load puts the stored documents in force, storing those of the configuration first where there are none.
func (d *documents) load(ctx context.Context, store *bus.Documents, cfg Config, policies []byte) error {
	wanted, err := policy.EncodeRegions(cfg.regions())
	if err != nil {
		return fmt.Errorf("regions: %w", err)
	}
	stored, err := d.getOrPut(ctx, store, bus.RegionsDocument, wanted)
	if err != nil {
		return err
	}
	d.takeRegions(ctx, stored)
	_, regions := d.both()
	if regions == nil {
		return errors.New("the stored regions can not be used; the log says why")
	}
	if !sameRegions(regions, cfg.regions()) {
		d.log.WarnContext(ctx, "the regions of the configuration differ from the stored ones, which win", "revision", regions.Revision)
	}
	stored, err = d.getOrPut(ctx, store, bus.PolicyDocument, policies)
	if errors.Is(err, bus.ErrNoDocument) {
		d.log.WarnContext(ctx, "there are no policies yet; put them through the admin API, or name a policies file")
		return nil
	}
	if err != nil {
		return err
	}
	if len(policies) > 0 && !bytes.Equal(stored.Data, policies) {
		d.log.WarnContext(ctx, "the policies of the configuration differ from the stored ones, which win", "revision", stored.Revision)
	}
	d.takePolicies(ctx, stored)
	return nil
}

// getOrPut returns the stored document called name, first storing data where there is none; ErrNoDocument where there is no
// data either.
func (d *documents) getOrPut(ctx context.Context, store *bus.Documents, name string, data []byte) (bus.Document, error) {
	stored, err := store.Get(ctx, name)
	if errors.Is(err, bus.ErrNoDocument) && len(data) > 0 {
		var revision uint64
		if revision, err = store.Put(ctx, name, 0, data); err == nil {
			d.log.InfoContext(ctx, "document stored from the configuration", "document", name, "revision", revision)
			return bus.Document{Revision: revision, Data: data}, nil
		}
		if errors.Is(err, bus.ErrStale) { // another allocator was first
			stored, err = store.Get(ctx, name)
		}
	}
	if err != nil {
		return bus.Document{}, fmt.Errorf("start: %w", err)
	}
	return stored, nil
}

// sameRegions compares what an operator writes, in any order.
func sameRegions(a, b *policy.Regions) bool {
	byName := func(r policy.Region, s policy.Region) int { return strings.Compare(r.Name, s.Name) }
	return a.Shards == b.Shards && a.Times == b.Times &&
		slices.Equal(slices.SortedFunc(slices.Values(a.Regions), byName), slices.SortedFunc(slices.Values(b.Regions), byName))
}
