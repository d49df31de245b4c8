package e2e_test

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/e2e/cluster"
	"github.com/annona-gateway/annona/e2e/oracle"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

// odd are users whose names would choose another cluster slot if they stood in a key as they are.
var odd = []string{"a{b}:c", "{}:{x}", "}{", "::{s00}"}

// storePolicies are of scope region; /both is charged at two buckets, which lie in two slots for most users.
const storePolicies = `schema: 1
policies:
  - {name: load, match: {paths: [/load]}, key: [user], algorithm: token_bucket, rate: 50/s, burst: 100, scope: region, on_failure: closed}
  - {name: three, match: {paths: [/three]}, key: [user], algorithm: token_bucket, rate: 3/day, scope: region, on_failure: closed}
  - {name: both-all, match: {paths: [/both]}, key: [all], algorithm: token_bucket, rate: 1000/day, scope: region, on_failure: closed}
  - {name: both-user, match: {paths: [/both]}, key: [user], algorithm: token_bucket, rate: 5/day, scope: region, on_failure: closed}
`

// storeUsers are key-0 … key-63, and one for each of the odd names.
func storeUsers() map[string][2]string {
	all := map[string][2]string{}
	for i := range 64 {
		all[fmt.Sprintf("key-%d", i)] = [2]string{fmt.Sprintf("user-%d", i), "free"}
	}
	for i, name := range odd {
		all[fmt.Sprintf("odd-%d", i)] = [2]string{strconv.Quote(name), "free"}
	}
	return all
}

// alone runs two gateways over a Redis.
func aloneOn(t *testing.T, redis string) []*cluster.Gateway {
	t.Helper()
	c, err := cluster.RunAlone(shared.bin, cluster.Options{
		Dir: t.TempDir(), Policies: storePolicies, Users: storeUsers(), Gateways: 2,
	}, redis)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.Regions[0].Gateways
}

func clusterSection(c *buckettest.Cluster) string {
	return "mode: cluster, addrs: " + list(c.Addrs())
}

// list writes addresses as YAML.
func list(addrs []string) string { return `["` + strings.Join(addrs, `", "`) + `"]` }

// unready counts how often a gateway was not ready, until stop is called.
func unready(t *testing.T, gateways []*cluster.Gateway) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	count := 0
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			for _, g := range gateways {
				if !cluster.Ready(g.AdminURL) {
					count++
				}
			}
			<-tick.C
		}
	})
	return func() int { cancel(); group.Wait(); return count }
}

// drain spends all of key's three tokens.
func drain(t *testing.T, g *cluster.Gateway, key string) {
	t.Helper()
	admitted := 0
	cluster.Eventually(t, 10*time.Second, "drained "+key, func() bool {
		answer := cluster.Get(t.Context(), g, "eu", key, "/three")
		if answer.Status == http.StatusOK {
			admitted++
		}
		return answer.Status == http.StatusTooManyRequests
	})
	if admitted != 3 {
		t.Fatalf("%d admitted of 3 tokens", admitted)
	}
}

// loads are two gateways' requests for each of the keys: more than their limit.
func loads(gateways []*cluster.Gateway, path string, perSecond float64, keys ...string) []cluster.Target {
	var all []cluster.Target
	for _, key := range keys {
		for _, g := range gateways {
			all = append(all, cluster.Target{Gateway: g, Region: "eu", Key: key, Path: path, PerSecond: perSecond})
		}
	}
	return all
}

// served fails t unless clients of every shard are served again within ten seconds.
func served(t *testing.T, gateways []*cluster.Gateway) {
	t.Helper()
	const limit = 10 * time.Second
	begun := time.Now()
	for i := range 64 {
		var answer oracle.Answer
		var body string
		key := fmt.Sprintf("key-%d", i)
		if !cluster.Becomes(limit-time.Since(begun), func() bool {
			answer, _, body = cluster.Fetch(t.Context(), gateways[i%2], "eu", key, "/both")
			return answer.Status == http.StatusOK || answer.Status == http.StatusTooManyRequests
		}) {
			t.Fatalf("%s is not served again after %s: status %d, %s\n%s", key, limit, answer.Status, body, gateways[i%2].Tail())
		}
	}
}

