package lessee

import (
	"cmp"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/lease"
)

// look is one bucket to look at, and what its last answer leaves to do.
type look struct {
	ref bucket.Ref
	// resend is the item to send again as it is: the allocator counted nothing of it and may take it yet.
	resend *bucket.Asked
	// abandon is the item with which the allocator refused the whole session.
	abandon *bucket.Asked
}

// merge keeps what either of two reasons for the same look knows.
func (l look) merge(newer look) look {
	l.resend = cmp.Or(newer.resend, l.resend)
	l.abandon = cmp.Or(newer.abandon, l.abandon)
	return l
}

// later is a look that has to wait. If held, an announcement does not bring it forward.
type later struct {
	look
	after time.Duration
	at    time.Time
	held  bool
}

// queue holds each bucket that is to be looked at once, in order by shard, and those for later. Both are bounded; what does
// not fit is dropped.
type queue struct {
	shards map[int]*line
	size   int
	later  map[bucket.Ref]later
}

type line struct {
	order []bucket.Ref
	looks map[bucket.Ref]look
}

func newQueue() queue {
	return queue{shards: map[int]*line{}, later: map[bucket.Ref]later{}}
}

// add queues a look; false if there is no room.
func (q *queue) add(l look) bool {
	if waiting, ok := q.later[l.ref]; ok {
		if waiting.held {
			waiting.look = waiting.merge(l)
			q.later[l.ref] = waiting
			return true
		}
		l = waiting.merge(l)
		delete(q.later, l.ref)
	}
	row := q.shards[l.ref.Shard]
	if row == nil {
		row = &line{looks: map[bucket.Ref]look{}}
		q.shards[l.ref.Shard] = row
	}
	if old, ok := row.looks[l.ref]; ok {
		row.looks[l.ref] = old.merge(l)
		return true
	}
	if q.size >= mostPending {
		return false
	}
	q.size++
	row.order = append(row.order, l.ref)
	row.looks[l.ref] = l
	return true
}

// postpone queues a look for later, in place of an earlier one for later; false if there is no room.
func (q *queue) postpone(l later, now time.Time) bool {
	l.at = now.Add(l.after)
	if old, ok := q.later[l.ref]; ok {
		l.look = old.merge(l.look)
	} else if len(q.later) >= mostPending {
		return false
	}
	q.later[l.ref] = l
	return true
}

// ripen queues what was for later and has come; it returns how much was dropped for want of room.
func (q *queue) ripen(now time.Time) int {
	dropped := 0
	for ref, l := range q.later {
		if now.Before(l.at) {
			continue
		}
		delete(q.later, ref)
		if !q.add(l.look) {
			dropped++
		}
	}
	return dropped
}

// take removes up to an envelope's worth of looks, first come first served within each shard that may be served.
func (q *queue) take(serve func(shard int) bool) map[int][]look {
	taken := map[int][]look{}
	room := lease.MaxItems
	for shard, row := range q.shards {
		if room == 0 {
			break
		}
		if !serve(shard) {
			continue
		}
		n := min(room, len(row.order))
		for _, ref := range row.order[:n] {
			taken[shard] = append(taken[shard], row.looks[ref])
			delete(row.looks, ref)
		}
		row.order = row.order[n:]
		if len(row.order) == 0 {
			delete(q.shards, shard)
		}
		room -= n
		q.size -= n
	}
	return taken
}
