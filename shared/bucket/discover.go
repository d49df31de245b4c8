package bucket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// askOne is the longest that one node or sentinel is waited for, so that one that hangs hides no other.
const askOne = 300 * time.Millisecond

// askCluster asks the nodes of a cluster one by one, which of them serves which slot; seeds are those that the
// configuration names. A node that is cut off from the others knows that the cluster failed for it, and is not believed.
func (n *nodes) askCluster(ctx context.Context, seeds []string) (*routes, error) {
	var candidates []string
	if r := n.routes.Load(); r != nil {
		candidates = slices.Clone(r.addrs)
	}
	for _, seed := range seeds {
		if !slices.Contains(candidates, seed) {
			candidates = append(candidates, seed)
		}
	}
	var problems []error
	for _, addr := range n.inTurn(candidates) {
		r, err := n.askNode(ctx, addr)
		if err == nil {
			return r, nil
		}
		problems = append(problems, &nodeError{addr, err})
	}
	return nil, errors.Join(problems...)
}

func (n *nodes) askNode(ctx context.Context, addr string) (*routes, error) {
	ctx, cancel := context.WithTimeout(ctx, askOne)
	defer cancel()
	pipe := n.link(addr).client.Pipeline()
	state, table := pipe.ClusterInfo(ctx), pipe.ClusterSlots(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		if strings.Contains(err.Error(), "cluster support disabled") {
			return nil, fmt.Errorf("%w; set redis.mode: single, or start it with cluster-enabled yes", err)
		}
		return nil, fmt.Errorf("CLUSTER SLOTS: %w", err)
	}
	if infoField(state.Val(), "cluster_state") != "ok" {
		return nil, errors.New("the cluster has failed for this node (CLUSTER INFO: cluster_state:fail)")
	}
	return parseSlots(addr, table.Val())
}

// parseSlots reads what the node at addr says; one that does not know its own host leaves it out.
func parseSlots(addr string, table []redis.ClusterSlot) (*routes, error) {
	r := &routes{slots: make([]uint16, slotCount)}
	for _, part := range table {
		if len(part.Nodes) > 0 {
			r.addrs = append(r.addrs, completeAddr(part.Nodes[0].Addr, addr))
		}
	}
	slices.Sort(r.addrs)
	r.addrs = slices.Compact(r.addrs)
	if len(r.addrs) == 0 {
		return nil, errors.New("no node serves any slot; give the cluster its slots (redis-cli --cluster create)")
	}
	for _, part := range table {
		if len(part.Nodes) == 0 {
			continue
		}
		if part.Start < 0 || part.End >= slotCount {
			return nil, fmt.Errorf("slots %d to %d are none", part.Start, part.End)
		}
		position, _ := slices.BinarySearch(r.addrs, completeAddr(part.Nodes[0].Addr, addr))
		for slot := part.Start; slot <= part.End; slot++ {
			r.slots[slot] = uint16(position + 1)
		}
	}
	return r, nil
}

// completeAddr puts the host of the node that said it where an address has none.
func completeAddr(said, by string) string {
	host, port, err := net.SplitHostPort(said)
	if err != nil || (host != "" && host != "?") {
		return said
	}
	host, _, _ = net.SplitHostPort(by)
	return net.JoinHostPort(host, port)
}

// sentinels are who tell which server is the master.
type sentinels struct {
	master  string
	clients []*redis.SentinelClient
}

func newSentinels(addrs []string, master string, options redis.Options) *sentinels {
	s := &sentinels{master: master}
	for _, addr := range addrs {
		one := options
		one.Addr = addr
		s.clients = append(s.clients, redis.NewSentinelClient(&one))
	}
	return s
}

func (s *sentinels) close() {
	for _, client := range s.clients {
		_ = client.Close()
	}
}

// ask asks all at once and returns what most say: one that was cut off may still name the master of before.
func (s *sentinels) ask(ctx context.Context) (*routes, error) {
	ctx, cancel := context.WithTimeout(ctx, askOne)
	defer cancel()
	type answer struct {
		addr string
		err  error
	}
	answers := make(chan answer, len(s.clients))
	for _, client := range s.clients {
		go func() {
			pair, err := client.GetMasterAddrByName(ctx, s.master).Result()
			switch {
			case errors.Is(err, redis.Nil):
				err = fmt.Errorf("the sentinel knows no master %q; correct redis.master", s.master)
			case err == nil && len(pair) != 2:
				err = errReply
			}
			if err != nil {
				answers <- answer{err: fmt.Errorf("ask a sentinel: %w", err)}
				return
			}
			answers <- answer{addr: net.JoinHostPort(pair[0], pair[1])}
		}()
	}
	votes, best := map[string]int{}, ""
	var problems []error
	for range s.clients {
		a := <-answers
		if a.err != nil {
			problems = append(problems, a.err)
			continue
		}
		if votes[a.addr]++; votes[a.addr] > votes[best] {
			best = a.addr
		}
		if votes[best] > len(s.clients)/2 {
			break
		}
	}
	if best == "" {
		return nil, errors.Join(problems...)
	}
	return &routes{addrs: []string{best}}, nil
}
