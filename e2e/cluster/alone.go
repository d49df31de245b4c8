package cluster

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/annona-gateway/annona/deployments/upstream"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/policy"
)

// Alone is a region by itself: gateways and their Redis, no agent, no NATS and no allocator.
type Alone struct {
	Gateways []*Gateway

	policies string
	redis    string
	t        testing.TB
}

// StartAlone runs n gateways on the Redis at addr and waits until each serves; the test's end kills them. more is YAML that
// gateway.yaml has besides.
func StartAlone(t testing.TB, bin Binaries, addr string, n int, policies, more string) *Alone {
	t.Helper()
	dir := t.TempDir()
	up := httptest.NewServer(held(upstream.Handler()))
	t.Cleanup(up.Close)
	a := &Alone{policies: filepath.Join(dir, "policies.yaml"), redis: addr, t: t}
	a.write(a.policies, policies)
	secret := filepath.Join(dir, "secret")
	a.write(secret, rand.Text()+rand.Text())
	for i := range n {
		a.Gateways = append(a.Gateways, a.start(bin, dir, fmt.Sprintf("gateway-%d", i), fmt.Sprintf(`region: eu
redis: {mode: single, addrs: [%q], timeout: 250ms}
routes: [{name: api, paths: ["/*"], upstreams: [%q]}]
identity: {hash_secret_file: %q}
client_address: {trusted_proxies: ["127.0.0.1"]}
policies: %q
%s
`, addr, up.URL, secret, a.policies, more)))
	}
	for _, g := range a.Gateways {
		Eventually(t, 15*time.Second, "ready: "+g.name, func() bool { return Ready(g.AdminURL) })
	}
	return a
}

// held is an upstream that takes as long as the request's hold says, unless its client leaves.
func held(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hold, err := time.ParseDuration(r.URL.Query().Get("hold")); err == nil {
			select {
			case <-time.After(hold):
			case <-r.Context().Done():
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (a *Alone) start(bin Binaries, dir, name, config string) *Gateway {
	a.t.Helper()
	var ports [2]int
	for i := range ports {
		var err error
		if ports[i], err = buckettest.FreePort(); err != nil {
			a.t.Fatal(err)
		}
	}
	file := filepath.Join(dir, name+".yaml")
	a.write(file, fmt.Sprintf("listen: \"127.0.0.1:%d\"\nadmin: \"127.0.0.1:%d\"\n%s", ports[0], ports[1], config))
	g := &Gateway{
		Proc:     newProc(dir, name, bin.Annona, "gateway", "--config", file),
		URL:      fmt.Sprintf("http://127.0.0.1:%d", ports[0]),
		AdminURL: fmt.Sprintf("http://127.0.0.1:%d", ports[1]),
	}
	if err := g.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(g.Kill)
	a.t.Cleanup(func() {
		if a.t.Failed() {
			a.t.Logf("log of %s:\n%s", name, g.Tail())
		}
	})
	return g
}

func (a *Alone) write(file, text string) {
	a.t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

// Reload gives every gateway another policy document, as an operator would: the file, and SIGHUP.
func (a *Alone) Reload(policies string) {
	a.t.Helper()
	a.write(a.policies, policies)
	for _, g := range a.Gateways {
		if err := g.Signal(syscall.SIGHUP); err != nil {
			a.t.Fatal(err)
		}
	}
}

// Client returns a client of the region's Redis, closed at the test's end.
func (a *Alone) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: a.redis, Protocol: 2, DisableIdentity: true})
	a.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Age makes the region's store look as if it had always known its buckets, as one is that has run for a while.
func (a *Alone) Age(ctx context.Context) {
	a.t.Helper()
	c := a.Client()
	Eventually(a.t, 10*time.Second, "every shard has a record", func() bool {
		keys, err := c.Keys(ctx, "annona:1:*:shard").Result()
		for _, key := range keys {
			err = errors.Join(err, c.HSet(ctx, key, "known", 0).Err())
		}
		return err == nil && len(keys) == policy.DefaultShards
	})
}

// Reply is what a client saw; a broken connection has status 0.
type Reply struct {
	Status int
	Header http.Header
	Body   string
	Took   time.Duration
}

// Degraded is the dependency that the reply says was out.
func (r Reply) Degraded() string { return r.Header.Get("Annona-Degraded") }

// Ask sends one request of a client, which the header X-Client names.
func Ask(ctx context.Context, g *Gateway, path, who string) Reply {
	return get(ctx, g.URL+path, http.Header{"X-Client": {who}})
}

func get(ctx context.Context, url string, header http.Header) (r Reply) {
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Reply{Body: err.Error()}
	}
	req.Header = header
	resp, err := client.Do(req)
	if err != nil {
		return Reply{Body: err.Error()}
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return Reply{Status: resp.StatusCode, Header: resp.Header, Body: string(body)}
}

// step is a step of a server's clock, seen from the other side: every instant that it keeps moves the other way.
//
//go:embed step.lua
var step string

// StepClock does to the region's Redis what a step of its clock does: all that it remembers is suddenly so much longer ago, or,
// after a step back, yet to come. (No gateway may run meanwhile: one that does knows that the clock itself stood firm.)
func (a *Alone) StepClock(ctx context.Context, by time.Duration) {
	a.t.Helper()
	if err := a.Client().Eval(ctx, step, nil, -by.Microseconds()).Err(); err != nil {
		a.t.Fatal(err)
	}
}

// Metric returns the sum of a gateway's series of one name whose labels have all of parts; ok is false where it cannot be read.
func Metric(ctx context.Context, g *Gateway, name string, parts ...string) (sum float64, ok bool) {
	page := get(ctx, g.AdminURL+"/metrics", nil)
	if page.Status != http.StatusOK {
		return 0, false
	}
lines:
	for line := range strings.Lines(page.Body) {
		rest, found := strings.CutPrefix(line, name)
		if !found || (rest[0] != '{' && rest[0] != ' ') {
			continue
		}
		for _, part := range parts {
			if !strings.Contains(rest, part) {
				continue lines
			}
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndex(rest, " "):]), 64)
		if err != nil {
			return 0, false
		}
		sum += n
	}
	return sum, true
}
