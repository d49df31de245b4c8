package demo

import (
	"context"
	"errors"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/annona-gateway/annona/deployments/wan"
	"github.com/annona-gateway/annona/gateway"
	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/region"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// regionRoles is one region of the demo: its store, its agent and its gateway.
type regionRoles struct {
	place   Place
	store   *store
	link    *wan.Link
	agent   *region.Agent
	gateway *gateway.Gateway
}

func regionOf(place Place) policy.Region { return policy.Region{Name: place.Name, Weight: 1} }

func (r *regionRoles) open(ctx context.Context, d *Demo, addr string) (err error) {
	if r.store, err = openStore(addr); err != nil {
		return err
	}
	if d.data.fresh && r.store.embedded != nil {
		// Journal and store are both new: nothing was ever spent, and the store may know it.
		if err = vouch(ctx, r.store.config); err != nil {
			return err
		}
	}
	if r.link, err = d.link(); err != nil {
		return err
	}
	agent := region.Defaults()
	agent.Region, agent.Admin, agent.Redis = r.place.Name, r.place.Agent, r.store.config
	agent.NATS.URLs = []string{"nats://" + r.link.Addr()}
	if r.agent, err = region.Open(ctx, agent, d.telemetry); err != nil {
		return err
	}
	cfg := gateway.Defaults()
	cfg.Region, cfg.Listen, cfg.Admin, cfg.Redis = r.place.Name, r.place.Gateway, r.place.Admin, r.store.config
	cfg.Routes = []proxy.Route{{Name: "all", Upstreams: []string{d.options.Upstream}}}
	cfg.Identity.APIKeys.Header = "X-API-Key"
	cfg.Keys, cfg.Secret, cfg.AccessLog = knownKeys, d.data.secret, "off"
	cfg.Drain.Delay = 0 // no load balancer is to notice
	r.gateway, err = gateway.Open(ctx, cfg, d.telemetry)
	return err
}

// vouch tells the store that it is as old as the world.
func vouch(ctx context.Context, cfg bucket.Config) error {
	s, err := bucket.Open(cfg)
	if err != nil {
		return err
	}
	return errors.Join(s.Vouch(ctx, policy.DefaultShards), s.Close())
}

func (r *regionRoles) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		r.store.run(ctx)
		return nil
	})
	group.Go(func() error { return r.agent.Run(ctx) })
	group.Go(func() error { return r.gateway.Run(ctx) })
	return group.Wait() //nolint:wrapcheck // each role says what failed
}

func (r *regionRoles) ready(ctx context.Context) []telemetry.Check {
	if r.agent == nil || r.gateway == nil {
		return []telemetry.Check{{Name: "start", Detail: "has not begun"}}
	}
	// Agents and gateways ask their stores; one that is slow is not ready, and must not hold up the answer.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return append(r.agent.Ready(ctx), r.gateway.Ready(ctx)...)
}

func (r *regionRoles) close() error {
	var problems []error
	if r.gateway != nil {
		problems = append(problems, r.gateway.Close())
	}
	if r.agent != nil {
		problems = append(problems, r.agent.Close())
	}
	if r.link != nil {
		problems = append(problems, r.link.Close())
	}
	if r.store != nil {
		r.store.close()
	}
	return errors.Join(problems...)
}

// maxName bounds the NAME of a demo key.
const maxName = 64

// knownKeys knows every key demo-NAME (user NAME, tier free) and premium-NAME (tier premium).
func knownKeys(key string) (policy.Identity, bool) {
	for prefix, tier := range map[string]string{"demo-": "free", "premium-": "premium"} {
		if name, ok := strings.CutPrefix(key, prefix); ok && name != "" && len(name) <= maxName {
			return policy.Identity{User: name, Tier: tier}, true
		}
	}
	return policy.Identity{}, false
}
