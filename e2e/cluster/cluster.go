package cluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/annona-gateway/annona/deployments/upstream"
	"github.com/annona-gateway/annona/deployments/wan"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

// Options shape a cluster.
type Options struct {
	// Dir holds configs, logs and stores.
	Dir string
	// Policies is the policy document.
	Policies string
	// Users are the API keys: the key itself to (user, tier).
	Users map[string][2]string
	// OneWay is the delay between an agent and NATS in each direction.
	OneWay time.Duration
	// Gateways is how many each region has.
	Gateways int
	// Redis says for a region, by name, where its Redis is: the fields of the section `redis` in its roles' files. A region that is
	// not named has a server of its own.
	Redis map[string]string
}

// Cluster is a running Annona: an allocator, NATS, and for each region a Redis, an agent and gateways.
type Cluster struct {
	NATS, Allocator *Proc
	Regions         []*Region
	AdminURL, Token string

	upstream *httptest.Server
	bin      Binaries
	dir      string
	natsAddr string
}

// RunAlone runs one region's gateways, with no NATS, agent or allocator: policies of scope region need none. Its Redis is where
// redis, the fields of the gateways' section of that name, says.
func RunAlone(bin Binaries, o Options, redis string) (*Cluster, error) {
	c := &Cluster{bin: bin, dir: o.Dir, upstream: httptest.NewServer(upstream.Handler())}
	r := &Region{Name: RegionNames[0], redis: redis, alone: true}
	c.Regions = []*Region{r}
	err := c.writeShared(o)
	for i := range o.Gateways {
		if err == nil {
			err = c.startGateway(r, i)
		}
	}
	if err == nil {
		err = c.WaitReady(30 * time.Second)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("%w\n%s", err, c.tails())
	}
	return c, nil
}

// Region is one region's processes.
type Region struct {
	Name         string
	Redis, Agent *Proc
	RedisAddr    string
	AgentURL     string
	Gateways     []*Gateway
	// Link is what joins the agent to NATS.
	Link *wan.Link

	redis string // the fields of the section redis in its roles' files
	alone bool
}

// Gateway is one gateway process.
type Gateway struct {
	*Proc
	URL, AdminURL string
}

// RegionNames are the regions of every cluster, with equal weights.
var RegionNames = []string{"eu", "us", "ap"}

// Start runs a cluster and waits until every role is ready.
func Start(bin Binaries, o Options) (*Cluster, error) {
	c := &Cluster{bin: bin, dir: o.Dir, Token: rand.Text(), upstream: httptest.NewServer(upstream.Handler())}
	steps := []func() error{
		func() error { return c.writeShared(o) },
		c.startNATS,
		c.startAllocator,
		func() error { return c.startRegions(o) },
		func() error { return c.WaitReady(30 * time.Second) },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			c.Close()
			return nil, fmt.Errorf("%w\n%s", err, c.tails())
		}
	}
	return c, nil
}

// Close ends every process of the cluster.
func (c *Cluster) Close() {
	for _, p := range c.procs() {
		p.Kill()
	}
	for _, r := range c.Regions {
		if r.Link != nil {
			_ = r.Link.Close()
		}
	}
	c.upstream.Close()
}

// WaitReady waits until every role's /readyz answers 200.
func (c *Cluster) WaitReady(limit time.Duration) error {
	var urls []string
	if c.Allocator != nil {
		urls = append(urls, c.AdminURL)
	}
	for _, r := range c.Regions {
		if r.Agent != nil {
			urls = append(urls, r.AgentURL)
		}
		for _, g := range r.Gateways {
			urls = append(urls, g.AdminURL)
		}
	}
	for _, url := range urls {
		if !Becomes(limit, func() bool { return Ready(url) }) {
			return fmt.Errorf("%s/readyz is not 200 after %s", url, limit)
		}
	}
	return nil
}

// Ready tells whether url/readyz answers 200.
func Ready(url string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func (c *Cluster) procs() []*Proc {
	var all []*Proc
	for _, r := range c.Regions {
		for _, g := range r.Gateways {
			all = append(all, g.Proc)
		}
		all = append(all, r.Agent, r.Redis)
	}
	all = append(all, c.Allocator, c.NATS)
	var started []*Proc
	for _, p := range all {
		if p != nil {
			started = append(started, p)
		}
	}
	return started
}

func (c *Cluster) tails() string {
	var b strings.Builder
	for _, p := range c.procs() {
		fmt.Fprintf(&b, "--- %s\n%s\n", p.name, p.Tail())
	}
	return b.String()
}

func (c *Cluster) path(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) write(name, text string) error {
	return os.WriteFile(c.path(name), []byte(text), 0o600)
}

// writeShared writes the files that several roles read.
func (c *Cluster) writeShared(o Options) error {
	var keys strings.Builder
	for key, who := range o.Users {
		sum := sha256.Sum256([]byte(key))
		fmt.Fprintf(&keys, "- {sha256: %s, user: %s, tier: %s}\n", hex.EncodeToString(sum[:]), who[0], who[1])
	}
	sum := sha256.Sum256([]byte(c.Token))
	return errors.Join(
		c.write("policies.yaml", o.Policies),
		c.write("keys.yaml", keys.String()),
		c.write("credentials.yaml", fmt.Sprintf("- {name: test, role: operator, sha256: %s}\n", hex.EncodeToString(sum[:]))),
		c.write("secret", rand.Text()+rand.Text()),
	)
}

func (c *Cluster) startNATS() error {
	port, err := buckettest.FreePort()
	if err != nil {
		return err
	}
	c.natsAddr = fmt.Sprintf("127.0.0.1:%d", port)
	config := fmt.Sprintf("listen: %q\njetstream { store_dir: %q, sync_interval: always }\n", c.natsAddr, c.path("nats"))
	if err := c.write("nats.conf", config); err != nil {
		return err
	}
	c.NATS = newProc(c.dir, "nats", c.bin.NATS, "-c", c.path("nats.conf"))
	return c.NATS.Start()
}

func (c *Cluster) startAllocator() error {
	port, err := buckettest.FreePort()
	if err != nil {
		return err
	}
	c.AdminURL = fmt.Sprintf("http://127.0.0.1:%d", port)
	var regions []string
	for _, name := range RegionNames {
		regions = append(regions, fmt.Sprintf("{name: %s, weight: 1}", name))
	}
	config := fmt.Sprintf(`listen: "127.0.0.1:%d"
nats: {urls: ["nats://%s"]}
regions: [%s]
policies: %q
credentials: %q
hash_secret_file: %q
`, port, c.natsAddr, strings.Join(regions, ", "), c.path("policies.yaml"), c.path("credentials.yaml"), c.path("secret"))
	if err := c.write("allocator.yaml", config); err != nil {
		return err
	}
	// The first start makes the journal; every later one finds it.
	c.Allocator = newProc(c.dir, "allocator", c.bin.Annona, "allocator", "--config", c.path("allocator.yaml"), "--init")
	err = c.Allocator.Start()
	c.Allocator.args = c.Allocator.args[:len(c.Allocator.args)-1]
	return err
}
