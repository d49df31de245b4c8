package demo

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/annona-gateway/annona/shared/bucket"
)

// store is one region's Redis: an embedded one, or a real one that somebody else runs.
type store struct {
	config   bucket.Config
	embedded *miniredis.Miniredis
}

// openStore starts an embedded store, or names the real one at addr.
func openStore(addr string) (*store, error) {
	// Embedded Lua is slower than Redis' own, and the demo shares its cores with the load that is tried on it.
	const timeout = time.Second
	if addr != "" {
		return &store{config: bucket.Config{Mode: "single", Addrs: []string{addr}, Timeout: timeout}}, nil
	}
	embedded := miniredis.NewMiniRedis()
	if err := embedded.StartAddr("127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start an embedded store: %w", err)
	}
	return &store{
		embedded: embedded,
		config:   bucket.Config{Mode: "single", Addrs: []string{embedded.Addr()}, Timeout: timeout, ServerID: rand.Text()},
	}, nil
}

// run lets an embedded store's keys expire: it expires none unless its clock is driven.
func (s *store) run(ctx context.Context) {
	if s.embedded == nil {
		return
	}
	const step = time.Second
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.embedded.FastForward(step)
		case <-ctx.Done():
			return
		}
	}
}

func (s *store) close() {
	if s.embedded != nil {
		s.embedded.Close()
	}
}
