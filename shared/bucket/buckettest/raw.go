package buckettest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
)

// raw is the suite's own look at a store, one server or a cluster of them.
type raw struct {
	redis.UniversalClient

	cluster *redis.ClusterClient // nil for one server
	count   int
}

// newRaw returns a client of h's servers, closed at the test's end.
func newRaw(t testing.TB, h Harness) raw {
	if h.Cluster == nil {
		return raw{UniversalClient: client(t, h.Addr), count: 1}
	}
	c := h.Cluster.Client()
	return raw{c, c, h.Cluster.masters}
}

// together is how many shards' keys one command may have.
func (r raw) together() int {
	const most = 32
	if r.cluster != nil {
		return 1
	}
	return most
}

// servers is how many servers hold keys.
func (r raw) servers() int { return r.count }

// masters calls f with each server that holds keys.
func (r raw) masters(ctx context.Context, f func(*redis.Client) error) error {
	if r.cluster == nil {
		one, ok := r.UniversalClient.(*redis.Client)
		if !ok {
			return fmt.Errorf("the suite has no client of one server: %T", r.UniversalClient)
		}
		return f(one)
	}
	return r.cluster.ForEachMaster(ctx, func(_ context.Context, one *redis.Client) error { return f(one) })
}

// flushAll empties all servers.
func (r raw) flushAll(ctx context.Context) error {
	return r.masters(ctx, func(one *redis.Client) error { return one.FlushAll(ctx).Err() })
}

// keys lists the keys of all servers.
func (r raw) keys(ctx context.Context) (all []string, err error) {
	var mu sync.Mutex
	err = r.masters(ctx, func(one *redis.Client) error {
		names, err := one.Keys(ctx, "*").Result()
		mu.Lock()
		defer mu.Unlock()
		all = append(all, names...)
		return err
	})
	return all, err
}

// listeners is how many listen on a channel, at whichever server.
func (r raw) listeners(ctx context.Context, channel string) (n int64, err error) {
	var mu sync.Mutex
	err = r.masters(ctx, func(one *redis.Client) error {
		counts, err := one.PubSubNumSub(ctx, channel).Result()
		mu.Lock()
		defer mu.Unlock()
		n += counts[channel]
		return err
	})
	return n, err
}

var errNobody = errors.New("nobody listens")
