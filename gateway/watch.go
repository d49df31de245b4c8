package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/policy"
)

const (
	// pollEvery bounds how late a change of the mirror is whose announcement was lost, and keeps our registration fresh.
	pollEvery = 5 * time.Second
	// pollTimeout bounds one look at the mirror.
	pollTimeout = time.Second
	// resubscribeAfter is the pause before a subscription that ended is tried again.
	resubscribeAfter = 500 * time.Millisecond
)

// documents are the last good copies. They outlive Redis: an outage, or a Redis that lost everything, takes nobody's limits away.
type documents struct {
	policies *policy.Document
	regions  *policy.Regions
	failed   uint64 // the policy revision that was last refused, so that it is told once
}

// rereadPolicies is a reload: it reads the gateway's own policy document, if there is one, and has the loop use it.
func (g *Gateway) rereadPolicies() error {
	if g.current.Policies == "" {
		return nil
	}
	source, err := os.ReadFile(g.current.Policies)
	if err != nil {
		return fmt.Errorf("%w: policies: %w", config.ErrUsage, err)
	}
	doc, err := parse(source)
	if err != nil {
		return fmt.Errorf("%w: policies in %s:\n%w", config.ErrUsage, g.current.Policies, err)
	}
	g.own.Store(doc)
	poke(g.changed)
	return nil
}

// takeOwn uses the gateway's own document if it was read anew and no mirror has brought one: what the region's Redis holds wins.
func (g *Gateway) takeOwn(ctx context.Context) {
	if own := g.own.Swap(nil); own != nil && (g.loop.policies == nil || g.loop.policies.Revision == 0) {
		g.loop.policies = own
		g.compile(ctx)
	}
}

// parse returns the document, or all its errors.
func parse(source []byte) (*policy.Document, error) {
	doc, problems := policy.Parse(source)
	if doc != nil {
		return doc, nil
	}
	var all []error
	for _, p := range problems {
		if p.Severity == policy.SeverityError {
			all = append(all, fmt.Errorf("%d:%d: %s; %s", p.Line, p.Column, p.Message, p.Remedy))
		}
	}
	return nil, errors.Join(all...)
}

// watch keeps the documents as new as the mirror, and the gateway registered, until ctx ends.
func (g *Gateway) watch(ctx context.Context) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		g.refresh(ctx)
		g.register(ctx)
		g.countGateways(ctx)
		g.checkers.reload(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-g.changed:
		}
	}
}

// refresh takes over what the mirror has newer. What cannot be read or used changes nothing.
func (g *Gateway) refresh(ctx context.Context) {
	g.takeOwn(ctx)
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	mirror, err := g.store.Mirror(ctx)
	if err != nil {
		g.telemetry.Log.DebugContext(ctx, "the mirror cannot be read; the last good documents stay", "error", err)
		return
	}
	g.admitter.SetRoundTrip(mirror.RoundTrip)
	policies := g.takePolicies(ctx, mirror)
	regions := g.takeRegions(ctx, mirror)
	if policies || regions {
		g.compile(ctx)
		g.telemetry.Log.InfoContext(ctx, "documents changed",
			"policy_revision", g.loop.policies.Revision, "regions_revision", mirror.RegionsRevision)
	}
}

// takePolicies tells whether there is a newer policy document to use.
func (g *Gateway) takePolicies(ctx context.Context, mirror bucket.Mirror) bool {
	revision := mirror.PolicyRevision
	if revision == 0 || (g.loop.policies != nil && revision <= g.loop.policies.Revision) || revision == g.loop.failed {
		return false
	}
	doc, err := parse(mirror.Policy)
	if err != nil {
		g.loop.failed = revision
		why := fmt.Sprintf("revision %d is refused: %s", revision, strings.ReplaceAll(err.Error(), "\n", "; "))
		g.refused.Store(&why)
		g.telemetry.Log.ErrorContext(ctx, "a mirrored policy document cannot be used; the last good one stays",
			"revision", revision, "error", err)
		return false
	}
	doc.Revision = revision
	g.loop.policies = doc
	g.refused.Store(nil)
	return true
}

// takeRegions tells whether there is a newer regions document to use, and a policy document to use it with.
func (g *Gateway) takeRegions(ctx context.Context, mirror bucket.Mirror) bool {
	if mirror.RegionsRevision == 0 || (g.loop.regions != nil && mirror.RegionsRevision <= g.loop.regions.Revision) {
		return false
	}
	regions, err := policy.DecodeRegions(mirror.Regions)
	if err != nil {
		g.telemetry.Log.ErrorContext(ctx, "the mirrored regions document cannot be used; the last good one stays", "error", err)
		return false
	}
	regions.Revision = mirror.RegionsRevision
	g.loop.regions = regions
	return g.loop.policies != nil
}

// compile puts the documents in use, all at once.
func (g *Gateway) compile(ctx context.Context) {
	g.admitter.Use(admit.Compile(g.loop.policies, g.loop.regions, g.config.Region, g.secret))
	g.telemetry.Metrics.PolicyRevision.Record(ctx, int64(min(g.loop.policies.Revision, 1<<62)),
		metric.WithAttributes(attribute.String("role", "gateway"), attribute.String("region", g.config.Region)))
}

// register tells the region's agents that this gateway is there, with what it runs.
func (g *Gateway) register(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	heard, _ := g.admitter.Heard()
	me := bucket.Gateway{ID: g.id, Fingerprint: g.secret.Fingerprint(), Heard: heard}
	if s := g.admitter.Snapshot(); s != nil {
		me.Revision = s.Revision()
	}
	if err := g.store.Register(ctx, me); err != nil {
		g.telemetry.Log.DebugContext(ctx, "the gateway cannot register", "error", err)
	}
}

// subscribe listens until ctx ends. A subscription that breaks is begun again; what was announced meanwhile is found by polling
// or costs a waiting request its wait.
func (g *Gateway) subscribe(ctx context.Context, what string, listen func() error) {
	for {
		err := listen()
		if ctx.Err() != nil {
			return
		}
		g.telemetry.Log.DebugContext(ctx, "a subscription ended; beginning again", "to", what, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(resubscribeAfter):
		}
	}
}

// poke asks for a refresh, unless one is asked for already.
func poke(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}
