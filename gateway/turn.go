package gateway

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/annona-gateway/annona/gateway/admit"
)

// maxQueued is how many admitted requests of one gateway may wait for their turns at a time. Queues are as long as their policies'
// max_delay and rate allow; this bounds the connections that they keep.
const maxQueued = 10_000

var (
	errQueueFull = errors.New("too many requests of this gateway wait for their turns; raise the policies' rates or lower their max_delay")
	errDraining  = errors.New("the gateway ends before the request's turn would come")
)

// turn waits until the request's turn has come (max_delay). A client that leaves gives its place back, which End does.
func (g *Gateway) turn(ctx context.Context, hold *admit.Hold) error {
	wait := hold.Delay()
	if wait <= 0 {
		return nil
	}
	ctx, span := g.telemetry.Tracer.Start(ctx, "turn")
	defer span.End()
	came := time.Now()
	defer func() {
		g.telemetry.Metrics.QueueWait.Record(context.WithoutCancel(ctx), time.Since(came).Seconds())
	}()
	switch {
	case g.queued.Add(1) > maxQueued:
		g.queued.Add(-1)
		return refusedTurn(errQueueFull)
	case g.draining.Load() && wait > g.config.Drain.Timeout:
		g.queued.Add(-1)
		return refusedTurn(errDraining)
	}
	defer g.queued.Add(-1)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // the client has left: there is nobody to tell
	}
}

func refusedTurn(cause error) error {
	return notAdmittedError{&admit.Decision{Answer: admit.Refused, Cause: cause}}
}

// settle ends what an admitted request still owed: it is called once, when all has been said to the client.
func (x *exchange) settle() {
	if x.let != nil {
		defer x.let()
	}
	if x.decision == nil {
		return
	}
	if !x.forwarded {
		x.decision.Hold.Abandon()
		return
	}
	status := x.answer.status
	if x.failed > 0 {
		status = x.failed // also where gRPC is told in an answer of 200
	}
	header := x.answer.Header()
	x.decision.Hold.End(admit.Ended{Status: status, Said: func(name string) []string {
		if values := header.Values(name); len(values) > 0 {
			return values
		}
		return header.Values(http.TrailerPrefix + name) // a trailer that was not announced
	}})
}
