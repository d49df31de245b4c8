// Package allocator is the role that keeps the pools: it owns the policies and regions documents, leases tokens to regions
// through the journal, and answers operators on its admin port.
package allocator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// The bounds of an admin connection, against clients that send or read too slowly, and of the drain.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 15 * time.Second
	writeTimeout      = 30 * time.Second
	idleTimeout       = time.Minute
	maxHeaderBytes    = 16 << 10
	drainTimeout      = 10 * time.Second
)

// Allocator is one allocator process.
type Allocator struct {
	cfg      Config
	tel      *telemetry.Telemetry
	conn     *nats.Conn
	listener net.Listener
	api      *admin.Server
	secret   *limit.Secret
	policies []byte // of the configuration

	documents *documents
	// lessor is nil until NATS, journal and documents are there; waits says why it is not.
	lessor atomic.Pointer[lessor.Lessor]
	waits  atomic.Pointer[string]
}

// Open checks cfg, reads its files and binds the admin port. It does not wait for NATS: Run does. Its errors wrap
// config.ErrUsage where the configuration must change.
func Open(ctx context.Context, cfg Config, tel *telemetry.Telemetry) (*Allocator, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("%w:\n%w", config.ErrUsage, err)
	}
	a := &Allocator{cfg: cfg, tel: tel, documents: newDocuments(tel)}
	a.waits.Store(new("the start has not begun"))
	credentials, err := a.readFiles()
	if err != nil {
		return nil, fmt.Errorf("%w:\n%w", config.ErrUsage, err)
	}
	if a.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("%w; stop whatever listens there, or change listen", err)
	}
	cfg.NATS.Name = "annona allocator"
	if a.conn, err = bus.Connect(cfg.NATS); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", config.ErrUsage, err), a.listener.Close())
	}
	a.api = admin.New(admin.Config{
		Log: tel.Log, Tracer: tel.Tracer, Probes: tel.Handler(a.Ready), Credentials: credentials,
		Current: a.documents.both, Secret: a.secret, Now: time.Now,
	})
	return a, nil
}

// Addr is where the admin API listens.
func (a *Allocator) Addr() net.Addr { return a.listener.Addr() }

// Reload reads the credentials file again. One that is wrong changes nothing.
func (a *Allocator) Reload() error {
	credentials, err := a.readCredentials()
	if err != nil {
		return err
	}
	a.api.Reload(credentials)
	a.tel.Log.Info("credentials reloaded", "credentials", len(credentials))
	return nil
}

// Run serves until ctx ends, then drains and returns nil. It waits for NATS as long as that takes; it fails where the journal
// is missing, or where Init finds one.
func (a *Allocator) Run(ctx context.Context) error {
	server := &http.Server{
		Handler: a.api, ReadHeaderTimeout: readHeaderTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		// Of connections only, and with their addresses in clear: not for an ordinary log.
		ErrorLog: slog.NewLogLogger(a.tel.Log.Handler(), slog.LevelDebug),
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.serve(server) })
	group.Go(func() error { return a.work(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if err := server.Shutdown(drain); err != nil {
			return errors.Join(fmt.Errorf("admin requests did not end within %s: %w", drainTimeout, err), server.Close())
		}
		return nil
	})
	return group.Wait() //nolint:wrapcheck // each of the three says what failed
}

// Close gives back the port and the connection. Run must have returned, or never been called.
func (a *Allocator) Close() error {
	a.conn.Close()
	if err := a.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("admin port: %w", err)
	}
	return nil
}

func (a *Allocator) serve(server *http.Server) error {
	a.tel.Log.Info("admin API listens", "address", a.listener.Addr().String(), "tls", a.cfg.TLS.Cert != "")
	var err error
	if a.cfg.TLS.Cert != "" {
		err = server.ServeTLS(a.listener, a.cfg.TLS.Cert, a.cfg.TLS.Key)
	} else {
		err = server.Serve(a.listener)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("admin API: %w", err)
}
