package bucket

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// discoverWithin is the longest that sentinels or a cluster are asked who serves.
	discoverWithin = time.Second
	// discoverEvery is the least time between two such questions.
	discoverEvery = 100 * time.Millisecond
	// idleLink is after how long unused the connections to a node that serves nothing are given up.
	idleLink = 10 * time.Second
)

// nodes are the servers of a region's store: which there are, which of them serves what, and the connections to each.
type nodes struct {
	mode     string
	options  redis.Options // of every connection, but for the address
	serverID string
	discover func(context.Context) (*routes, error) // nil where there is nothing to find out
	routes   atomic.Pointer[routes]                 // nil before the first discovery

	turn atomic.Uint64 // whose turn it is where any node will do

	end  context.CancelFunc // ends what runs in the background
	live context.Context    //nolint:containedctx // of the background's work, which no caller's context bounds
	work sync.WaitGroup
	mu   struct {
		sync.RWMutex

		links   map[string]*link
		closed  bool
		asking  chan struct{} // closed at the end of the discovery under way, or of the last
		askedAt time.Time
		failed  error // of the last discovery
	}
}

// routes say which node serves what. They never change.
type routes struct {
	addrs []string // masters, sorted
	slots []uint16 // of a cluster, by slot: position in addrs plus 1, 0 for none; nil where addrs has one node for all
}

// of is the node that serves key.
func (r *routes) of(key string) string {
	if r.slots == nil {
		return r.addrs[0]
	}
	return r.addr(slotOf(key))
}

// addr returns the node that serves slot. One that nobody serves is any node's to refuse.
func (r *routes) addr(slot int) string {
	if r.slots == nil || r.slots[slot] == 0 {
		return r.addrs[0]
	}
	return r.addrs[r.slots[slot]-1]
}

func openNodes(cfg Config, timeout time.Duration) (*nodes, error) {
	server, sentinel, err := cfg.options(timeout)
	if err != nil {
		return nil, err
	}
	n := &nodes{mode: cfg.Mode, options: server, serverID: cfg.ServerID}
	n.live, n.end = context.WithCancel(context.Background())
	n.mu.links = map[string]*link{}
	switch cfg.Mode {
	case ModeCluster:
		n.discover = func(ctx context.Context) (*routes, error) { return n.askCluster(ctx, cfg.Addrs) }
	case ModeSentinel:
		sentinels := newSentinels(cfg.Addrs, cfg.Master, sentinel)
		n.discover = sentinels.ask
		context.AfterFunc(n.live, sentinels.close)
	default:
		n.routes.Store(&routes{addrs: cfg.Addrs})
	}
	return n, nil
}

// close ends all connections, and what runs in the background.
func (n *nodes) close() error {
	n.mu.Lock()
	n.end() // from here on nothing begins in the background
	n.mu.Unlock()
	n.work.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.closed = true
	var problems []error
	for _, l := range n.mu.links {
		problems = append(problems, l.client.Close())
	}
	return errors.Join(problems...)
}

// known returns the routes, finding them out first where that has not been done.
func (n *nodes) known(ctx context.Context) (*routes, error) {
	if r := n.routes.Load(); r != nil {
		return r, nil
	}
	select {
	case <-n.refresh():
	case <-ctx.Done():
	}
	if r := n.routes.Load(); r != nil {
		return r, nil
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return nil, cmpErr(ctx.Err(), n.mu.failed, errNoRoutes)
}

var errNoRoutes = errors.New("nobody has told yet which node serves")

// inTurn returns addrs from the one on whose turn it is.
func (n *nodes) inTurn(addrs []string) []string {
	first := int(n.turn.Add(1) % uint64(len(addrs)))
	return slices.Concat(addrs[first:], addrs[:first])
}

// refresh has the routes found out anew, unless that was just done. The channel is closed when it is done.
func (n *nodes) refresh() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.discover == nil || n.live.Err() != nil {
		done := make(chan struct{})
		close(done)
		return done
	}
	if n.mu.asking != nil && time.Since(n.mu.askedAt) < discoverEvery {
		return n.mu.asking
	}
	if n.mu.asking != nil {
		select {
		case <-n.mu.asking:
		default:
			return n.mu.asking // still under way
		}
	}
	n.mu.asking, n.mu.askedAt = make(chan struct{}), time.Now()
	done := n.mu.asking
	n.work.Go(func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(n.live, discoverWithin)
		defer cancel()
		found, err := n.discover(ctx)
		if err == nil {
			n.routes.Store(found)
		}
		n.sweep(err)
	})
	return done
}

// sweep notes what came of a discovery, and gives up connections to nodes that serve nothing any more.
func (n *nodes) sweep(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.failed = err
	for addr, l := range n.mu.links {
		if r := n.routes.Load(); r == nil || slices.Contains(r.addrs, addr) {
			continue
		}
		if used := max(l.used.Load(), l.made.UnixNano()); time.Since(time.Unix(0, used)) > idleLink {
			_ = l.client.Close() // nobody uses it
			delete(n.mu.links, addr)
		}
	}
}

// link returns the connections to a node, new ones where those that there were are stale.
func (n *nodes) link(addr string) *link {
	n.mu.RLock()
	l := n.mu.links[addr]
	n.mu.RUnlock()
	if l == nil || l.stale.Load() {
		l = n.fresh(addr)
	}
	l.used.Store(time.Now().UnixNano())
	return l
}

func (n *nodes) fresh(addr string) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	old := n.mu.links[addr]
	if old != nil && !old.stale.Load() {
		return old
	}
	if old != nil {
		_ = old.client.Close() // its calls end with an error, as they should: their server is gone
	}
	l := newLink(n.options, addr, n.serverID)
	if n.mu.closed {
		_ = l.client.Close()
	}
	n.mu.links[addr] = l
	return l
}

// notice draws the consequences of a call's error for the calls after it.
func (n *nodes) notice(err error) {
	_, moved := redis.IsMovedError(err)
	_, ask := redis.IsAskError(err)
	var reply redis.Error
	switch {
	case err == nil, ask, errors.Is(err, context.Canceled): // ASK is about one slot's move, which is not over
	case moved, !errors.As(err, &reply), redis.IsReadOnlyError(err), redis.IsClusterDownError(err), redis.IsMasterDownError(err):
		n.refresh()
	}
}

// slotCount is how many slots a cluster has.
const slotCount = 1 << 14

// slotOf returns the slot of a key: CRC-16/XMODEM of what stands between its first braces, if anything does, else of all
// (redis.io, Redis cluster specification, "Hash tags").
func slotOf(key string) int {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, closed := strings.Cut(rest, "}"); closed && tag != "" {
			key = tag
		}
	}
	const polynomial = 0x1021
	var crc uint16
	for i := range len(key) {
		crc ^= uint16(key[i]) << 8
		for range 8 {
			carry := crc & 0x8000
			crc <<= 1
			if carry != 0 {
				crc ^= polynomial
			}
		}
	}
	return int(crc) % slotCount
}
