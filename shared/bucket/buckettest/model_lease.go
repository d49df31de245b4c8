package buckettest

import (
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
)

// View is bucket.Store.Views of one bucket at now.
func (m *Model) View(now limit.Micros, ref bucket.Ref) bucket.View {
	s := m.shards[ref.Shard]
	v := bucket.View{Ref: ref, Epoch: s.epoch, Now: now}
	r := m.look(now, ref)
	if r == nil || r.epoch != s.epoch {
		return v
	}
	r.lapse(now)
	v = r.view
	v.Ref, v.Epoch, v.Now, v.Found, v.InFlight = ref, s.epoch, now, true, r.deadline > now
	return v
}

// Ask is bucket.Store.Ask of one plan at now.
func (m *Model) Ask(now limit.Micros, p bucket.Plan) *bucket.Asked {
	ref := p.View.Ref
	s, r := m.shards[ref.Shard], m.look(now, ref)
	if s.epoch != p.View.Epoch || r == nil || r.epoch != s.epoch || r.deadline > now {
		return nil
	}
	v := &r.view
	if v.Session != p.View.Session || v.Seq != p.View.Seq {
		return nil
	}
	r.lapse(now)
	if v.Session == 0 || p.NewSession {
		s.sessions++
		r.start(s.sessions)
	}
	if back := min(p.Return, v.Left); back > 0 {
		v.Left -= back
		v.Returned += back
		r.filled = min(r.filled, v.Left)
	}
	v.Seq++
	v.AskedAt, r.deadline = now, now+limit.Micros(p.Deadline.Microseconds())
	v.AskedSpent, v.AskedDenied, v.AskedDemand = v.Spent, v.Denied, p.Demand
	r.askedReturned, r.askedLapsed = v.Returned, v.Lapsed
	r.keep(now)
	m.records[ref] = r
	return &bucket.Asked{Ref: ref, Epoch: s.epoch, Item: &leasepb.Item{
		Policy: v.Policy, Revision: v.Revision, Key: ref.Key[:], Variant: v.Variant, Session: v.Session, Seq: v.Seq,
		Applied: v.Applied, Spent: int64(v.Spent), Returned: int64(v.Returned), Lapsed: int64(v.Lapsed), Denied: int64(v.Denied),
		Left: int64(v.Left), Want: int64(p.Want), Waiting: int64(p.Waiting), Cost: int64(v.Cost), Demand: int64(p.Demand.Up()),
		Traceparent: v.Traceparent, Sealed: v.Sealed, Draining: p.Draining,
	}}
}

// start begins a session; what was denied before the first belongs to it.
func (r *record) start(number uint64) {
	v := &r.view
	if v.Session > 0 {
		v.Denied = 0
	}
	v.Session, v.Seq, v.Applied = number, 0, 0
	v.Left, v.ExpiresAt, v.Spent, v.Returned, v.Lapsed = 0, 0, 0, 0, 0
	v.AnsweredSpent, v.AnsweredReturned, v.AnsweredLapsed = 0, 0, 0
	r.filled = 0
}

// Fill is bucket.Store.Fill of one answer at now.
func (m *Model) Fill(now limit.Micros, g bucket.Grant) bool {
	s, r := m.shards[g.Shard], m.look(now, g.Ref)
	if s.epoch != g.Epoch || r == nil || r.epoch != s.epoch {
		return false
	}
	v := &r.view
	if v.Session != g.Session || v.Seq != g.Seq || v.Applied == v.Seq {
		return false
	}
	r.lapse(now)
	ttl := limit.Micros(g.TTL.Microseconds())
	if now >= v.AskedAt+ttl {
		v.Lapsed += g.Granted
	} else {
		if v.ExpiresAt <= now {
			r.lease++
		}
		v.Left += g.Granted
		v.ExpiresAt = v.AskedAt + ttl
	}
	if ttl > 0 {
		r.ttl = ttl
	}
	v.Applied, r.deadline, r.filled = v.Seq, 0, v.Left
	v.DryUntil, r.dryCost = now+limit.Micros(g.DryFor.Microseconds()), v.Cost
	r.pool, r.poolAt, s.heardAt = g.PoolLevel, now, now
	r.fitsAt = min(limit.Never, now+limit.Micros(g.FitsIn.Microseconds()))
	v.Waiting, r.waitsTo, r.toldAt, v.Traceparent = 0, 0, 0, ""
	v.AnsweredSpent, v.AnsweredReturned, v.AnsweredLapsed = v.AskedSpent, r.askedReturned, r.askedLapsed
	r.keep(now)
	m.records[g.Ref] = r
	return true
}
