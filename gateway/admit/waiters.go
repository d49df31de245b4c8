package admit

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// MaxWaiters is how many requests of one process may wait for leases at a time; beyond it a take goes without waiting.
const MaxWaiters = 10_000

// slots spread keys, so that requests of different keys seldom meet at a lock.
const slots = 1024

// waiters are the requests that wait for a fill, by key.
//
// No fill may be missed between a take and the wait that follows it. Registering every request before its take would put a
// lock on the path of those that never wait; instead a request reads its slot's fill count before the take, and does not begin
// to wait if the count has moved since. Another key's fill in the same slot costs a take too many and nothing else.
//
// A fill seldom covers everybody: it was asked for before the youngest came. If all were woken together, whoever runs first
// would win, which is the one woken last, and the oldest would lose round after round until its time is up. So a fill wakes the
// oldest, and each, on its way to take again, wakes the next.
type waiters struct {
	total atomic.Int64
	slots [slots]slot
}

type slot struct {
	fills atomic.Uint64
	mu    struct {
		sync.Mutex

		waiting map[limit.Key][]*place // the oldest first
	}
}

// place is one request's in the line for one key.
type place struct {
	wake  chan struct{} // the request's, of capacity one
	since time.Time     // when the request came
	seen  uint64        // fills that it knew of when it joined
	woken bool          // guarded by the slot's lock
}

func (w *waiters) slot(key limit.Key) *slot {
	return &w.slots[(uint(key[14])<<8|uint(key[15]))%slots]
}

// full tells whether another request may not wait.
func (w *waiters) full() bool { return w.total.Load() >= MaxWaiters }

// fills is how many fills key's slot has had.
func (w *waiters) fills(key limit.Key) uint64 { return w.slot(key).fills.Load() }

// seen is what fills were known before a take.
func (w *waiters) seen(keys []limit.Key) []uint64 {
	counts := make([]uint64, len(keys))
	for i, key := range keys {
		counts[i] = w.slot(key).fills.Load()
	}
	return counts
}

// filled wakes the requests that wait for key, the oldest first.
func (w *waiters) filled(key limit.Key) {
	s := w.slot(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fills.Add(1)
	s.wakeLocked(key)
}

// wait returns when one of keys was filled after seen was read, at deadline, or at ctx's end; since is when the request came,
// by which it is served. It is false where there are too many waiters already and it did not wait.
func (w *waiters) wait(ctx context.Context, keys []limit.Key, seen []uint64, since, deadline time.Time) bool {
	if w.total.Add(1) > MaxWaiters {
		w.total.Add(-1)
		return false
	}
	defer w.total.Add(-1)
	wake := make(chan struct{}, 1)
	places := make([]*place, 0, len(keys))
	defer func() {
		for i, p := range places {
			w.slot(keys[i]).leave(keys[i], p)
		}
	}()
	for i, key := range keys {
		p := &place{wake: wake, since: since, seen: seen[i]}
		if !w.slot(key).join(key, p) {
			return true
		}
		places = append(places, p)
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}

// join is false, and changes nothing, where the slot has had fills that p has not seen.
func (s *slot) join(key limit.Key, p *place) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fills.Load() != p.seen {
		return false
	}
	if s.mu.waiting == nil {
		s.mu.waiting = map[limit.Key][]*place{}
	}
	line := s.mu.waiting[key]
	at, _ := slices.BinarySearchFunc(line, p.since, func(q *place, since time.Time) int { return q.since.Compare(since) })
	s.mu.waiting[key] = slices.Insert(line, at, p)
	return true
}

// leave takes p out of the line. One that was woken wakes the next, whatever made it leave: what it does not take is theirs.
func (s *slot) leave(key limit.Key, p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := s.mu.waiting[key]
	if i := slices.Index(line, p); i >= 0 {
		line = slices.Delete(line, i, i+1)
	}
	if s.mu.waiting[key] = line; len(line) == 0 {
		delete(s.mu.waiting, key)
	}
	if p.woken {
		s.wakeLocked(key)
	}
}

// wakeLocked wakes the oldest that waits for key, unless it joined after the newest fill or is on its way already.
func (s *slot) wakeLocked(key limit.Key) {
	for _, p := range s.mu.waiting[key] {
		if p.woken {
			return
		}
		if p.seen != s.fills.Load() {
			p.woken = true
			select {
			case p.wake <- struct{}{}:
			default: // woken by another key already
			}
			return
		}
	}
}
