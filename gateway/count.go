package gateway

import (
	"context"
	"slices"

	"github.com/annona-gateway/annona/shared/bucket"
)

// countGateways learns how many gateways the region has, while Redis can tell: it is by how many they divide what the region
// keeps, once it cannot (`on_failure: {redis: local}`).
func (g *Gateway) countGateways(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	list, err := g.store.Gateways(ctx)
	if err != nil {
		g.telemetry.Log.DebugContext(ctx, "the region's gateways cannot be counted; the last count stays", "error", err)
		return
	}
	count := len(list)
	if !slices.ContainsFunc(list, func(other bucket.Gateway) bool { return other.ID == g.id }) {
		count++ // this one could not register
	}
	g.admitter.SetGateways(count)
}
