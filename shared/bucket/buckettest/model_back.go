package buckettest

import (
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// keepOpen notes that the take may give back.
func (l *line) keepOpen(now limit.Micros, q bucket.Request) {
	if q.GiveBackFor == 0 {
		return
	}
	r := l.r
	if r.openUntil <= now {
		r.top, r.topSince, r.open = r.level, now, 0
	}
	r.open++
	r.openUntil = max(r.openUntil, now+limit.Micros(q.GiveBackFor.Microseconds()))
}

func (l *line) receipt(now limit.Micros, q bucket.Request) bucket.Receipt {
	receipt := bucket.Receipt{
		Ref: l.Ref, Epoch: l.shard.epoch, FromLease: l.lease, FromPart: l.Cost - l.lease,
		At: now, Until: now + limit.Micros(q.GiveBackFor.Microseconds()),
	}
	if l.lease > 0 {
		receipt.Session, receipt.Lease = l.r.view.Session, l.r.lease
	}
	return receipt
}

// GiveBack is bucket.Store.GiveBack of one receipt at now.
func (m *Model) GiveBack(now limit.Micros, b bucket.Back) (credited bucket.Credited) {
	r := m.look(now, b.Ref)
	epoch := m.shards[b.Shard].epoch
	if r == nil || r.epoch != epoch || b.Epoch != epoch || now < b.At || now >= b.Until || r.openUntil <= now {
		return credited
	}
	r.lapse(now)
	v := &r.view
	if v.Session == b.Session && r.lease == b.Lease && v.ExpiresAt > now {
		credited.Lease = max(0, min(b.Tokens, b.FromLease, v.Spent-v.AskedSpent))
		v.Left += credited.Lease
		v.Spent -= credited.Lease
	}
	if r.topSince <= b.At {
		level, took := r.numbers.Refill(r.level, now-r.mark)
		r.top = max(r.top, level)
		credited.Part = max(0, min(min(b.Tokens-credited.Lease, b.FromPart).Micro(), r.numbers.Capacity.Micro()-r.top))
		r.level, r.mark = level+credited.Part, r.mark+took
		r.top += credited.Part
	}
	if r.open--; r.open <= 0 {
		r.openUntil, r.open = 0, 0
	}
	r.keep(now)
	m.records[b.Ref] = r
	return credited
}
