package admit

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

const (
	// denyAtMost is how long a denial is believed at the longest: give-backs bring tokens that nobody announces.
	denyAtMost = time.Second
	// denyLeased is that for a key with a lease. Agents see a key's demand at its takes, over a horizon of a second, and ask for
	// it; demand that came in lumps would spoil fair shares.
	denyLeased = 100 * time.Millisecond

	memorySlots = 64
	// maxDenials is how many keys a slot remembers; the one that was denied longest ago makes room, and is asked about again.
	maxDenials = 1024
)

// memory denies without asking again: until the earlier of the known retry time, a fill, another snapshot and denyAtMost, a
// bucket that lacked a cost lacks it still. It admits nothing. What it denies is demand all the same: it is added up, and told
// with the key's next take (PROTOCOL.md C5).
type memory struct{ slots [memorySlots]memorySlot }

type memorySlot struct {
	known atomic.Int64 // so that keys which nobody was denied take no lock
	mu    struct {
		sync.Mutex

		denials *simplelru.LRU[limit.Key, *denial]
	}
}

// denial is a bucket as the last denied take at it found it.
type denial struct {
	snapshot *Snapshot
	state    bucket.State
	at       time.Time // when state was told
	cost     limit.Tokens
	until    time.Time // until when cost surely does not fit; zero where it was another bucket that lacked
	retryAt  time.Time // when it may fit, as clients are told; zero: never
	unmet    limit.Tokens
	denials  int // told with the next take where they may ban
}

func newMemory() *memory {
	m := &memory{}
	for i := range m.slots {
		denials, err := simplelru.NewLRU[limit.Key, *denial](maxDenials, nil)
		if err != nil {
			panic(err) // the size is not positive
		}
		m.slots[i].mu.denials = denials
	}
	return m
}

func (m *memory) slot(key limit.Key) *memorySlot { return &m.slots[key[13]%memorySlots] }

// holds tells whether d still denies cost.
func (d *denial) holds(cost limit.Tokens, now time.Time) bool {
	return cost >= d.cost && now.Before(d.until)
}

// recall denies a request with these claims if one of their buckets surely lacks its cost, and leaves what is known in claims.
// Otherwise it hands the unmet demand of their keys to the take that follows.
func (m *memory) recall(s *Snapshot, claims []*claim) (denied bool) {
	known := false
	for _, c := range claims {
		known = known || m.slot(c.charge.Key).known.Load() > 0
	}
	if !known {
		return false
	}
	now := time.Now()
	var dries *claim // the policy at which the request's demand counts: the one that denies longest, if all are leased
	counts := true
	for _, c := range claims {
		if !m.remind(s, c, now) {
			continue
		}
		denied = true
		counts = counts && c.charge.Leased
		if dries == nil || c.state.RetryIn > dries.state.RetryIn {
			dries = c
		}
	}
	for _, c := range claims {
		switch {
		case !denied:
			c.asked = false
			c.charge.Denied, c.charge.Denials = m.settle(c.charge.Key)
		default:
			m.count(c, counts && c == dries)
		}
	}
	return denied
}

// remind leaves in c what is known of its bucket, and tells whether that lacks c's cost.
func (m *memory) remind(s *Snapshot, c *claim, now time.Time) bool {
	slot := m.slot(c.charge.Key)
	slot.mu.Lock()
	defer slot.mu.Unlock()
	d, ok := slot.mu.denials.Peek(c.charge.Key)
	if !ok || d.snapshot != s || now.Sub(d.at) > denyAtMost {
		return false
	}
	c.state, c.asked = d.state, true
	age := limit.Micros(now.Sub(d.at).Microseconds())
	if c.state.PoolAge >= 0 {
		c.state.PoolAge += age
	}
	if c.state.Heard >= 0 {
		c.state.Heard += age
	}
	c.state.Lacking = d.holds(c.charge.Cost, now)
	if c.state.Banned = max(0, c.state.Banned-age); !c.state.Lacking {
		c.state.Banned = 0
	}
	switch {
	case !c.state.Lacking:
		c.state.RetryIn = 0
	case d.retryAt.IsZero():
		c.state.RetryIn = limit.Never
	default:
		c.state.RetryIn = max(1, limit.Micros(d.retryAt.Sub(now).Microseconds()))
	}
	return c.state.Lacking
}

