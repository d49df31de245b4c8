package bucket

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Ping tells whether every node of the store answers, and takes in what Warnings tells.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	r, err := s.nodes.known(ctx)
	if err != nil {
		return couldNotAsk("ping", err)
	}
	warnings, problems := make([][]string, len(r.addrs)), make([]error, len(r.addrs))
	var group sync.WaitGroup
	for i, addr := range r.addrs {
		group.Go(func() { warnings[i], problems[i] = s.look(ctx, s.nodes.link(addr)) })
	}
	group.Wait()
	if all := slices.Concat(warnings...); s.nodes.serverID == "" {
		s.warnings.Store(&all)
	}
	for i, err := range problems {
		if err != nil {
			s.nodes.refresh()
			return couldNotAsk("ping", &nodeError{r.addrs[i], err})
		}
	}
	return nil
}

// look pings one node, and reads what about it will break a promise one day. INFO tells it where CONFIG GET is forbidden too.
func (s *Store) look(ctx context.Context, l *link) (warnings []string, err error) {
	if s.nodes.serverID != "" { // an embedded store, which has no INFO
		return nil, l.client.Ping(ctx).Err() //nolint:wrapcheck // Ping names the node
	}
	pipe := l.client.Pipeline()
	memory, replication := pipe.Info(ctx, "memory"), pipe.Info(ctx, "replication")
	if _, err := pipe.Exec(ctx); err != nil && !redis.HasErrorPrefix(err, "NOPERM") {
		return nil, fmt.Errorf("INFO: %w", err)
	}
	if policy := infoField(memory.Val(), "maxmemory_policy"); policy != "" && policy != "noeviction" {
		warnings = append(warnings, fmt.Sprintf("%s: its maxmemory-policy is %s: a bucket that is evicted forgets what was spent "+
			"(PROTOCOL.md E4); set maxmemory-policy noeviction", l.addr, policy))
	}
	// The field is there only where min-replicas-to-write and min-replicas-max-lag are set.
	if s.nodes.mode == ModeSentinel && infoField(replication.Val(), "min_slaves_good_slaves") == "" {
		warnings = append(warnings, fmt.Sprintf("%s: nothing stops it once it is demoted and cut off from its sentinels "+
			"(PROTOCOL.md D: it may serve 15 s); set min-replicas-to-write 1 and min-replicas-max-lag 10", l.addr))
	}
	return warnings, nil
}

// Warnings says what about the servers, as the last Ping found them, will break a promise one day though they answer now.
func (s *Store) Warnings() []string {
	if all := s.warnings.Load(); all != nil {
		return *all
	}
	return nil
}
