package cluster

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/annona-gateway/annona/deployments/wan"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
	"github.com/annona-gateway/annona/shared/policy"
)

func (c *Cluster) startRegions(o Options) error {
	for _, name := range RegionNames {
		r := &Region{Name: name, redis: o.Redis[name]}
		c.Regions = append(c.Regions, r)
		if r.redis == "" {
			if err := c.startRedis(r); err != nil {
				return err
			}
		}
		if err := c.startAgent(r, o.OneWay); err != nil {
			return err
		}
		for i := range o.Gateways {
			if err := c.startGateway(r, i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) startRedis(r *Region) error {
	port, err := buckettest.FreePort()
	if err != nil {
		return err
	}
	r.RedisAddr = fmt.Sprintf("127.0.0.1:%d", port)
	r.redis = fmt.Sprintf("mode: single, addrs: [%q]", r.RedisAddr)
	dir := c.path("redis-" + r.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	r.Redis = newProc(c.dir, "redis-"+r.Name, c.bin.Redis, "--port", strconv.Itoa(port), "--bind", "127.0.0.1",
		"--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction")
	return r.Redis.Start()
}

func (c *Cluster) startAgent(r *Region, oneWay time.Duration) error {
	link, err := wan.Listen("127.0.0.1:0", c.natsAddr, oneWay)
	if err != nil {
		return err
	}
	r.Link = link
	port, err := buckettest.FreePort()
	if err != nil {
		return err
	}
	r.AgentURL = fmt.Sprintf("http://127.0.0.1:%d", port)
	config := fmt.Sprintf("region: %s\nadmin: \"127.0.0.1:%d\"\nredis: {%s}\nnats: {urls: [\"nats://%s\"]}\n",
		r.Name, port, r.redis, link.Addr())
	file := "region-" + r.Name + ".yaml"
	if err := c.write(file, config); err != nil {
		return err
	}
	r.Agent = newProc(c.dir, "agent-"+r.Name, c.bin.Annona, "region", "--config", c.path(file))
	return r.Agent.Start()
}

func (c *Cluster) startGateway(r *Region, i int) error {
	listen, err := buckettest.FreePort()
	if err != nil {
		return err
	}
	admin, err := buckettest.FreePort()
	if err != nil {
		return err
	}
	name := fmt.Sprintf("gateway-%s-%d", r.Name, i)
	config := fmt.Sprintf(`region: %s
listen: "127.0.0.1:%d"
admin: "127.0.0.1:%d"
redis: {%s, timeout: 250ms}
routes: [{name: api, paths: ["/*"], upstreams: [%q]}]
identity: {api_keys: {header: X-API-Key, file: %q}, hash_secret_file: %q}
access_log: off
`, r.Name, listen, admin, r.redis, c.upstream.URL, c.path("keys.yaml"), c.path("secret"))
	if r.alone {
		config += fmt.Sprintf("policies: %q\n", c.path("policies.yaml"))
	}
	if err := c.write(name+".yaml", config); err != nil {
		return err
	}
	g := &Gateway{
		Proc:     newProc(c.dir, name, c.bin.Annona, "gateway", "--config", c.path(name+".yaml")),
		URL:      fmt.Sprintf("http://127.0.0.1:%d", listen),
		AdminURL: fmt.Sprintf("http://127.0.0.1:%d", admin),
	}
	r.Gateways = append(r.Gateways, g)
	return g.Start()
}

// Client returns a client of the region's Redis; the caller closes it.
func (r *Region) Client() *redis.Client { return redis.NewClient(&redis.Options{Addr: r.RedisAddr}) }

// Age makes each region's store look old enough to know its buckets, as one is that has run for a while: an unknown bucket of
// a young store starts empty (PROTOCOL.md E3), which would cost every test its first minute.
func (c *Cluster) Age(ctx context.Context, by time.Duration) error {
	for _, r := range c.Regions {
		if err := r.age(ctx, by); err != nil {
			return err
		}
	}
	return nil
}

func (r *Region) age(ctx context.Context, by time.Duration) error {
	client := r.Client()
	defer client.Close()
	// The agent's first look at its schedules begins an epoch in each shard.
	var keys []string
	var err error
	if !Becomes(10*time.Second, func() bool {
		keys, err = client.Keys(ctx, "annona:1:*:shard").Result()
		return err == nil && len(keys) == policy.DefaultShards
	}) {
		return fmt.Errorf("age region %s: %d of %d shard records after 10 s: %w", r.Name, len(keys), policy.DefaultShards, err)
	}
	for _, key := range keys {
		if err := client.HIncrBy(ctx, key, "known", -by.Microseconds()).Err(); err != nil {
			return fmt.Errorf("age region %s: %w", r.Name, err)
		}
	}
	return nil
}