// count adds what a denied request leaves at c: its cost, where it is unmet demand, and a denial, where those may ban.
func (m *memory) count(c *claim, demand bool) {
	denies := c.state.Lacking && c.state.Banned == 0 && c.charge.Ban.Denials > 0
	if !demand && !denies {
		return
	}
	slot := m.slot(c.charge.Key)
	slot.mu.Lock()
	defer slot.mu.Unlock()
	d, ok := slot.mu.denials.Peek(c.charge.Key)
	if !ok {
		return
	}
	if demand {
		d.unmet = min(d.unmet+c.charge.Cost, limit.MaxTokens)
	}
	if denies {
		d.denials = min(d.denials+1, c.charge.Ban.Denials)
	}
}

// settle forgets a key that is asked about again, and returns its unmet demand and its denials.
func (m *memory) settle(key limit.Key) (limit.Tokens, int) {
	slot := m.slot(key)
	if slot.known.Load() == 0 {
		return 0, 0
	}
	slot.mu.Lock()
	defer slot.mu.Unlock()
	d, ok := slot.mu.denials.Peek(key)
	if !ok {
		return 0, 0
	}
	slot.mu.denials.Remove(key)
	slot.known.Add(-1)
	return d.unmet, d.denials
}

// filled makes the next request for key ask again.
func (m *memory) filled(key limit.Key) {
	slot := m.slot(key)
	if slot.known.Load() == 0 {
		return
	}
	slot.mu.Lock()
	defer slot.mu.Unlock()
	if d, ok := slot.mu.denials.Peek(key); ok {
		d.until = time.Time{}
	}
}

// remember keeps what a denied take found. fills tells how often c's slot of waiters was filled: a fill since the take was sent
// may be what c lacked.
func (m *memory) remember(s *Snapshot, claims []*claim, fills func(limit.Key) uint64) {
	for _, c := range claims {
		d := &denial{snapshot: s, state: c.state, at: c.answeredAt, cost: c.charge.Cost}
		if c.state.Banned > 0 {
			d.cost = 0 // whatever it costs
		}
		if c.memorable(s.ttl) && fills(c.charge.Key) == c.fills {
			most := denyAtMost
			if c.charge.Leased {
				most = denyLeased
			}
			// The bucket was looked at after the take was sent and before it was answered. We ask again when the earlier of the two
			// instants allows, and tell clients what holds for the later one.
			retry := time.Duration(min(c.state.RetryIn, limit.Never)) * time.Microsecond
			d.until = c.askedAt.Add(min(most, retry))
			if c.state.RetryIn < limit.Never {
				d.retryAt = c.answeredAt.Add(retry)
			}
		}
		m.slot(c.charge.Key).keep(c.charge.Key, d)
	}
}

// memorable tells whether c's bucket lacks its cost for a time that is known. While the allocator is out a policy that is then
// open lets requests pass that lacked in vain, which only asking shows.
func (c *claim) memorable(ttl time.Duration) bool {
	return (c.state.Lacking || c.state.Banned > 0) && !c.passed && c.state.RetryIn > 0 && (c.policy.OnAllocator != policy.Open || !c.unheard(ttl))
}

// keep adds d, with the unmet demand of what it replaces, unless that denies more and for longer.
func (slot *memorySlot) keep(key limit.Key, d *denial) {
	slot.mu.Lock()
	defer slot.mu.Unlock()
	old, ok := slot.mu.denials.Peek(key)
	switch {
	case !ok:
		if !slot.mu.denials.Add(key, d) {
			slot.known.Add(1)
		}
	case old.snapshot == d.snapshot && old.cost <= d.cost && !old.until.Before(d.until):
	default:
		d.unmet, d.denials = old.unmet, old.denials
		slot.mu.denials.Add(key, d)
	}
}
