package bucket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// quiet is after how long without a message a subscription is probed; silent twice, it is made anew.
	quiet = time.Second
	// again is how long a lost subscription waits before it is made anew.
	again = 200 * time.Millisecond
)

// Demands calls f for each announcement of a bucket low on tokens until ctx ends. Announcements may be lost.
func (s *Store) Demands(ctx context.Context, f func(Announcement)) error {
	return s.listen(ctx, demandsChannel, announced(f))
}

// Fills calls f for each announcement of an applied answer until ctx ends. Announcements may be lost.
func (s *Store) Fills(ctx context.Context, f func(Announcement)) error {
	return s.listen(ctx, fillsChannel, announced(f))
}

// MirrorChanges calls f after each change of the mirror until ctx ends. Announcements may be lost.
func (s *Store) MirrorChanges(ctx context.Context, f func()) error {
	return s.listen(ctx, mirrorChannel, func(string) { f() })
}

func announced(f func(Announcement)) func(string) {
	return func(payload string) {
		if a, ok := parseAnnouncement(payload); ok {
			f(a)
		}
	}
}

// listen calls f with every message on channel until ctx ends, then returns nil; a lost subscription is made anew, in a cluster
// at another node, for each hears what is published at any. It fails only where the store was closed.
func (s *Store) listen(ctx context.Context, channel string, f func(payload string)) error {
	for ctx.Err() == nil {
		if s.nodes.live.Err() != nil {
			return couldNotAsk("listen", redis.ErrClosed)
		}
		if r, err := s.nodes.known(ctx); err == nil {
			addr := s.nodes.inTurn(r.addrs)[0]
			if s.nodes.link(addr).listen(ctx, channel, f, func() bool { return s.nodes.serves(addr) }) != nil {
				s.nodes.refresh()
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
	return nil
}

// listen is one subscription, until it breaks, its node serves nothing any more, or ctx ends.
func (l *link) listen(ctx context.Context, channel string, f func(payload string), serves func() bool) error {
	subscription := l.client.Subscribe(ctx, channel)
	defer subscription.Close()
	// Closing is what ends a receive that waits.
	defer context.AfterFunc(ctx, func() { _ = subscription.Close() })()
	probed := false
	for serves() {
		message, err := subscription.ReceiveTimeout(ctx, quiet)
		var timeout net.Error
		switch {
		case errors.As(err, &timeout) && timeout.Timeout() && !probed:
			probed = true
			if err := subscription.Ping(ctx); err != nil {
				return fmt.Errorf("probe the subscription: %w", err)
			}
			continue
		case err != nil:
			return fmt.Errorf("subscription: %w", err)
		}
		probed = false
		if m, ok := message.(*redis.Message); ok {
			f(m.Payload)
		}
	}
	return nil
}
