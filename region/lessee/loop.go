package lessee

import (
	"context"
	"maps"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/lease"
)

// done is what a turn or one of its envelopes reports when it gives a shard's slot back.
type done struct {
	shard int
	// asked are the buckets that the envelopes were about.
	asked []bucket.Ref
	// later are looks that should come again.
	later []later
	// held says which buckets turned out to have something to give back or settle, and which not.
	held map[bucket.Ref]bool
	// pause keeps the shard alone for a while: its writer is out, or refuses.
	pause time.Duration
}

// collect moves announced buckets into the queue.
func (l *Lessee) collect() {
	l.mu.Lock()
	announced := l.mu.announced
	l.mu.announced = map[bucket.Ref]struct{}{}
	l.mu.Unlock()
	for ref := range announced {
		if _, busy := l.loop.busy[ref]; busy {
			l.loop.busy[ref] = true
			continue
		}
		l.add(look{ref: ref})
	}
}

// enqueue queues buckets whose scheduled look has come.
func (l *Lessee) enqueue(refs []bucket.Ref) {
	for _, ref := range refs {
		if _, busy := l.loop.busy[ref]; !busy {
			l.add(look{ref: ref})
		}
	}
}

// release ends a turn's work on buckets; those that were announced meanwhile are looked at again.
func (l *Lessee) release(refs []bucket.Ref) {
	for _, ref := range refs {
		again := l.loop.busy[ref]
		delete(l.loop.busy, ref)
		if again {
			l.add(look{ref: ref})
		}
	}
}

// add queues one look and sets the time that the first one waits for company.
func (l *Lessee) add(k look) {
	if !l.loop.queue.add(k) {
		l.dropped(1)
		return
	}
	switch {
	case l.loop.queue.size == lease.MaxItems:
		l.loop.flush.Reset(0)
	case !l.loop.flushing:
		l.loop.flush.Reset(coalesce)
	}
	l.loop.flushing = true
}

// flush starts turns while there are buckets to look at and shards that may be served.
func (l *Lessee) flush(ctx context.Context) {
	l.loop.flushing = false
	if !l.loop.secret.ready() {
		return
	}
	now := time.Now()
	for l.loop.queue.size > 0 {
		taken := l.loop.queue.take(func(shard int) bool {
			if l.loop.total >= slots || l.loop.out[shard] >= slotsPerShard || now.Before(l.loop.pauses[shard]) {
				return false
			}
			l.loop.total++
			l.loop.out[shard]++
			return true
		})
		if len(taken) == 0 {
			return // a slot that comes back, or the next tick, goes on
		}
		for _, looks := range taken {
			for _, k := range looks {
				l.loop.busy[k.ref] = false
			}
		}
		t := l.newTurn(taken)
		l.beside.Go(func() { l.run(ctx, t) })
	}
}

// settle takes in what a turn or an envelope reports.
func (l *Lessee) settle(d done) {
	now := time.Now()
	l.loop.total--
	if l.loop.out[d.shard]--; l.loop.out[d.shard] <= 0 {
		delete(l.loop.out, d.shard)
	}
	if d.pause > 0 {
		l.loop.pauses[d.shard] = now.Add(d.pause)
	}
	l.release(d.asked)
	for ref, held := range d.held {
		switch {
		case !held:
			delete(l.loop.held, ref)
		case len(l.loop.held) < mostHeld:
			l.loop.held[ref] = struct{}{}
		}
	}
	for _, k := range d.later {
		if k.after <= 0 {
			l.add(k.look)
		} else if !l.loop.queue.postpone(k, now) {
			l.dropped(1)
		}
	}
}

// wake queues looks whose time has come and ends pauses.
func (l *Lessee) wake(ctx context.Context, now time.Time) {
	maps.DeleteFunc(l.loop.pauses, func(_ int, until time.Time) bool { return !now.Before(until) })
	if dropped := l.loop.queue.ripen(now); dropped > 0 {
		l.dropped(dropped)
	}
	l.flush(ctx)
}

// poll asks the store's schedules for what is due, one call at a time.
func (l *Lessee) poll(ctx context.Context) {
	if l.loop.polling {
		return
	}
	l.loop.polling = true
	l.mu.Lock()
	shards := l.mu.shards
	l.mu.Unlock()
	l.beside.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, storeWait)
		defer cancel()
		refs, err := l.store.Due(ctx, shards, mostPending/4)
		if err != nil {
			l.storeFailed(ctx, err)
		}
		l.dues <- refs
	})
}

// drain begins the end: every bucket that may have something to give back is looked at, and plans give all back.
func (l *Lessee) drain() {
	l.loop.draining = true
	l.loop.drained = time.After(drainFor)
	for ref := range l.loop.held {
		l.add(look{ref: ref})
	}
	l.tel.Log.Info("draining: settling and returning every lease", "buckets", len(l.loop.held))
}

// drainedAll is true when nothing is held, asked or out any more, or when nothing may be asked.
func (l *Lessee) drainedAll() bool {
	if !l.loop.draining {
		return false
	}
	return l.loop.total == 0 && (len(l.loop.held) == 0 || !l.loop.secret.ready())
}

func (l *Lessee) abandonDrain() {
	l.tel.Log.Warn("the drain took too long; what is left lapses, or another agent settles it", "buckets", len(l.loop.held))
}

func (l *Lessee) dropped(n int) {
	l.count(context.Background(), kindDropped, n)
	l.warnings.overflow.Do(func() {
		l.tel.Log.Warn("more buckets want tokens than this agent can look at; some are put off", "most", mostPending)
	})
}
