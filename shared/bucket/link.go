package bucket

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

// link is the connections to one server process (PROTOCOL.md E1). All of them have seen the same server id, so whichever a
// script call goes over, the id in its arguments is the one that its connection saw. A connection that reaches another
// process (a restarted server, a promoted replica behind the same name) is refused before a script can go over it; the store
// then goes on with a new link.
type link struct {
	client *redis.Client
	server atomic.Pointer[string] // nil before the first connection
	moved  atomic.Bool            // a connection reached another process
}

// errMoved: the connection reached another server process than the link's. Nothing was sent over it.
var errMoved = errors.New("another Redis process answers than before")

// silent drops what go-redis would write to standard error in a form of its own: each failure reaches the caller as an error.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(silent{}) } //nolint:gochecknoinits // the library has one logger a process, set before any use

func newLink(opts redis.Options, serverID string) *link {
	l := &link{}
	if serverID != "" {
		l.server.Store(&serverID)
	} else {
		opts.OnConnect = l.meet
	}
	l.client = redis.NewClient(&opts)
	return l
}

// meet reads the server id on a new connection.
func (l *link) meet(ctx context.Context, conn *redis.Conn) error {
	info, err := conn.Info(ctx, "server").Result()
	if err != nil {
		return fmt.Errorf("read the server's run_id with INFO server: %w", err)
	}
	id := infoField(info, "run_id")
	if id == "" {
		return errors.New("INFO server tells no run_id; use Redis 7.0 or later, or Valkey 8 or later")
	}
	if !l.server.CompareAndSwap(nil, &id) && *l.server.Load() != id {
		l.moved.Store(true)
		return errMoved
	}
	return nil
}

func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// current returns the link to use and its server id, connecting first where none is known yet.
func (s *Store) current(ctx context.Context) (*link, string, error) {
	l := s.link.Load()
	if l.moved.Load() {
		l = s.replace(l)
	}
	if id := l.server.Load(); id != nil {
		return l, *id, nil
	}
	if err := l.client.Ping(ctx).Err(); err != nil {
		return nil, "", fmt.Errorf("connect: %w", err)
	}
	return l, *l.server.Load(), nil
}

// replace swaps old for a new link, once, and returns the one to use.
func (s *Store) replace(old *link) *link {
	fresh := newLink(s.opts, s.serverID)
	if s.link.CompareAndSwap(old, fresh) {
		_ = old.client.Close() // its calls end with an error, as they should: their server is gone
	} else {
		_ = fresh.client.Close()
	}
	return s.link.Load()
}
