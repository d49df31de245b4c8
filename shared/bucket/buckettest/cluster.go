package buckettest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// slots is how many slots a Redis Cluster has.
const slots = 1 << 14

// Cluster is a Redis Cluster of processes that a test started and owns.
type Cluster struct {
	Nodes []*Server // masters first, in the order of their slots, then a replica of each where there are any

	t       testing.TB
	masters int
	ids     []string
}

// StartCluster starts a cluster of masters, each with a replica if replicas is true, and waits until all of them know it. A node
// that is silent for a second counts as lost.
func StartCluster(t testing.TB, masters int, replicas bool, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, masters: masters}
	count := masters
	if replicas {
		count *= 2
	}
	bus := make([]string, count)
	for i := range count {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		bus[i] = strconv.Itoa(port)
		c.Nodes = append(c.Nodes, StartRedis(t, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", bus[i], "--cluster-node-timeout", "1000",
			"--cluster-require-full-coverage", "no", "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
			"--maxmemory-policy", "noeviction",
		}, args...)...))
	}
	for i, node := range c.Nodes {
		id, err := node.admin().ClusterMyID(context.Background()).Result()
		if err != nil {
			t.Fatal(err)
		}
		c.ids = append(c.ids, id)
		c.do(node, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < masters {
			c.do(node, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/masters), strconv.Itoa((i+1)*slots/masters-1))
		}
		host, port, _ := net.SplitHostPort(node.Addr)
		if i > 0 {
			c.do(c.Nodes[0], "CLUSTER", "MEET", host, port, bus[i])
		}
	}
	c.await("all know all", func(node *Server) bool {
		return c.info(node, "CLUSTER", "INFO", "cluster_known_nodes") == strconv.Itoa(count)
	})
	for i := masters; i < count; i++ {
		c.do(c.Nodes[i], "CLUSTER", "REPLICATE", c.ids[i-masters])
	}
	c.await("all agree and every replica follows", func(node *Server) bool {
		role := c.info(node, "INFO", "replication", "role")
		table := c.table(node)
		whole := len(table) == masters && !slices.ContainsFunc(table, func(part redis.ClusterSlot) bool {
			return len(part.Nodes) != count/masters
		})
		return c.info(node, "CLUSTER", "INFO", "cluster_state") == "ok" && whole &&
			(role == "master" || c.info(node, "INFO", "replication", "master_link_status") == "up")
	})
	return c
}

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var all []string
	for _, node := range c.Nodes {
		all = append(all, node.Addr)
	}
	return all
}

// Client returns a client of the whole cluster, closed at the test's end.
func (c *Cluster) Client() *redis.ClusterClient { return clusterClient(c.t, c.Addrs()) }

func clusterClient(t testing.TB, addrs []string) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// SlotOf returns the slot of the shard's keys.
func (c *Cluster) SlotOf(shard int) int {
	c.t.Helper()
	key := fmt.Sprintf("annona:1:{s%02d}:shard", shard)
	slot, err := c.Nodes[0].admin().ClusterKeySlot(context.Background(), key).Result()
	if err != nil {
		c.t.Fatal(err)
	}
	return int(slot)
}

// Serving returns the position in Nodes of the one that serves the shard, as the node with the given position sees it.
func (c *Cluster) Serving(shard, seen int) int {
	slot := c.SlotOf(shard)
	for _, part := range c.table(c.Nodes[seen]) {
		if slot >= part.Start && slot <= part.End {
			return slices.Index(c.ids, part.Nodes[0].ID)
		}
	}
	c.t.Fatalf("no node serves shard %d", shard)
	return 0
}

// Move moves the shard's slot with all its keys to the node at position to, as redis-cli --cluster reshard does, and waits until
// all nodes, which must be there, know it; between, if
// not nil, is called whenever a key has moved and others have not.
func (c *Cluster) Move(shard, to int, between func(left int)) {
	c.t.Helper()
	slot, from := strconv.Itoa(c.SlotOf(shard)), c.Serving(shard, to)
	source, target := c.Nodes[from], c.Nodes[to]
	host, port, _ := net.SplitHostPort(target.Addr)
	c.do(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.ids[from])
	c.do(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.ids[to])
	for {
		const most = 1000
		keys, err := source.admin().ClusterGetKeysInSlot(context.Background(), c.SlotOf(shard), most).Result()
		if err != nil {
			c.t.Fatal(err)
		}
		if len(keys) == 0 {
			break
		}
		for i, key := range keys {
			c.do(source, "MIGRATE", host, port, key, "0", "5000")
			if between != nil {
				between(len(keys) - i - 1)
			}
		}
	}
	for i := range c.masters {
		if node := c.Nodes[(to+i)%c.masters]; c.info(node, "INFO", "replication", "role") == "master" { // the new owner first
			c.do(node, "CLUSTER", "SETSLOT", slot, "NODE", c.ids[to])
		}
	}
	c.agree()
}

// agree waits until all nodes see the same one serve each slot, and know the newest epoch: a node that takes over a slot before it
// knows of another's move loses it again, and a replica that does not know what moved is not elected.
func (c *Cluster) agree() {
	c.t.Helper()
	view := func(node *Server) string {
		var text strings.Builder
		for _, part := range c.table(node) {
			fmt.Fprintln(&text, part.Start, part.End, part.Nodes[0].ID)
		}
		return text.String() + c.info(node, "CLUSTER", "INFO", "cluster_current_epoch")
	}
	c.await("all agree", func(node *Server) bool { return view(node) == view(c.Nodes[0]) })
}

// await fails the test unless every node comes to be as asked, within 20 s.
func (c *Cluster) await(what string, is func(node *Server) bool) {
	c.t.Helper()
	for _, node := range c.Nodes {
		err := Poll(context.Background(), 20*time.Second, func() error {
			if !is(node) {
				return errors.New("not yet")
			}
			return nil
		})
		if err != nil {
			c.t.Fatalf("cluster node %s: %s: %v\n%v", node.Addr, what, err, c.do(node, "CLUSTER", "NODES"))
		}
	}
}

// table is who serves what, as a node sees it.
func (c *Cluster) table(node *Server) []redis.ClusterSlot {
	table, _ := node.admin().ClusterSlots(context.Background()).Result() //nolint:staticcheck // what the product reads, too
	return table
}

func (c *Cluster) do(node *Server, words ...string) any {
	c.t.Helper()
	reply, err := c.try(node, words...)
	if err != nil {
		c.t.Fatalf("%s: %s: %v", node.Addr, strings.Join(words, " "), err)
	}
	return reply
}

// try runs a command at one node.
func (c *Cluster) try(node *Server, words ...string) (any, error) {
	args := make([]any, len(words))
	for i, word := range words {
		args[i] = word
	}
	return node.admin().Do(context.Background(), args...).Result()
}

// info reads one field of a report.
func (c *Cluster) info(node *Server, words ...string) string {
	text, _ := c.try(node, words[:len(words)-1]...)
	report, _ := text.(string)
	return infoField(report, words[len(words)-1])
}

func infoField(report, name string) string {
	for line := range strings.Lines(report) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
