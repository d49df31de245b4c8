package gateway

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// errBlocked ends the requests of a blocked identity. It comes before paths and policies: there is nothing that they may.
var errBlocked = errors.New("this client is blocked; ask whoever runs this API")

// blocksPoll bounds how late a block is whose announcement was lost.
const blocksPoll = 30 * time.Second

// blocks are the region's, as last read. They outlive Redis, as the documents do.
type blocks struct {
	until atomic.Pointer[map[limit.Key]time.Time] // zero: until it is removed
}

// blockable are the parts of an identity that can be blocked, each for itself.
type blockable struct{ part, value string }

// blockablesOf are id's. An address stands for its network, as in the keys of policies.
func blockablesOf(id *policy.Identity) []blockable {
	list := make([]blockable, 0, 3)
	if id.User != "" {
		list = append(list, blockable{"user", id.User})
	}
	if id.APIKey != "" {
		list = append(list, blockable{"api_key", id.APIKey})
	}
	if addr := id.Network; addr.IsValid() {
		list = append(list, blockable{"ip", addr.String()})
	} else if id.IP.IsValid() {
		list = append(list, blockable{"ip", id.IP.String()})
	}
	return list
}

// id is what names b in Redis, URLs and logs: it reveals nothing.
func (b blockable) id(secret *limit.Secret) limit.Key { return secret.Key("block", b.part, b.value) }

// blocked tells whether some part of id is blocked.
func (g *Gateway) blocked(id *policy.Identity) bool {
	until := g.blocks.until.Load()
	if until == nil || len(*until) == 0 {
		return false
	}
	for _, part := range blockablesOf(id) {
		if end, found := (*until)[part.id(g.secret)]; found && (end.IsZero() || time.Now().Before(end)) {
			return true
		}
	}
	return false
}

// checkBlocks is the step of the pipeline.
func (g *Gateway) checkBlocks(ctx context.Context, id *policy.Identity) error {
	if !g.blocked(id) {
		return nil
	}
	g.telemetry.Metrics.Blocked.Add(ctx, 1, metric.WithAttributes(telemetry.LabelRegion.String(g.config.Region)))
	return errBlocked
}

// readBlocks takes over the blocks that Redis holds. What cannot be read changes nothing.
func (g *Gateway) readBlocks(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	list, err := g.store.Blocks(ctx)
	if err != nil {
		g.telemetry.Log.DebugContext(ctx, "the blocks cannot be read; the last good ones stay", "error", err)
		return
	}
	g.takeBlocks(list, time.Now())
}

func (g *Gateway) takeBlocks(list []bucket.Block, now time.Time) {
	until := make(map[limit.Key]time.Time, len(list))
	for _, b := range list {
		var end time.Time
		if b.Left > 0 {
			end = now.Add(b.Left)
		}
		until[b.ID] = end
	}
	g.blocks.until.Store(&until)
}

// watchBlocks keeps the blocks as new as Redis' until ctx ends.
func (g *Gateway) watchBlocks(ctx context.Context, changed <-chan struct{}) {
	tick := time.NewTicker(blocksPoll)
	defer tick.Stop()
	for {
		g.readBlocks(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-changed:
		}
	}
}
