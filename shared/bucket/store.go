package bucket

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
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

// Store is one region's Redis: one server, the one that sentinels name, or a cluster. Its methods are safe for concurrent use,
// wait no longer than their timeout, and retry nothing that may have run.
type Store struct {
	nodes    *nodes
	timeout  time.Duration
	begun    func(shard int, reason string)
	warnings atomic.Pointer[[]string] // nil before the first Ping
	ticker   ticker
	backs    chan []Back  // in a cluster: give-backs that nobody waits for
	ahead    atomic.Int64 // µs by which the store's clock is ahead of ours, as last heard
}

// Open connects to a region's Redis. It does not wait for a server to be there: a store that is out answers ErrCouldNotAsk
// and recovers without a restart. It fails on a configuration that can never work.
func Open(cfg Config) (*Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Store{timeout: cfg.Timeout, begun: cfg.EpochBegun}
	if s.timeout == 0 {
		s.timeout = DefaultTimeout
	}
	s.ticker.shards = map[int]*witness{}
	var err error
	if s.nodes, err = openNodes(cfg, s.timeout); err != nil {
		return nil, err
	}
	if s.clustered() {
		s.backs = make(chan []Back, maxBacks)
		s.nodes.work.Go(s.settleBacks)
	}
	return s, nil
}

// clustered tells whether shards may live on several nodes.
func (s *Store) clustered() bool { return s.nodes.mode == ModeCluster }

// Close ends all connections.
func (s *Store) Close() error {
	if err := s.nodes.close(); err != nil {
		return fmt.Errorf("close the connections to Redis: %w", err)
	}
	return nil
}

// Node names the node that serves a shard, "" where nobody has told yet.
func (s *Store) Node(shard int) string {
	r := s.nodes.routes.Load()
	if r == nil {
		return ""
	}
	return r.addr(slotOf(shardKey(shard)))
}

// patient bounds a verb on which no request waits.
func (s *Store) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, max(VerbTimeout, s.timeout))
}

// run runs one script call. It is sent again only where it surely had not run: the server was another than before, another
// node serves its slot, or the epoch had to be begun first.
func (s *Store) run(ctx context.Context, sc *script, c *call) error {
	s.runAll(ctx, sc, []*call{c})
	if c.err != nil {
		return couldNotAsk(sc.name, c.err)
	}
	return nil
}

// attempts is how often a call may be sent: a server that restarted empty takes one for the new link and one for its epoch, a
// slot that moved to such a server one for the node that it left.
const attempts = 4

// runAll runs calls, pipelined for each node and the nodes at once; each ends with its reply or its error.
func (s *Store) runAll(ctx context.Context, sc *script, calls []*call) {
	for attempt := 1; len(calls) > 0; attempt++ {
		s.nodes.send(ctx, sc, calls)
		again, refused := s.sort(ctx, calls)
		if attempt == attempts {
			for _, c := range again {
				c.err = cmpErr(c.err, errEpoch)
			}
			return
		}
		s.begin(ctx, refused)
		calls = again
	}
}

// errEpoch: the shard's epoch changed as often as the call was tried.
var errEpoch = fmt.Errorf("%w: the store's epoch keeps changing; check that every role reaches the same Redis server", ErrNotRun)

// sort returns the calls that have not run and may be sent again, and the shards that need a new epoch first.
func (s *Store) sort(ctx context.Context, calls []*call) (again []*call, refused map[int]refusal) {
	for _, c := range calls {
		if c.err != nil {
			if errors.Is(c.err, errMoved) || s.nodes.redirect(ctx, c) {
				again = append(again, c)
			}
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
func (s *Store) begin(ctx context.Context, refused map[int]refusal) {
	if len(refused) == 0 {
		return
	}
	calls := make([]*call, 0, len(refused))
	reasons := make([]refusal, 0, len(refused))
	for shard, r := range refused {
		calls = append(calls, epochCall(shard, r))
		reasons = append(reasons, r)
	}
	s.nodes.send(ctx, epochScript, calls)
	for i, c := range calls {
		// A failure shows again when the refused call is sent once more.
		if first, err := status(c.reply); c.err == nil && err == nil && first == 1 && s.begun != nil {
			s.begun(reasons[i].shard, reasons[i].reason)
		}
	}
}

// epochCall lays out one call of lua/epoch.lua, for the node that refused.
func epochCall(shard int, r refusal) *call {
	return &call{
		keys: []string{shardKey(shard), holdersKey(shard)}, to: r.to, asking: r.asking,
		args: []any{nil, r.found, newEpoch(), DemotedFor.Microseconds(), r.reason, r.tick, r.step},
	}
}

// newEpoch returns an id that no other epoch has.
func newEpoch() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails (crypto/rand)
	return hex.EncodeToString(id[:])
}
