package bucket

import (
	"context"
	"fmt"
)

// readMemory reads what the server does when its memory is full. INFO tells it where CONFIG GET is forbidden too.
func (s *Store) readMemory(ctx context.Context, l *link) error {
	info, err := l.client.Info(ctx, "memory").Result()
	if err != nil {
		return fmt.Errorf("INFO memory: %w", err)
	}
	policy := infoField(info, "maxmemory_policy")
	s.policy.Store(&policy)
	return nil
}

// Warnings says what about the server, as the last Ping found it, will break a promise one day though it answers now.
func (s *Store) Warnings() []string {
	policy := s.policy.Load()
	if policy == nil || *policy == "" || *policy == "noeviction" {
		return nil
	}
	return []string{fmt.Sprintf("its maxmemory-policy is %s: a bucket that is evicted forgets what was spent (PROTOCOL.md E4); "+
		"set maxmemory-policy noeviction", *policy)}
}
