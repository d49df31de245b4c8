package admit

import (
	"encoding/binary"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// Waiting counts the requests that wait now, and the keys that they wait at.
func (a *Admitter) Waiting() (requests, keys int) {
	for i := range a.waiters.slots {
		s := &a.waiters.slots[i]
		s.mu.Lock()
		keys += len(s.mu.waiting)
		s.mu.Unlock()
	}
	return int(a.waiters.total.Load()), keys
}

// Flood decides locally about n keys and remembers a denial of each, and counts what is kept of that.
func (a *Admitter) Flood(n int) (local, denials int) {
	s := a.Snapshot()
	for i := range n {
		c := &claim{parts: parts{own: limit.Budget{Capacity: 1, Rate: 1}}, charge: bucket.Charge{Cost: 1}}
		binary.LittleEndian.PutUint32(c.charge.Key[12:], uint32(i)*2_654_435_761) // spread over slots
		a.local.take([]*claim{c})
		a.memory.slot(c.charge.Key).keep(c.charge.Key, &denial{snapshot: s, until: time.Now().Add(time.Second)})
	}
	for i := range a.memory.slots {
		slot := &a.memory.slots[i]
		if kept := slot.mu.denials.Len(); int64(kept) != slot.known.Load() {
			panic("a slot's count is wrong")
		}
		denials += slot.mu.denials.Len()
	}
	return a.local.mu.parts.Len(), denials
}