// Case 5: ids with {, } and : in a cluster → one slot a script; all policies or none; remaining never negative; a script error is a
// metric and the policy's failure mode.
func TestCase05_ClusterSlots(t *testing.T) {
	redis := buckettest.StartCluster(t, 3, false)
	gateways := aloneOn(t, clusterSection(redis))
	served(t, gateways)
	for i := range odd {
		key, admitted := fmt.Sprintf("odd-%d", i), 0
		for n := range 8 {
			answer, header, body := cluster.Fetch(t.Context(), gateways[n%2], "eu", key, "/both")
			switch remaining, err := strconv.Atoi(header.Get("X-RateLimit-Remaining")); {
			case answer.Status == http.StatusOK:
				admitted++
			case answer.Status != http.StatusTooManyRequests:
				t.Fatalf("%s: status %d: %s", odd[i], answer.Status, body)
			case err != nil || remaining != 0:
				t.Errorf("%s: remaining %q when denied, want 0", odd[i], header.Get("X-RateLimit-Remaining"))
			}
		}
		if admitted != 5 {
			t.Errorf("%s: %d admitted of 5", odd[i], admitted)
		}
	}
	drain(t, gateways[0], "key-0")
	client := redis.Client()
	var records []string
	for _, addr := range redis.Addrs() {
		records = append(records, recordsAt(t, addr)...)
	}
	for _, record := range records { // every script that meets one fails
		if err := client.Del(t.Context(), record).Err(); err != nil {
			t.Fatal(err)
		}
		if err := client.Set(t.Context(), record, "broken", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	answer, header, body := cluster.Fetch(t.Context(), gateways[1], "eu", "key-1", "/both")
	if answer.Status != http.StatusServiceUnavailable || header.Get("Retry-After") == "" {
		t.Errorf("a script's error: status %d, %s, want the failure mode's 503", answer.Status, body)
	}
	if text := metrics(t, gateways[1]); !strings.Contains(text, `outcome="refused"`) {
		t.Errorf("a script's error is no metric:\n%s", text)
	}
}

// recordsAt lists the buckets' records of one node.
func recordsAt(t *testing.T, addr string) []string {
	t.Helper()
	client := (&cluster.Region{RedisAddr: addr}).Client()
	defer client.Close()
	names, err := client.Keys(t.Context(), "annona:1:*:b:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// metrics reads a gateway's.
func metrics(t *testing.T, g *cluster.Gateway) string {
	t.Helper()
	answer, _, text := cluster.Fetch(t.Context(), &cluster.Gateway{URL: g.AdminURL}, "", "", "/metrics")
	if answer.Status != http.StatusOK {
		t.Fatalf("/metrics: status %d: %s", answer.Status, text)
	}
	return text
}

// Six processes: slots move under load, then a master dies. Drained buckets admit nothing at any time, a loaded one no more than
// its limit; the gateways stay ready and serve again, with nobody's help.
func TestRedisClusterOfSix(t *testing.T) {
	redis := buckettest.StartCluster(t, 3, true)
	gateways := aloneOn(t, clusterSection(redis))
	served(t, gateways)
	drained := []string{"key-1", "key-2", "key-3", "key-4", "key-5", "key-6"}
	for _, key := range drained {
		drain(t, gateways[0], key)
	}
	stop := unready(t, gateways)
	const duration = 9 * time.Second
	targets := append(loads(gateways, "/three", 10, drained...), loads(gateways, "/load", 60, "key-10", "key-11")...)
	broken := make(chan struct{})
	time.AfterFunc(time.Second, func() {
		defer close(broken)
		for shard := range 32 { // every slot moves one node on
			redis.Move(shard, (redis.Serving(shard, 0)+1)%3, nil)
		}
		redis.Nodes[1].Kill()
	})
	answers := cluster.Run(t.Context(), targets, duration)
	<-broken
	for _, key := range drained {
		if n := len(oracle.Admitted(answers[key])); n > 0 {
			t.Errorf("%d admitted from the drained bucket of %s, want none", n, key)
		}
	}
	for _, key := range []string{"key-10", "key-11"} {
		a := answers[key]
		// A replica that is promoted lacks the last moment's writes, which a bucket of scope region then admits again.
		if err := oracle.Bound(a, 100+10, 50); err != nil {
			t.Errorf("%s: %v", key, err)
		}
		if n := oracle.Count(a, http.StatusInternalServerError); n > 0 {
			t.Errorf("%s: %d answers with status 500", key, n)
		}
		t.Logf("%s: %d admitted, %d denied, %d refused", key, oracle.Count(a, 200), oracle.Count(a, 429), oracle.Count(a, 503))
	}
	served(t, gateways)
	if n := stop(); n > 0 {
		t.Errorf("a gateway was not ready %d times", n)
	}
}

// One region on a Redis Cluster, the others on servers of their own: promise 1 for a global budget while slots move.
func TestPromise1OnARedisCluster(t *testing.T) {
	redis := buckettest.StartCluster(t, 3, false)
	c, err := cluster.Start(shared.bin, cluster.Options{
		Dir: t.TempDir(), Policies: policies, Users: users(), OneWay: oneWay, Gateways: 1,
		Redis: map[string]string{"eu": clusterSection(redis)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	const duration = 8 * time.Second
	key := freshKey(t)
	moved := make(chan struct{})
	time.AfterFunc(duration/3, func() {
		defer close(moved)
		for shard := range 32 {
			redis.Move(shard, (redis.Serving(shard, 0)+1)%3, nil)
		}
	})
	answers := cluster.Run(t.Context(), everywhere(c, 0, key, "/hundred", 100), duration)[key]
	<-moved
	if err := oracle.Bound(answers, 100, 50); err != nil {
		t.Errorf("promise 1: %v", err)
	}
	last := answers[len(answers)-1].Answered
	if n := oracle.AdmittedBetween(inRegion(answers, "eu"), last.Add(-2*time.Second), last); n == 0 {
		t.Error("eu admitted nothing in the last two seconds")
	}
	t.Logf("%d admitted, %d of them in eu; %d refused", oracle.Count(answers, 200), oracle.Count(inRegion(answers, "eu"), 200),
		oracle.Count(answers, 503))
}

func inRegion(answers []oracle.Answer, region string) (in []oracle.Answer) {
	for _, a := range answers {
		if a.Region == region {
			in = append(in, a)
		}
	}
	return in
}
