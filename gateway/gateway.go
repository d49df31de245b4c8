// Package gateway is the role that clients talk to: it identifies a request, asks the region's Redis whether its limits admit
// it, and carries it to the upstream. It holds no tokens and no credential of NATS; all it shares with others is Redis.
package gateway

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/annona-gateway/annona/gateway/admit"
	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// Bounds on clients; more about slow ones at patience.
const (
	adminTimeout = 10 * time.Second
	idleTimeout  = 2 * time.Minute
	maxHeader    = 64 << 10
)

// store is what a gateway needs of its region's Redis.
type store interface {
	admit.Taker
	admit.Settler
	operatorStore
	Fills(ctx context.Context, f func(bucket.Announcement)) error
	documentStore
	Ticks(ctx context.Context, shards func() int)
	Ping(ctx context.Context) error
	Warnings() []string
	Close() error
}

// documentStore is where gateways find their documents and one another.
type documentStore interface {
	Mirror(ctx context.Context) (bucket.Mirror, error)
	MirrorChanges(ctx context.Context, f func()) error
	Register(ctx context.Context, g bucket.Gateway) error
	Gateways(ctx context.Context) ([]bucket.Gateway, error)
}

// operatorStore is what operators do at it.
type operatorStore interface {
	Blocks(ctx context.Context) ([]bucket.Block, error)
	Block(ctx context.Context, b bucket.Block) error
	Unblock(ctx context.Context, id limit.Key) (bool, error)
	BlockChanges(ctx context.Context, f func()) error
	Bans(ctx context.Context, shards, from, most int) (list []bucket.BannedKey, next int, err error)
	Unban(ctx context.Context, ref bucket.Ref) (bool, error)
}

var _ store = (*bucket.Store)(nil)

// Gateway is one running gateway.
type Gateway struct {
	config    Config
	telemetry *telemetry.Telemetry
	store     store
	identity  *identity.Reader
	addresses *identity.Addresses
	proxy     *proxy.Proxy
	admitter  *admit.Admitter
	secret    *limit.Secret
	fields    atomic.Pointer[fields]
	checkers  *checkers
	// unanswered is the log's of checks that could not be answered: all of them, while Redis is out.
	unanswered rate.Sometimes
	origins    origins
	id         string // names this process among the region's gateways
	patience   patience

	// reloads read things again that can change while the gateway runs. Each is all or nothing: on an error what was in use stays.
	reloads     []func() error
	reloading   sync.Mutex
	current     Config // as last reloaded; under reloading
	certificate atomic.Pointer[tls.Certificate]

	listener, adminListener net.Listener
	server, adminServer     *http.Server

	loop    documents                       // owned by Open, then by the loop of Run
	own     atomic.Pointer[policy.Document] // of the file policies, read and not yet taken by the loop
	changed chan struct{}                   // asks the loop to look again
	blocks  blocks
	// blocksChanged asks for the blocks to be read anew.
	blocksChanged chan struct{}
	queued        atomic.Int64           // requests that wait for their turn
	ahead         atomic.Int64           // bytes of their bodies that are kept
	refused       atomic.Pointer[string] // why the newest mirrored document is not in use, nil if it is
	draining      atomic.Bool
	inFlight      *inFlight
}

// Open makes a gateway ready and binds its addresses. It does not wait for Redis to be there.
func Open(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("%w:\n%w", config.ErrUsage, err)
	}
	if cfg.Redis.EpochBegun == nil {
		begun := context.WithoutCancel(ctx)
		cfg.Redis.EpochBegun = func(_ int, reason string) {
			tel.Metrics.EpochBegun.Add(begun, 1,
				metric.WithAttributes(attribute.String("reason", reason), attribute.String("region", cfg.Region)))
		}
	}
	s, err := bucket.Open(cfg.Redis)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrUsage, err)
	}
	g, err := open(ctx, cfg, tel, s)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return g, nil
}

func open(ctx context.Context, cfg Config, tel *telemetry.Telemetry, s store) (*Gateway, error) {
	g := &Gateway{
		config: cfg, telemetry: tel, store: s, id: rand.Text(), patience: patient,
		inFlight: newInFlight(), origins: newOrigins(), changed: make(chan struct{}, 1), blocksChanged: make(chan struct{}, 1),
		unanswered: rate.Sometimes{Interval: toldEvery},
		admitter:   admit.New(s, admit.Options{Region: cfg.Region, Telemetry: tel, Settler: s, Patience: cfg.Redis.Timeout}),
	}
	if cfg.patience != nil {
		g.patience = *cfg.patience
	}
	g.use(cfg)
	g.reloads = []func() error{g.rereadCertificate, g.rereadKeys, g.rereadPolicies}
	var err error
	if g.secret, err = secretOf(cfg); err != nil {
		return nil, err
	}
	if g.identity, err = identity.NewReader(cfg.Identity, cfg.Keys, tel.Log); err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrUsage, err)
	}
	if g.addresses, err = identity.NewAddresses(cfg.ClientAddress); err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrUsage, err)
	}
	if err = g.rereadCertificate(); err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrUsage, err)
	}
	if g.proxy, err = proxy.New(cfg.Routes, tel.Log, cfg.Identity.Secrets()...); err != nil {
		return nil, fmt.Errorf("%w: %w", config.ErrUsage, err)
	}
	if g.checkers, err = openCheckers(cfg.Check, tel); err != nil {
		return nil, err
	}
	if err = g.rereadPolicies(); err != nil {
		return nil, err
	}
	g.refresh(ctx)
	g.readBlocks(ctx)
	return g, g.bind(ctx)
}

