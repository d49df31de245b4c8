package region_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/region"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// A wait for a lease ends in a fill, and what is not used of it goes back by itself.
func TestAWaitEndsInAFillAndTheRestGoesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.take(1)
	r.take(1)
	r.eventually(10*time.Second, func() error { return r.writer.settled(1, 2) })
	if view := r.view(1); view.Left != 0 || view.Epoch == "" {
		t.Errorf("left %d in epoch %q, want nothing", view.Left, view.Epoch)
	}
}

// On drain everything of the region is settled and returned at once.
func TestDrainReturnsAll(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const users = 40
	for n := range users {
		r.take(n)
	}
	if took := r.drain(); took > 5*time.Second {
		t.Errorf("the drain took %v, want a moment", took)
	}
	for n := range users {
		if err := r.writer.settled(n, 1); err != nil {
			t.Errorf("user %d: %v", n, err)
		}
	}
	if _, err := r.ready(); err == nil {
		t.Error("the admin port still says ready after the drain")
	}
}

// A store that lost everything gets the documents again and leases in a new session; nothing is restarted.
func TestFlushAllIsANewSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.publish()
	r.take(1)
	r.eventually(5*time.Second, func() error { _, err := r.ready(); return err })
	before := r.view(1)
	if err := r.redis.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	r.register()
	r.eventually(5*time.Second, func() error {
		mirror, err := r.store.Mirror(t.Context())
		if err == nil && (string(mirror.Policy) != policyText || len(mirror.Regions) == 0) {
			err = errors.New("the documents are not mirrored again")
		}
		return err
	})
	r.take(1)
	after := r.view(1)
	if after.Epoch == before.Epoch || after.Session == 0 {
		t.Errorf("session %d of epoch %q after the loss, want one of another epoch than %q", after.Session, after.Epoch, before.Epoch)
	}
}

// The agent is ready once NATS, Redis and the documents are there, comes back by itself after either was out, and tells the
// region the round trip that it measured.
func TestReady(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.eventually(5*time.Second, func() error {
		body, err := r.ready()
		for _, check := range body.Checks {
			if !check.OK && check.Name == "documents" {
				return nil
			}
		}
		return fmt.Errorf("want documents to be missing: %w", err)
	})
	r.publish()
	r.eventually(8*time.Second, func() error { _, err := r.ready(); return err })
	r.eventually(5*time.Second, func() error {
		mirror, err := r.store.Mirror(t.Context())
		if err == nil && mirror.RoundTrip <= 0 {
			err = errors.New("no round trip is mirrored")
		}
		return err
	})
	r.redis.Kill()
	r.eventually(5*time.Second, func() error {
		if _, err := r.ready(); err == nil {
			return errors.New("ready without Redis")
		}
		return nil
	})
	r.redis.Restart()
	r.nats.Restart(t)
	r.eventually(10*time.Second, func() error { _, err := r.ready(); return err })
	r.register()
	r.take(7)
}

// An agent that ends without a drain is followed by one that goes on from what stands in Redis.
func TestAnAgentGoesOnWhereAnotherEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.take(1)
	first := r.agent
	r.start() // a second agent beside the first, as in a rolling update
	r.take(2)
	r.take(1)
	r.eventually(12*time.Second, func() error { return r.writer.settled(1, 2) })
	r.eventually(12*time.Second, func() error { return r.writer.settled(2, 1) })
	if first.AdminAddr().String() == r.agent.AdminAddr().String() {
		t.Error("two agents on one address")
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	good := region.Defaults()
	good.Region, good.Redis.Addrs = "eu", []string{"127.0.0.1:6379"}
	if err := good.Validate(); err != nil {
		t.Fatalf("Validate(%+v) = %v, want nil", good, err)
	}
	rows := map[string]struct {
		change func(*region.Config)
		want   string
	}{
		"no region":              {func(c *region.Config) { c.Region = "" }, "region name"},
		"no Redis":               {func(c *region.Config) { c.Redis.Addrs = nil }, "redis.addrs"},
		"no NATS":                {func(c *region.Config) { c.NATS.URLs = nil }, "nats.urls"},
		"no admin port":          {func(c *region.Config) { c.Admin = "8281" }, "admin"},
		"replicas":               {func(c *region.Config) { c.NATS.Replicas = 3 }, "nats.replicas"},
		"a share that is no one": {func(c *region.Config) { c.Telemetry.Sample = 2 }, "telemetry.sample"},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := good
			row.change(&c)
			if err := c.Validate(); err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("Validate(%+v) = %v, want one about %s", c, err, row.want)
			}
		})
	}
}

// What the reader must change is told as bad usage, which is exit status 2; nothing stays open after a failed Open.
func TestBadConfigurationsAreUsage(t *testing.T) {
	t.Parallel()
	good := region.Defaults()
	good.Region, good.Redis.Addrs, good.Admin = "eu", []string{"127.0.0.1:6379"}, "127.0.0.1:0"
	rows := map[string]func(*region.Config){
		"redis mode":       func(c *region.Config) { c.Redis.Mode = "tape" },
		"nats credentials": func(c *region.Config) { c.NATS.Credentials = filepath.Join(t.TempDir(), "none") },
		"no region":        func(c *region.Config) { c.Region = "" },
	}
	for name, change := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := good
			change(&c)
			if a, err := region.Open(t.Context(), c, telemetry.ForTest(io.Discard)); !errors.Is(err, config.ErrUsage) || a != nil {
				t.Errorf("Open = %v, %v; want an error of usage", a, err)
			}
		})
	}
	cmd := region.Command()
	path := filepath.Join(t.TempDir(), "region.yaml")
	if err := os.WriteFile(path, []byte("region: eu\nregoin: us\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.SetArgs([]string{"--config", path})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	if err := cmd.ExecuteContext(t.Context()); !errors.Is(err, config.ErrUsage) {
		t.Errorf("region --config with an unknown field: %v, want an error of usage", err)
	}
}
