package allocator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// The waits between attempts to begin while NATS is out, and the longest that one attempt takes.
const (
	retryFirst     = 100 * time.Millisecond
	retryMost      = 5 * time.Second
	attemptTimeout = 20 * time.Second
)

// works is what needs NATS: the stored documents and the lessor over the journal.
type works struct {
	store  *bus.Documents
	lessor *lessor.Lessor
}

// Ready says what the allocator still lacks. All of it is required: without, no region gets a token.
func (a *Allocator) Ready(ctx context.Context) []telemetry.Check {
	check := func(name string, err error) telemetry.Check {
		c := telemetry.Check{Name: name, OK: err == nil, Required: true}
		if err != nil {
			c.Detail = err.Error()
		}
		return c
	}
	var documents error
	if p, r := a.documents.both(); p == nil || r == nil {
		documents = errors.New("policies and regions are not both loaded; put policies through the admin API if there are none")
	}
	shards := errors.New(*a.waits.Load())
	if l := a.lessor.Load(); l != nil {
		shards = l.Ready()
	}
	checks := []telemetry.Check{check("nats", bus.Status(a.conn)), check("documents", documents), check("shards", shards)}
	if a.cfg.AlsoReady != nil {
		checks = append(checks, a.cfg.AlsoReady(ctx)...)
	}
	return checks
}

// Serves tells whether every shard's journal is replayed and regions are answered.
func (a *Allocator) Serves() bool {
	l := a.lessor.Load()
	return l != nil && l.Ready() == nil
}

// work begins as soon as NATS allows and runs until ctx ends.
func (a *Allocator) work(ctx context.Context) error {
	w, err := a.begin(ctx)
	if err == nil {
		a.api.Attach(w.store, w.lessor)
		a.lessor.Store(w.lessor)
		err = a.lease(ctx, w)
	}
	if errors.Is(err, context.Canceled) {
		return nil // the drain
	}
	return err
}

// lease keeps the documents up to date and serves regions until ctx ends.
func (a *Allocator) lease(ctx context.Context, w *works) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return w.store.Watch(ctx, bus.PolicyDocument, func(d bus.Document) { a.documents.takePolicies(ctx, d) })
	})
	group.Go(func() error {
		return w.store.Watch(ctx, bus.RegionsDocument, func(d bus.Document) { a.documents.takeRegions(ctx, d) })
	})
	group.Go(func() error { return w.lessor.Run(ctx) })
	return group.Wait() //nolint:wrapcheck // each of the three says what failed
}

// begin tries until NATS answers, or ctx ends. A missing journal, or an Init that finds one, needs an operator.
func (a *Allocator) begin(ctx context.Context) (*works, error) {
	for attempt, wait := 1, retryFirst; ; attempt, wait = attempt+1, min(2*wait, retryMost) {
		w, err := a.attempt(ctx)
		switch {
		case err == nil:
			return w, nil
		case errors.Is(err, journal.ErrExists) && attempt > 1:
			return nil, fmt.Errorf("%w (an attempt of this very start may have made it before NATS went out)", err)
		case errors.Is(err, journal.ErrExists), errors.Is(err, journal.ErrMissing):
			return nil, err
		}
		a.waits.Store(new(err.Error()))
		a.tel.Log.WarnContext(ctx, "waiting for NATS", "error", err.Error(), "attempt", attempt, "again_in", wait.String())
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("start: %w", ctx.Err())
		case <-timer.C:
		}
	}
}

// attempt opens the journal before it stores any document, so that a refused start changed nothing.
func (a *Allocator) attempt(ctx context.Context) (*works, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if err := bus.Status(a.conn); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	stored, err := journal.OpenJetStream(ctx, a.conn, a.cfg.NATS.Replicas, a.cfg.Init)
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	if a.cfg.Init {
		a.tel.Log.WarnContext(ctx, "a new journal has begun, with every pool full")
		a.cfg.Init = false // done: a later attempt opens what this one made
	}
	store, err := bus.OpenDocuments(ctx, a.conn, a.cfg.NATS.Replicas, true)
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	if err := a.documents.load(ctx, store, a.cfg, a.policies); err != nil {
		return nil, err
	}
	_, regions := a.documents.both()
	return &works{store: store, lessor: lessor.New(lessor.Config{
		Conn: a.conn, Journal: stored, Shards: regions.Shards, Fingerprint: a.secret.Fingerprint(),
		Documents: a.documents.both, Telemetry: a.tel,
	})}, nil
}
