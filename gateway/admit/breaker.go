package admit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/annona-gateway/annona/shared/bucket"
)

const (
	// tripAfter is how many takes in a row must end without an answer before a node counts as out: few, for each of them costs
	// a request the whole timeout, but more than a hiccup or one lost connection causes.
	tripAfter = 5
	// probeEvery is how long an open breaker refuses before it lets one request find out. One request a probe pays the timeout,
	// and a node that is back serves again within this time and that.
	probeEvery = 500 * time.Millisecond
	// maxNodes bounds the breakers: more nodes than that share one.
	maxNodes = 1024
)

var errOpen = errors.New("the breaker is open: the last takes had no answer in time")

// noded is a Taker whose shards live on several nodes: one that is out must not take the others with it. An error of such a
// Taker may tell with Node() which of a take's nodes it is about.
type noded interface {
	Node(shard int) string
}

// breaker is a Taker in front of another. It keeps a node that does not answer from costing every request its timeout: after
// tripAfter takes without answer it refuses at once, but for one probe every probeEvery, which is a request like any other.
//
// Only silence counts. A node that answers is there, also where the answer is an error; a request that was never sent and a
// client that left say nothing about it.
type breaker struct {
	taker Taker
	log   *slog.Logger
	mu    struct {
		sync.RWMutex

		nodes map[string]*gobreaker.TwoStepCircuitBreaker[struct{}]
	}
}

func newBreaker(taker Taker, log *slog.Logger) *breaker {
	b := &breaker{taker: taker, log: log}
	b.mu.nodes = map[string]*gobreaker.TwoStepCircuitBreaker[struct{}]{}
	return b
}

// Take asks the Taker behind, unless a node that it would have to ask is out.
func (b *breaker) Take(ctx context.Context, r bucket.Request) (bucket.Verdict, error) {
	var opened [2]passage // on the stack for all but clusters
	passages, err := b.enter(opened[:0], r)
	if err != nil {
		return bucket.Verdict{}, err
	}
	returned := false
	defer func() {
		if !returned { // a panic tells nothing about the node, and must not keep the place of its probe
			leave(passages, errLeft)
		}
	}()
	verdict, err := b.taker.Take(ctx, r)
	returned = true
	if err != nil && ctx.Err() != nil {
		leave(passages, errLeft)
	} else {
		leave(passages, err)
	}
	return verdict, err
}

// errLeft tells a breaker that nothing was found out.
var errLeft = errors.New("the client left")

// passage is one node's permission to be asked.
type passage struct {
	node string
	done func(error)
}

// enter asks the breakers of all nodes that r touches.
func (b *breaker) enter(passages []passage, r bucket.Request) ([]passage, error) {
	nodes, many := b.taker.(noded)
	last := ""
	for i, c := range r.Charges {
		name := ""
		if many {
			name = nodes.Node(c.Shard)
		}
		if i > 0 && (name == last || has(passages, name)) {
			continue
		}
		last = name
		done, err := b.of(name).Allow()
		if err != nil {
			leave(passages, errLeft)
			return nil, fmt.Errorf("%w: %w", bucket.ErrCouldNotAsk, errOpen)
		}
		passages = append(passages, passage{name, done})
	}
	return passages, nil
}

func has(passages []passage, node string) bool {
	for _, p := range passages {
		if p.node == node {
			return true
		}
	}
	return false
}

// leave tells the breakers what came of a take. Where the error names a node, the others are not blamed for it.
func leave(passages []passage, err error) {
	var named interface{ Node() string }
	one := errors.As(err, &named)
	for _, p := range passages {
		if one && named.Node() != p.node {
			p.done(errLeft)
			continue
		}
		p.done(err)
	}
}

// of returns a node's breaker.
func (b *breaker) of(node string) *gobreaker.TwoStepCircuitBreaker[struct{}] {
	b.mu.RLock()
	one := b.mu.nodes[node]
	b.mu.RUnlock()
	if one != nil {
		return one
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.mu.nodes) >= maxNodes {
		node = ""
	}
	if one = b.mu.nodes[node]; one == nil {
		one = gobreaker.NewTwoStepCircuitBreaker[struct{}](b.settings(node))
		b.mu.nodes[node] = one
	}
	return one
}

func (b *breaker) settings(node string) gobreaker.Settings {
	return gobreaker.Settings{
		Name:         node,
		MaxRequests:  1,
		Timeout:      probeEvery,
		ReadyToTrip:  func(counts gobreaker.Counts) bool { return counts.ConsecutiveFailures >= tripAfter },
		IsSuccessful: func(err error) bool { return err == nil || answered(err) },
		IsExcluded:   func(err error) bool { return err != nil && !answered(err) && !silent(err) },
		OnStateChange: func(node string, from, to gobreaker.State) {
			switch {
			case to == gobreaker.StateOpen && from == gobreaker.StateClosed:
				b.log.Warn("Redis does not answer; failure modes decide until a probe is answered", "node", node)
			case to == gobreaker.StateClosed:
				b.log.Info("Redis answers again", "node", node)
			}
		},
	}
}

// answered tells whether the server said something, if only that it will not (OOM, LOADING, READONLY, a script's error).
func answered(err error) bool {
	var reply interface{ RedisError() }
	return errors.As(err, &reply)
}

// unsent tells whether a take that failed surely charged nothing, for there was no connection to send it on.
func unsent(err error) bool {
	if errors.Is(err, bucket.ErrPartly) {
		return false // the connections to other nodes are there
	}
	network, ok := errors.AsType[*net.OpError](err)
	return errors.Is(err, errOpen) || (ok && network.Op == "dial")
}

// silent tells whether a take ended because there was no connection or no answer.
func silent(err error) bool {
	var network net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.EOF),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return true
	}
	return errors.As(err, &network)
}
