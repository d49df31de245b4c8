package bucket

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// link is the connections to one server process (PROTOCOL.md E1). All of them have seen the same server id, so whichever a
// script call goes over, the id in its arguments is the one that its connection saw. A connection that reaches another
// process (a restarted server, a promoted replica behind the same name) is refused before a script can go over it; the store
// then goes on with a new link. (A connection that is told READONLY the library gives up by itself: behind a name there may be
// another server by now.)
type link struct {
	addr   string
	client *redis.Client
	made   time.Time
	used   atomic.Int64           // when it was last chosen for a call, in ns since 1970
	server atomic.Pointer[string] // nil before the first connection
	stale  atomic.Bool            // a connection reached another process
}

// errMoved: the connection reached another server process than the link's. Nothing was sent over it.
var errMoved = errors.New("another Redis process answers than before")

// silent drops what go-redis would write to standard error in a form of its own: each failure reaches the caller as an error.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(silent{}) } //nolint:gochecknoinits // the library has one logger a process, set before any use

func newLink(opts redis.Options, addr, serverID string) *link {
	l := &link{addr: addr, made: time.Now()}
	opts.Addr = addr
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
		l.stale.Store(true)
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

// id returns the server id, connecting first where none is known yet.
func (l *link) id(ctx context.Context) (string, error) {
	if id := l.server.Load(); id != nil {
		return *id, nil
	}
	if err := l.client.Ping(ctx).Err(); err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	return *l.server.Load(), nil
}

// nodeError is a call that failed, with the node that it was sent to.
type nodeError struct {
	addr string
	err  error
}

func (e *nodeError) Error() string { return e.addr + ": " + e.err.Error() }
func (e *nodeError) Unwrap() error { return e.err }

// Node is the node's address, as Store.Node tells it.
func (e *nodeError) Node() string { return e.addr }
