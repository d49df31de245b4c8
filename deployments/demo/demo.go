// Package demo runs all of Annona in one process: NATS, a store for each region, the allocator, agents and gateways, and a
// sample upstream, with a simulated ocean between the regions and the allocator. The roles are the real ones.
package demo

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sync/errgroup"

	"github.com/annona-gateway/annona/allocator"
	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/deployments/embedded"
	"github.com/annona-gateway/annona/deployments/upstream"
	"github.com/annona-gateway/annona/deployments/wan"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// DefaultPolicies is the policy document that the demo starts with.
//
//go:embed policies.yaml
var DefaultPolicies []byte

// Options shape a demo.
type Options struct {
	// Policies is the policy document of the first start; nil: DefaultPolicies.
	Policies []byte
	// Upstream is where requests go; "" is a sample inside the process.
	Upstream string
	// Redis are the addresses of real stores, one a region; none: embedded ones.
	Redis []string
	// Data keeps journal and policies over a restart; "" forgets them.
	Data string
	// OneWay is the delay between a region and the allocator, in each direction.
	OneWay time.Duration
	// Token is the operator's admin token.
	Token string
	// Places are where to listen.
	Places Places
	// Telemetry is all roles'; its log goes to Log.
	Telemetry telemetry.Config
}

// Places are the addresses of a demo.
type Places struct {
	Admin   string
	Regions []Place
}

// Place is one region's addresses.
type Place struct{ Name, Gateway, Admin, Agent string }

// DefaultPlaces are the documented ports.
func DefaultPlaces() Places {
	return Places{Admin: "127.0.0.1:7070", Regions: []Place{
		{Name: "eu", Gateway: "127.0.0.1:8081", Admin: "127.0.0.1:8181", Agent: "127.0.0.1:0"},
		{Name: "us", Gateway: "127.0.0.1:8082", Admin: "127.0.0.1:8182", Agent: "127.0.0.1:0"},
		{Name: "ap", Gateway: "127.0.0.1:8083", Admin: "127.0.0.1:8183", Agent: "127.0.0.1:0"},
	}}
}

// Demo is a running one.
type Demo struct {
	options   Options
	telemetry *telemetry.Telemetry
	data      *data
	nats      *server.Server
	upstream  *http.Server
	allocator *allocator.Allocator
	regions   []*regionRoles
	closers   []func() error
}

// Open starts the servers and binds every port; Run serves on them.
func Open(ctx context.Context, o Options, tel *telemetry.Telemetry) (*Demo, error) {
	d := &Demo{options: o, telemetry: tel}
	for _, step := range []func(context.Context) error{d.openNATS, d.openUpstream, d.openAllocator, d.openRegions} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	return d, nil
}

// Close ends the servers and, without --data, forgets everything.
func (d *Demo) Close() error {
	var problems []error
	for _, closer := range slices.Backward(d.closers) {
		problems = append(problems, closer())
	}
	d.closers = nil
	return errors.Join(problems...)
}

// Run runs every role until ctx ends, or one of them fails.
func (d *Demo) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	// The regions give back their leases before the allocator goes.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group.Go(func() error { return d.allocator.Run(serving) })
	group.Go(func() error {
		defer stop()
		// Regions that came first would only find nobody, and look again after a second.
		if err := d.begun(ctx); err != nil {
			return err
		}
		regions, ctx := errgroup.WithContext(ctx)
		for _, r := range d.regions {
			regions.Go(func() error { return r.run(ctx) })
		}
		return regions.Wait()
	})
	return group.Wait() //nolint:wrapcheck // each role says what failed
}

