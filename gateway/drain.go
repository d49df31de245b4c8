package gateway

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// DrainConfig is gateway.yaml's `drain` section: how a gateway ends that was told to. Whoever ends it (`terminationGracePeriodSeconds`,
// `TimeoutStopSec`, `docker stop --time`) has to give it longer than Timeout.
type DrainConfig struct {
	// Delay is for how long it still takes new connections, while /readyz says 503: until load balancers have noticed.
	Delay time.Duration `yaml:"delay"`
	// Timeout bounds the whole, Delay included: what is in flight then, streams among it, is cut off.
	Timeout time.Duration `yaml:"timeout"`
}

// The defaults: a Service's endpoints in Kubernetes, and load balancers that probe once a second, follow within three seconds;
// ten are what `docker stop` grants.
const (
	defaultDrainDelay   = 3 * time.Second
	defaultDrainTimeout = 9 * time.Second
	maxDrainTimeout     = time.Hour
	// cutWithin is how long requests that were cut off have to end.
	cutWithin = time.Second
)

func (d DrainConfig) validate() error {
	if d.Delay < 0 || d.Timeout <= d.Delay || d.Timeout > maxDrainTimeout {
		return errors.New("drain: give a timeout of at most 1h and a delay that is shorter, such as {delay: 3s, timeout: 9s}")
	}
	return nil
}

// inFlight are the requests between their header and the end of their answer, upgraded connections included, of which
// http.Server loses sight.
type inFlight struct {
	count atomic.Int64
	ctx   context.Context //nolint:containedctx // every request's context comes from it: its end ends them
	cut   context.CancelFunc

	drains chan struct{} // closed when a drain begins
	ends   time.Time     // when it ends; set before drains is closed
}

func newInFlight() *inFlight {
	f := &inFlight{drains: make(chan struct{})}
	f.ctx, f.cut = context.WithCancel(context.Background())
	return f
}

// base is the context of all requests.
func (f *inFlight) base(net.Listener) context.Context { return f.ctx }

// none waits until there are none, or ctx ends.
func (f *inFlight) none(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for f.count.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// drain ends serving: first it is said to probes, and every answer ends its connection, while new ones are still taken; then
// none is, and requests in flight go on to their end or to the end of the time.
func (g *Gateway) drain(ctx context.Context, delay time.Duration) {
	g.draining.Store(true)
	timeout := g.config.Drain.Timeout
	g.inFlight.ends = time.Now().Add(timeout)
	close(g.inFlight.drains)
	g.telemetry.Log.InfoContext(ctx, "gateway drains", "delay", delay.String(), "timeout", timeout.String())
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	<-time.After(delay)
	err := g.server.Shutdown(ctx)
	if err == nil {
		err = g.inFlight.none(ctx)
	}
	if err != nil {
		g.telemetry.Log.WarnContext(ctx, "requests were cut off at the end of the drain", "requests", g.inFlight.count.Load())
	}
	g.inFlight.cut()
	_ = g.server.Close() // its error is that of the listener, closed already
	_ = g.adminServer.Close()
	ended, cancel := context.WithTimeout(context.WithoutCancel(ctx), cutWithin)
	defer cancel()
	_ = g.inFlight.none(ended) // for what was cut off has slots and costs to give back
}
