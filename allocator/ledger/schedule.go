package ledger

import (
	"container/heap"

	"github.com/annona-gateway/annona/shared/limit"
)

// schedule orders pools by when time alone changes them. It is a heap, so that the pools that are due are found without
// looking at the others, however many there are.
type schedule []*pool

func (s *schedule) Len() int           { return len(*s) }
func (s *schedule) Less(i, j int) bool { return (*s)[i].dueAt < (*s)[j].dueAt }
func (s *schedule) Swap(i, j int) {
	(*s)[i], (*s)[j] = (*s)[j], (*s)[i]
	(*s)[i].due, (*s)[j].due = i, j
}

// Push appends a pool; package heap calls it.
func (s *schedule) Push(x any) {
	p, ok := x.(*pool)
	if !ok {
		panic("ledger: only pools are scheduled")
	}
	p.due = len(*s)
	*s = append(*s, p)
}

// Pop removes the last; package heap calls it.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	p := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	return p
}

// put places p, new or known, by its next due instant.
func (s *schedule) put(p *pool) {
	p.dueAt = p.nextDue()
	if p.due < 0 {
		heap.Push(s, p)
		return
	}
	heap.Fix(s, p.due)
}

// until returns up to most pools due at an instant or before, in no order that matters to the books, but always the same one.
func (s *schedule) until(at limit.Micros, most int) []*pool {
	var found []*pool
	open := []int{0}
	for len(open) > 0 && len(found) < most {
		i := open[len(open)-1]
		open = open[:len(open)-1]
		if i >= len(*s) || (*s)[i].dueAt > at {
			continue // nothing below i in the heap is due earlier
		}
		found = append(found, (*s)[i])
		open = append(open, 2*i+2, 2*i+1)
	}
	return found
}

// nextDue returns when time alone changes p: a lease lapses, or a full and idle pool is forgotten.
func (p *pool) nextDue() limit.Micros {
	due, out := limit.Never, false
	for i := range p.holders {
		h := &p.holders[i]
		if h.out > 0 {
			due, out = min(due, h.expiresAt), true
		}
		if h.orphaned > 0 {
			due, out = min(due, h.orphansUntil), true
		}
	}
	if out {
		return due
	}
	return max(p.fullAt(), p.keep, p.heardAt+IdleFor)
}

// fullAt is when p is full by its numbers. An unknown pool is full of whatever numbers it is asked for, so one that had larger
// numbers is not forgotten before those would have filled it.
func (p *pool) fullAt() limit.Micros {
	full := p.budget.TimeTo((p.budget.Capacity - p.level).Micro())
	return min(p.mark+full, limit.Never)
}
