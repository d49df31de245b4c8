// Package region is the role that brings tokens into a region: its agent leases them from the allocator for the buckets in the
// region's Redis, settles and returns them, and mirrors the policy and regions documents there for the gateways to watch.
//
// Gateways and agents meet only in Redis. An agent keeps nothing that matters: every lease stands in its bucket's record, so
// any agent goes on where another ended, and several may run side by side.
package region

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/metric"

	"github.com/annona-gateway/annona/region/lessee"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/lease"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// Bounds of the admin port's connections, which only probes and scrapers use.
const (
	adminTimeout   = 10 * time.Second
	maxHeaderBytes = 16 << 10
	// closeTimeout bounds what comes after the drain.
	closeTimeout = time.Second
)

// Agent is one agent of a region.
type Agent struct {
	cfg       Config
	tel       *telemetry.Telemetry
	conn      *nats.Conn
	store     *bucket.Store
	lessee    *lessee.Lessee
	documents *bus.Documents
	mirror    *mirror
	listener  net.Listener
	draining  atomic.Bool
}

// Open checks cfg, binds the admin port and begins to connect. It waits neither for NATS nor for Redis. Its errors wrap
// config.ErrUsage where the configuration must change.
func Open(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*Agent, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("%w:\n%w", config.ErrUsage, err)
	}
	a := &Agent{cfg: cfg, tel: tel}
	if err := a.open(ctx); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return a, nil
}

func (a *Agent) open(ctx context.Context) (err error) {
	var listen net.ListenConfig
	if a.listener, err = listen.Listen(ctx, "tcp", a.cfg.Admin); err != nil {
		return fmt.Errorf("agent of %s: %w; free the address or give another in admin", a.cfg.Region, err)
	}
	redis := a.cfg.Redis
	redis.EpochBegun = a.epochBegun
	if a.store, err = bucket.Open(redis); err != nil {
		return fmt.Errorf("%w: %w", config.ErrUsage, err)
	}
	a.cfg.NATS.Name = "annona region " + a.cfg.Region
	a.cfg.NATS.Inbox = lease.InboxPrefix(a.cfg.Region)
	if a.conn, err = bus.Connect(a.cfg.NATS); err != nil {
		return fmt.Errorf("%w: %w", config.ErrUsage, err)
	}
	if a.documents, err = bus.OpenDocuments(ctx, a.conn, 0, false); err != nil {
		return err
	}
	names := lessee.Config{Region: a.cfg.Region, Agent: rand.Text(), NewEpoch: func() { a.mirror.again() }}
	a.lessee = lessee.New(names, a.store, a.conn, a.tel)
	a.mirror = newMirror(a.cfg.Region, a.store, a.lessee, a.tel)
	return nil
}

// epochBegun hears that the store had forgotten a shard, and with it likely what was mirrored.
func (a *Agent) epochBegun(shard int, reason string) {
	a.tel.Metrics.EpochBegun.Add(context.Background(), 1, metric.WithAttributes(
		telemetry.LabelReason.String(reason), telemetry.LabelRegion.String(a.cfg.Region)))
	a.tel.Log.Info("the region's Redis has begun a new epoch; its leases from before are void", "shard", shard, "reason", reason)
	a.mirror.again()
}

// AdminAddr is where probes and metrics are.
func (a *Agent) AdminAddr() net.Addr { return a.listener.Addr() }

// Run keeps the region's leases until ctx ends, then settles and returns them within ten seconds, and returns nil. It returns
// an error only where the admin port fails.
func (a *Agent) Run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	// The documents are mirrored until the drain is over: gateways go on meanwhile.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	drains := context.AfterFunc(ctx, func() { a.draining.Store(true) })
	defer drains()
	server := &http.Server{
		Handler: a.tel.Handler(a.Ready), ReadHeaderTimeout: adminTimeout, ReadTimeout: adminTimeout, WriteTimeout: adminTimeout,
		IdleTimeout: adminTimeout, MaxHeaderBytes: maxHeaderBytes, ErrorLog: slog.NewLogLogger(a.tel.Log.Handler(), slog.LevelDebug),
	}
	var group sync.WaitGroup
	var failed error
	group.Go(func() {
		if err := server.Serve(a.listener); !errors.Is(err, http.ErrServerClosed) {
			failed = fmt.Errorf("admin port: %w", err)
			end()
		}
	})
	group.Go(func() { a.watch(work, bus.PolicyDocument, a.mirror.setPolicy) })
	group.Go(func() { a.watch(work, bus.RegionsDocument, a.mirror.setRegions) })
	group.Go(func() { a.mirror.run(work) })
	group.Go(func() { a.store.Ticks(work, a.lessee.Shards) })
	a.tel.Log.Info("agent runs", "admin", a.AdminAddr().String())
	err := a.lessee.Run(ctx)
	stop()
	_ = server.Close() // its error is that of the listener, closed anyway
	group.Wait()
	return errors.Join(err, failed)
}

// watch hands a document's revisions on until ctx ends.
func (a *Agent) watch(ctx context.Context, name string, f func(bus.Document)) {
	if err := a.documents.Watch(ctx, name, f); err != nil && ctx.Err() == nil {
		a.tel.Log.Error("a document is not watched any more; restart the agent", "document", name, "error", err)
	}
}

// Ready says what the agent depends on and whether it is there.
func (a *Agent) Ready(ctx context.Context) []telemetry.Check {
	check := func(name string, required bool, err error) telemetry.Check {
		c := telemetry.Check{Name: name, OK: err == nil, Required: required}
		if err != nil {
			c.Detail = err.Error()
		}
		return c
	}
	var allocator, serving error
	if a.lessee.RoundTrip() == 0 {
		allocator = errors.New("no allocator has answered yet")
	}
	if a.draining.Load() {
		serving = errors.New("the agent drains")
	}
	redis := check("redis", true, a.store.Ping(ctx))
	if redis.OK {
		redis.Detail = strings.Join(a.store.Warnings(), "; ")
	}
	return []telemetry.Check{
		check("serving", true, serving),
		check("nats", true, bus.Status(a.conn)),
		redis,
		check("documents", true, a.mirror.problem()),
		check("hash_secret", true, a.lessee.Secret()),
		check("allocator", false, allocator),
	}
}

// Close lets go of what Open took. Run must have returned, or never been called.
func (a *Agent) Close() error {
	var problems []error
	if a.conn != nil {
		a.conn.Close()
	}
	if a.store != nil {
		problems = append(problems, a.store.Close())
	}
	if a.listener != nil {
		if err := a.listener.Close(); !errors.Is(err, net.ErrClosed) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}