// begun waits until the allocator serves, and notes that the journal has begun.
func (d *Demo) begun(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !d.allocator.Serves() {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	return d.data.markBegun()
}

// Ready is every role's, for the one /readyz that tells when the demo is up.
func (d *Demo) Ready(ctx context.Context) []telemetry.Check {
	var all []telemetry.Check
	for _, r := range d.regions {
		for _, check := range r.ready(ctx) {
			check.Name, check.Required = r.place.Name+" "+check.Name, true
			all = append(all, check)
		}
	}
	return all
}

func (d *Demo) openNATS(context.Context) (err error) {
	if d.data, err = openData(d.options.Data); err != nil {
		return err
	}
	d.closers = append(d.closers, d.data.close)
	if d.nats, err = embedded.StartNATS(d.data.nats(), embedded.RandomPort); err != nil {
		return err
	}
	d.closers = append(d.closers, func() error {
		d.nats.Shutdown()
		d.nats.WaitForShutdown()
		return nil
	})
	return nil
}

// openUpstream starts the sample upstream, unless there is another.
func (d *Demo) openUpstream(ctx context.Context) error {
	if d.options.Upstream != "" {
		return nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("sample upstream: %w", err)
	}
	d.upstream = &http.Server{Handler: upstream.Handler(), ReadHeaderTimeout: 10 * time.Second}
	d.options.Upstream = "http://" + listener.Addr().String()
	go func() { _ = d.upstream.Serve(listener) }()
	d.closers = append(d.closers, d.upstream.Close)
	return nil
}

func (d *Demo) openAllocator(ctx context.Context) (err error) {
	cfg := allocator.DefaultConfig()
	cfg.Listen = d.options.Places.Admin
	cfg.NATS.URLs = []string{d.nats.ClientURL()}
	cfg.Init = d.data.fresh
	cfg.Secret = d.data.secret
	if cfg.Policies = d.options.Policies; cfg.Policies == nil && !exists(d.data.mark()) {
		cfg.Policies = DefaultPolicies // afterwards what is stored stands, and nobody gave anything that differs from it
	}
	cfg.Credentials = []admin.Credential{admin.NewCredential("demo", admin.Operator, d.options.Token)}
	cfg.AlsoReady = d.Ready
	for _, place := range d.options.Places.Regions {
		cfg.Regions = append(cfg.Regions, regionOf(place))
	}
	if d.allocator, err = allocator.Open(ctx, cfg, d.telemetry); err != nil {
		return err
	}
	d.closers = append(d.closers, d.allocator.Close)
	return nil
}

func (d *Demo) openRegions(ctx context.Context) error {
	if n := len(d.options.Redis); n > 0 && n != len(d.options.Places.Regions) {
		return fmt.Errorf("--redis has %d addresses; give one for each of the %d regions", n, len(d.options.Places.Regions))
	}
	for i, place := range d.options.Places.Regions {
		r := &regionRoles{place: place}
		d.regions = append(d.regions, r)
		d.closers = append(d.closers, r.close)
		addr := ""
		if len(d.options.Redis) > 0 {
			addr = d.options.Redis[i]
		}
		if err := r.open(ctx, d, addr); err != nil {
			return err
		}
	}
	return nil
}

// link joins a region to NATS over the simulated ocean.
func (d *Demo) link() (*wan.Link, error) {
	address := strings.TrimPrefix(d.nats.ClientURL(), "nats://")
	link, err := wan.Listen("127.0.0.1:0", address, d.options.OneWay)
	if err != nil {
		return nil, fmt.Errorf("simulated WAN: %w", err)
	}
	return link, nil
}

// randomSecret returns bytes that nobody can guess.
func randomSecret() []byte { return []byte(rand.Text() + rand.Text()) }

// Print writes what to try.
func (d *Demo) Print(w io.Writer) {
	var gateways []string
	for i, r := range d.regions {
		gateways = append(gateways, fmt.Sprintf("  %s  http://%s", d.options.Places.Regions[i].Name, r.gateway.Addr()))
	}
	fmt.Fprintf(w, intro, strings.Join(gateways, "\n"), d.options.OneWay, d.allocator.Addr(), d.options.Token,
		d.regions[0].gateway.Addr(), d.regions[1].gateway.Addr(), d.regions[2].gateway.Addr())
}

const intro = `Annona runs: three regions, one global budget for each client.

%[1]s
  one way to the allocator: %[2]s (--wan)
  admin API: http://%[3]s/admin/v1   bearer: %[4]s
  API keys: demo-NAME (user NAME, tier free), premium-NAME (tier premium)

Try it in another terminal:

1. Six logins a minute for alice, over all regions together: 200 six times, then 429.
     for at in %[5]s %[6]s %[7]s %[5]s %[6]s %[7]s %[5]s %[6]s %[7]s; do
       curl -s -o /dev/null -w '%%{http_code} ' -H 'X-API-Key: demo-alice' http://$at/login
     done; echo

2. Why was she denied? The headers and the body say it.
     curl -si -H 'X-API-Key: demo-alice' http://%[5]s/login

3. Who holds which tokens?
     curl -s -H 'Content-Type: application/json' -d '{"policy": "login-per-user", "identity": {"user": "alice"}}' \
       http://%[3]s/admin/v1/usage -H 'Authorization: Bearer %[4]s'

Ctrl-C ends it.
`

// exists tells whether path is there.
func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