// secretOf reads the secret that all roles share.
func secretOf(cfg Config) (*limit.Secret, error) {
	raw := cfg.Secret
	if raw == nil {
		text, err := os.ReadFile(cfg.Identity.HashSecretFile)
		if err != nil {
			return nil, fmt.Errorf("%w: identity.hash_secret_file: %w", config.ErrUsage, err)
		}
		raw = bytes.TrimSpace(text)
	}
	secret, err := limit.NewSecret(raw)
	if err != nil {
		return nil, fmt.Errorf("%w: identity.hash_secret_file: %w", config.ErrUsage, err)
	}
	return secret, nil
}

// Addr is where clients reach the gateway, AdminAddr where probes and metrics are.
func (g *Gateway) Addr() net.Addr { return g.listener.Addr() }

// AdminAddr is where probes and metrics are.
func (g *Gateway) AdminAddr() net.Addr { return g.adminListener.Addr() }

// Run serves until ctx ends, then drains as Config.Drain says, and returns nil. If serving fails it drains without delay and
// returns why.
func (g *Gateway) Run(ctx context.Context) error {
	// What waiting requests need goes on until they have finished.
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	failed := make(chan error, 2)
	group.Go(func() { g.watch(work) })
	group.Go(func() { g.identity.Run(work) })
	group.Go(func() { g.store.Ticks(work, g.admitter.Shards) })
	group.Go(func() { g.subscribe(work, "fills", func() error { return g.store.Fills(work, g.admitter.Filled) }) })
	group.Go(func() {
		g.subscribe(work, "mirror", func() error { return g.store.MirrorChanges(work, func() { poke(g.changed) }) })
	})
	group.Go(func() { g.watchBlocks(work, g.blocksChanged) })
	group.Go(func() {
		g.subscribe(work, "blocks", func() error { return g.store.BlockChanges(work, func() { poke(g.blocksChanged) }) })
	})
	group.Go(func() { g.admitter.Run(work) })
	group.Go(func() { failed <- g.serve() })
	group.Go(func() { failed <- g.adminServer.Serve(g.adminListener) })
	g.telemetry.Log.InfoContext(ctx, "gateway serves", "listen", g.Addr().String(), "admin", g.AdminAddr().String())
	delay, err := g.config.Drain.Delay, error(nil)
	select {
	case <-ctx.Done():
	case err = <-failed:
		delay = 0
	}
	g.drain(work, delay)
	stop()
	group.Wait()
	return err
}

// Close lets go of what Open took. Run must have returned, or never been called.
func (g *Gateway) Close() error {
	_ = g.server.Close()
	_ = g.adminServer.Close()
	for _, l := range []net.Listener{g.listener, g.adminListener} {
		_ = l.Close() // closed already where Run was called
	}
	g.proxy.Close()
	if err := g.store.Close(); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

// Ready tells whether the gateway can do its duty. That Redis, NATS or the allocator is out does not make it unready: what
// happens then is the policies' decision, and another gateway of the region would be no better off.
func (g *Gateway) Ready(ctx context.Context) []telemetry.Check {
	serving := telemetry.Check{Name: "serving", OK: !g.draining.Load(), Required: true}
	if !serving.OK {
		serving.Detail = "draining"
	}
	policies := telemetry.Check{Name: "policies", Required: true, Detail: "there is no policy document yet"}
	budgets := telemetry.Check{Name: "regions", OK: true}
	if s := g.admitter.Snapshot(); s != nil {
		policies.OK, policies.Detail = true, fmt.Sprintf("revision %d", s.Revision())
		if s.Revision() == 0 {
			policies.Detail = "the file that policies names; the region's Redis has none"
		}
		if names, why := s.Unserved(); len(names) > 0 {
			budgets.OK, budgets.Detail = false, fmt.Sprintf("global policies cannot be asked about: %s: %v", why, names)
		}
	}
	if why := g.refused.Load(); why != nil {
		policies.Detail += "; " + *why
	}
	redis := telemetry.Check{Name: "redis", OK: true}
	if err := g.store.Ping(ctx); err != nil {
		redis.OK, redis.Detail = false, err.Error()
	} else if why := g.admitter.Trouble(); why != "" {
		redis.OK, redis.Detail = false, why
	} else {
		redis.Detail = strings.Join(g.store.Warnings(), "; ")
	}
	allocator := telemetry.Check{Name: "allocator", OK: true}
	if _, out := g.admitter.Heard(); out {
		allocator.OK, allocator.Detail = false, "a wait for a lease ended in vain: agent, NATS or allocator is out"
	}
	return append([]telemetry.Check{serving, policies, budgets, redis, allocator}, g.identity.Ready()...)
}

func (g *Gateway) bind(ctx context.Context) error {
	var err error
	var listen net.ListenConfig
	if g.listener, err = listen.Listen(ctx, "tcp", g.config.Listen); err != nil {
		return fmt.Errorf("gateway of %s: %w; free the address or give another in listen", g.config.Region, err)
	}
	if g.adminListener, err = listen.Listen(ctx, "tcp", g.config.Admin); err != nil {
		_ = g.listener.Close() // nobody was accepted
		return fmt.Errorf("gateway of %s: %w; free the address or give another in admin", g.config.Region, err)
	}
	log := slog.NewLogLogger(g.telemetry.Log.Handler(), slog.LevelDebug)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	g.server = &http.Server{
		Handler: g.pipeline(), Protocols: protocols, ErrorLog: log, TLSConfig: g.tlsConfig(), BaseContext: g.inFlight.base,
		ReadHeaderTimeout: g.patience.header, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
	g.adminServer = &http.Server{
		Handler: g.withCheck(g.telemetry.Handler(g.Ready)), ErrorLog: log,
		ReadHeaderTimeout: adminTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ReadTimeout: adminTimeout, WriteTimeout: adminTimeout,
	}
	return nil
}
