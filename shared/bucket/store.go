package bucket

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// DefaultTimeout is the longest that a take waits for Redis where Config says nothing. A larger one admits more of a slow
	// store's requests, and makes every request slower while it is out.
	DefaultTimeout = 50 * time.Millisecond
	// VerbTimeout is the longest that an agent's verb waits: nobody's request hangs on it, and a pipeline of hundreds takes its
	// time.
	VerbTimeout = time.Second
	// DemotedFor is how long a demoted Redis master may go on serving (PROTOCOL.md D); until then a new epoch has nothing.
	DemotedFor = 15 * time.Second
)

// Store is one region's Redis. Its methods are safe for concurrent use, wait no longer than their timeout, and retry nothing
// that may have run.
type Store struct {
	opts     redis.Options
	timeout  time.Duration
	serverID string
	begun    func(shard int, reason string)
	link     atomic.Pointer[link]
	policy   atomic.Pointer[string] // what the server does when its memory is full, nil while unknown
	ticker   ticker
	ahead    atomic.Int64 // µs by which the store's clock is ahead of ours, as last heard
}

// Open connects to a region's Redis. It does not wait for the server to be there: a store that is out answers ErrCouldNotAsk
// and recovers without a restart. It fails on a configuration that can never work.
func Open(cfg Config) (*Store, error) {
	if cfg.Mode != "" && cfg.Mode != "single" {
		return nil, fmt.Errorf("redis.mode %q is not built yet; use single", cfg.Mode)
	}
	if len(cfg.Addrs) != 1 {
		return nil, fmt.Errorf("redis.addrs names %d servers; give exactly 1 in mode single", len(cfg.Addrs))
	}
	if cfg.Timeout < 0 || cfg.Timeout > time.Minute || cfg.PoolSize < 0 || cfg.PoolSize > 10_000 {
		return nil, errors.New("redis.timeout must be 0 to 1m and redis.pool_size 0 to 10000")
	}
	s := &Store{timeout: cfg.Timeout, serverID: cfg.ServerID, begun: cfg.EpochBegun}
	if s.timeout == 0 {
		s.timeout = DefaultTimeout
	}
	var password string
	if cfg.PasswordFile != "" {
		text, err := os.ReadFile(cfg.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("redis.password_file: %w", err)
		}
		password = strings.TrimSpace(string(text))
	}
	longest := max(VerbTimeout, s.timeout) // the contexts of calls end sooner; this bounds what has none
	s.opts = redis.Options{
		Addr: cfg.Addrs[0], Username: cfg.Username, Password: password, PoolSize: cfg.PoolSize,
		Protocol: 2, DisableIdentity: true, PipelinePoolSize: -1,
		// A call whose outcome is unknown is never sent again.
		MaxRetries: -1, DialerRetries: 1, ContextTimeoutEnabled: true,
		DialTimeout: longest, ReadTimeout: longest, WriteTimeout: longest, PoolTimeout: longest,
	}
	s.ticker.shards = map[int]*witness{}
	s.link.Store(newLink(s.opts, s.serverID))
	return s, nil
}

// Close ends all connections.
func (s *Store) Close() error {
	if err := s.link.Load().client.Close(); err != nil {
		return fmt.Errorf("close the connections to Redis: %w", err)
	}
	return nil
}

// Ping tells whether the store answers, and takes in what Warnings tells.
func (s *Store) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	l, _, err := s.current(ctx)
	switch {
	case err != nil:
	case s.serverID != "": // an embedded store, which has no INFO
		err = l.client.Ping(ctx).Err()
	default:
		err = s.readMemory(ctx, l)
	}
	if err != nil {
		return couldNotAsk("ping", err)
	}
	return nil
}

// patient bounds a verb on which no request waits.
func (s *Store) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(VerbTimeout, s.timeout))
}

// run runs one script call. It is sent again only where it surely had not run: the server was another than before, or the
// epoch had to be begun first.
func (s *Store) run(ctx context.Context, sc *script, c *call) error {
	s.runAll(ctx, sc, []*call{c})
	if c.err != nil {
		return couldNotAsk(sc.name, c.err)
	}
	return nil
}

// attempts is how often a call may be sent: a server that restarted empty takes one for the new link and one for its epoch.
const attempts = 3

// runAll runs calls, pipelined; each ends with its reply or its error.
func (s *Store) runAll(ctx context.Context, sc *script, calls []*call) {
	for attempt := 1; len(calls) > 0; attempt++ {
		l, server, err := s.current(ctx)
		if err != nil {
			for _, c := range calls {
				c.err = err
			}
			return
		}
		for _, c := range calls {
			c.args[0] = server
		}
		if len(calls) == 1 {
			l.eval(ctx, sc, calls[0])
		} else {
			l.evalAll(ctx, sc, calls)
		}
		again, refused := s.sort(calls)
		if attempt == attempts {
			for _, c := range again {
				c.err = cmpErr(c.err, errEpoch)
			}
			return
		}
		s.begin(ctx, l, server, refused)
		calls = again
	}
}

// errEpoch: the shard's epoch changed as often as the call was tried.
var errEpoch = fmt.Errorf("%w: the store's epoch keeps changing; check that every role reaches the same Redis server", ErrNotRun)

// sort returns the calls that have not run and may be sent again, and the shards that need a new epoch first.
func (s *Store) sort(calls []*call) (again []*call, refused map[int]refusal) {
	for _, c := range calls {
		if errors.Is(c.err, errMoved) {
			again = append(again, c)
			continue
		}
		if c.err != nil {
			continue
		}
		var list []refusal
		if list, c.err = c.refusals(); len(list) == 0 {
			continue
		}
		again = append(again, c)
		if refused == nil {
			refused = map[int]refusal{}
		}
		for _, r := range list {
			refused[r.shard] = r
		}
	}
	return again, refused
}

// begin begins a new epoch of each refused shard, unless another process just did (PROTOCOL.md E3).
func (s *Store) begin(ctx context.Context, l *link, server string, refused map[int]refusal) {
	calls := make([]*call, 0, len(refused))
	reasons := make([]refusal, 0, len(refused))
	for shard, r := range refused {
		calls = append(calls, epochCall(shard, server, r))
		reasons = append(reasons, r)
	}
	l.evalAll(ctx, epochScript, calls)
	for i, c := range calls {
		// A failure shows again when the refused call is sent once more.
		if first, err := status(c.reply); c.err == nil && err == nil && first == 1 && s.begun != nil {
			s.begun(reasons[i].shard, reasons[i].reason)
		}
	}
}

// epochCall lays out one call of lua/epoch.lua.
func epochCall(shard int, server string, r refusal) *call {
	return &call{
		keys: []string{shardKey(shard), holdersKey(shard)},
		args: []any{server, r.found, newEpoch(), DemotedFor.Microseconds(), r.reason, r.tick, r.step},
	}
}

// newEpoch returns an id that no other epoch has.
func newEpoch() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return hex.EncodeToString(id[:])
}
