package bucket

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// send sends each call to the node that serves its keys, or to the one that another named, the nodes at once. Every call ends
// with its reply or its error; nothing is sent twice.
func (n *nodes) send(ctx context.Context, sc *script, calls []*call) {
	r, err := n.known(ctx)
	if err != nil {
		for _, c := range calls {
			c.err = err
		}
		return
	}
	for _, c := range calls {
		if c.at = c.to; c.at == "" {
			c.at = r.of(c.keys[0])
		}
	}
	groups := byNode(calls)
	if len(groups) == 1 {
		n.sendTo(ctx, sc, groups[0])
		return
	}
	var all sync.WaitGroup
	for _, group := range groups {
		all.Go(func() { n.sendTo(ctx, sc, group) })
	}
	all.Wait()
}

// byNode parts calls by the node that they go to.
func byNode(calls []*call) [][]*call {
	first := calls[0].at
	if !slices.ContainsFunc(calls, func(c *call) bool { return c.at != first }) {
		return [][]*call{calls}
	}
	position := map[string]int{}
	var groups [][]*call
	for _, c := range calls {
		i, known := position[c.at]
		if !known {
			i = len(groups)
			position[c.at] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], c)
	}
	return groups
}

// sendTo sends calls to the one node that all of them go to.
func (n *nodes) sendTo(ctx context.Context, sc *script, calls []*call) {
	l := n.link(calls[0].at)
	server, err := l.id(ctx)
	if err == nil {
		for _, c := range calls {
			c.args[0] = server
		}
		l.eval(ctx, sc, calls)
	}
	for _, c := range calls {
		if c.err = cmpErr(err, c.err); c.err != nil {
			n.notice(c.err)
			c.err = &nodeError{l.addr, c.err}
		}
	}
}

// redirect tells whether c, whose error says that it has not run, can be sent again: to the node that the error names, or to
// another master than the one that is none any more. Where a slot is between two nodes (TRYAGAIN) or the cluster is without a
// master for it (CLUSTERDOWN) that takes longer than a request may wait.
func (n *nodes) redirect(ctx context.Context, c *call) bool {
	moved, isMoved := redis.IsMovedError(c.err)
	ask, isAsk := redis.IsAskError(c.err)
	switch {
	case (isMoved || isAsk) && n.mode != ModeCluster:
		c.err = fmt.Errorf("%w; this Redis is a cluster: set redis.mode: cluster", c.err)
	case isMoved:
		c.to, c.asking = completeAddr(moved, c.at), false
		return true
	case isAsk:
		c.to, c.asking = completeAddr(ask, c.at), true
		return true
	case redis.IsReadOnlyError(c.err) && n.discover != nil:
		select {
		case <-n.refresh():
		case <-ctx.Done():
		}
		if r := n.routes.Load(); r.addr(slotOf(c.keys[0])) != c.at {
			c.to, c.asking = "", false
			return true
		}
	}
	return false
}

// serves tells whether a node is one of those that serve.
func (n *nodes) serves(addr string) bool {
	r := n.routes.Load()
	return r != nil && slices.Contains(r.addrs, addr)
}
