package admit

import (
	"context"
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
type waiters struct {
	total atomic.Int64
	slots [slots]slot
}

type slot struct {
	fills atomic.Uint64
	mu    struct {
		sync.Mutex

		waiting map[limit.Key]map[chan struct{}]struct{}
	}
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

// filled wakes the requests that wait for key.
func (w *waiters) filled(key limit.Key) {
	s := w.slot(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fills.Add(1)
	for wake := range s.mu.waiting[key] {
		select {
		case wake <- struct{}{}:
		default: // already woken
		}
	}
}

// wait returns when one of keys was filled after seen was read, at deadline, or at ctx's end. It is false where there are too
// many waiters already and it did not wait.
func (w *waiters) wait(ctx context.Context, keys []limit.Key, seen []uint64, deadline time.Time) bool {
	if w.total.Add(1) > MaxWaiters {
		w.total.Add(-1)
		return false
	}
	defer w.total.Add(-1)
	wake := make(chan struct{}, 1)
	defer func() {
		for _, key := range keys {
			w.slot(key).leave(key, wake)
		}
	}()
	for i, key := range keys {
		if !w.slot(key).join(key, wake, seen[i]) {
			return true
		}
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

// join is false, and changes nothing, where the slot has had fills that the caller has not seen.
func (s *slot) join(key limit.Key, wake chan struct{}, seen uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fills.Load() != seen {
		return false
	}
	if s.mu.waiting == nil {
		s.mu.waiting = map[limit.Key]map[chan struct{}]struct{}{}
	}
	if s.mu.waiting[key] == nil {
		s.mu.waiting[key] = map[chan struct{}]struct{}{}
	}
	s.mu.waiting[key][wake] = struct{}{}
	return true
}

func (s *slot) leave(key limit.Key, wake chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.waiting[key], wake) // also of one that did not join: nothing to delete
	if len(s.mu.waiting[key]) == 0 {
		delete(s.mu.waiting, key)
	}
}
