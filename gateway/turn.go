package gateway

import (
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

// turn waits until the turn of x's request has come (max_delay), and returns an error where it does not: what the request was
// charged it then gets back, its place with it. One whose turn would come after the end of a drain is told so at once.
func (g *Gateway) turn(r *http.Request, x *exchange) error {
	ctx, wait := r.Context(), x.decision.Hold.Delay()
	if wait <= 0 || ctx.Err() != nil {
		return ctx.Err() // the client has left: there is nobody to tell
	}
	ctx, span := g.telemetry.Tracer.Start(ctx, "turn")
	defer span.End()
	came := time.Now()
	defer g.queued.Add(-1)
	if g.queued.Add(1) > maxQueued {
		return x.refuse(errQueueFull)
	}
	defer func() {
		g.telemetry.Metrics.QueueWait.Record(r.Context(), time.Since(came).Seconds())
	}()
	g.readAhead(r, x)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	drained := g.inFlight.drains
	for {
		select {
		case <-timer.C:
			return nil
		case <-drained:
			if came.Add(wait).After(g.inFlight.ends) {
				return x.refuse(errDraining)
			}
			drained = nil // there is time
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// refuse makes x's decision, by which the request was admitted, a refusal.
func (x *exchange) refuse(cause error) error {
	d := *x.decision
	d.Answer, d.Cause = admit.Refused, cause
	x.decision = &d
	return notAdmittedError{&d}
}

// settle ends what a request still owed: it is called once, when all has been said to the client.
func (x *exchange) settle() {
	if x.let != nil {
		defer x.let()
	}
	switch {
	case x.decision == nil:
	case x.decision.Answer == admit.Denied: // what policies that only report have charged stays charged
		x.decision.Hold.End(admit.Ended{})
	case !x.forwarded:
		x.decision.Hold.Abandon()
	default:
		status := x.answer.status
		if x.failed > 0 {
			status = x.failed // also where gRPC is told in an answer of 200
		}
		x.decision.Hold.End(admit.Ended{Status: status, Said: x.said})
	}
}

// said returns the values of a header or trailer of the answer.
func (x *exchange) said(name string) []string {
	header := x.answer.Header()
	if values := header.Values(name); len(values) > 0 {
		return values
	}
	return header.Values(http.TrailerPrefix + name) // a trailer that was not announced
}
