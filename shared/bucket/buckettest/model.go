// Package buckettest is what a region's buckets promise, in code: a small Go model of one region's store, the suite that
// every store must pass, and a redis-server to run it against.
package buckettest

import (
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// Model is one region's store in plain Go: what bucket.Store does, with the store's clock as an argument. It has no lock, no
// clock and no driver, and it is deliberately dumb: where the scripts are clever, it follows the rules word by word.
type Model struct {
	shards  map[int]*shard
	records map[bucket.Ref]*record
}

type shard struct {
	epoch    string
	birth    limit.Micros
	sessions uint64
	heardAt  limit.Micros
}

// record is one bucket. view holds what agents see of it.
type record struct {
	epoch   string
	level   limit.Micro
	mark    limit.Micros
	numbers limit.Budget
	dies    limit.Micros // when Redis forgets it

	view                   bucket.View
	ttl, deadline, waitsTo limit.Micros
	filled, pool           limit.Tokens
	poolAt, toldAt, fitsAt limit.Micros
	// What the item in flight reported, beyond what view shows.
	askedReturned, askedLapsed limit.Tokens
}

// NewModel returns a store that holds nothing.
func NewModel() *Model {
	return &Model{shards: map[int]*shard{}, records: map[bucket.Ref]*record{}}
}

// Begin begins an epoch of a shard; session numbers go on.
func (m *Model) Begin(now limit.Micros, number int, epoch string) {
	fresh := &shard{epoch: epoch, birth: now}
	if old := m.shards[number]; old != nil {
		fresh.sessions = old.sessions
	}
	m.shards[number] = fresh
}

// line is one charge while a take looks at it.
type line struct {
	bucket.Charge
	shard   *shard
	r       *record
	level   limit.Micro // refilled up to now
	mark    limit.Micros
	lease   limit.Tokens // tokens that the cost takes of the lease
	lacks   bool
	ends    bool // lacks, and no lease may help in time
	changed bool
}

// Take is bucket.Store.Take at now.
func (m *Model) Take(now limit.Micros, q bucket.Request) bucket.Verdict {
	lines := make([]*line, len(q.Charges))
	v := bucket.Verdict{Outcome: bucket.Admitted, States: make([]bucket.State, len(q.Charges))}
	ends := false
	for i, c := range q.Charges {
		l := m.open(now, c)
		lines[i] = l
		ends = ends || l.ends
		if l.lacks {
			v.Outcome = bucket.Wait
		}
	}
	if v.Outcome == bucket.Wait && (ends || !q.MayWait) {
		v.Outcome = bucket.Denied
	}
	for i, l := range lines {
		switch {
		case v.Outcome == bucket.Admitted:
			l.pay(now, q)
		case l.lacks && l.Leased && (!ends || l.ends):
			l.want(now, q, v.Outcome == bucket.Wait)
		}
		if l.changed {
			m.write(now, l)
		}
		v.States[i] = l.state(now)
	}
	return v
}

// open looks at one charge's bucket as it is at now.
func (m *Model) open(now limit.Micros, c bucket.Charge) *line {
	l := &line{Charge: c, shard: m.shards[c.Shard]}
	l.begin(now, m.look(now, c.Ref))
	r := l.r
	if r.numbers != c.Part {
		level, _ := r.numbers.Min(c.Part).Refill(r.level, now-r.mark)
		r.level, r.mark, r.numbers = min(level, c.Part.Capacity.Micro()), max(r.mark, now), c.Part
		l.changed = true
	}
	l.changed = r.lapse(now) || l.changed
	if c.Leased && c.Denied > 0 {
		r.view.Denied += c.Denied
		l.changed = true
	}
	level, took := c.Part.Refill(r.level, now-r.mark)
	l.level, l.mark = level, r.mark+took
	l.lease = max(0, c.Cost-max(0, level).Whole())
	l.lacks = l.lease > r.view.Left
	l.ends = l.lacks && (!c.Leased || c.Pool.Capacity < c.Cost || r.view.DryUntil > now || r.view.Waiting+l.more() > c.Pool.Capacity)
	return l
}

// begin takes known, the bucket's record if there is one, into the shard's epoch.
func (l *line) begin(now limit.Micros, known *record) {
	if known != nil && known.epoch == l.shard.epoch {
		l.r = known
		return
	}
	r := &record{epoch: l.shard.epoch, numbers: l.Part}
	switch {
	case l.Leased:
		r.mark = l.shard.birth + limit.Micros(bucket.DemotedFor.Microseconds())
	case known != nil:
		r.level, r.mark, r.numbers = known.level, l.shard.birth, known.numbers
	default:
		r.level, r.mark = l.Part.Capacity.Micro(), now
	}
	l.r = r
}

// look returns a copy of a record, nil where there is none.
func (m *Model) look(now limit.Micros, ref bucket.Ref) *record {
	r := m.records[ref]
	if r == nil || now >= r.dies {
		delete(m.records, ref)
		return nil
	}
	c := *r
	return &c
}

// lapse is what time does to a lease and to those who wait.
func (r *record) lapse(now limit.Micros) (changed bool) {
	v := &r.view
	if v.Left > 0 && v.ExpiresAt <= now {
		v.Lapsed += v.Left
		v.Left = 0
		changed = true
	}
	if v.Waiting > 0 && r.waitsTo <= now {
		v.Waiting = 0
		changed = true
	}
	return changed
}

func (l *line) pay(now limit.Micros, q bucket.Request) {
	if l.Cost == 0 {
		return
	}
	v := &l.r.view
	l.level -= (l.Cost - l.lease).Micro()
	l.r.level, l.r.mark = l.level, l.mark
	l.changed = true
	if l.lease == 0 {
		return
	}
	v.Left -= l.lease
	v.Spent += l.lease
	v.LastSpentAt = now
	if 2*v.Left < l.r.filled {
		l.tell(now, q)
	}
}

// more is what the request adds to those that wait: nothing where it waits already, in a round that no fill has ended.
func (l *line) more() limit.Tokens {
	if l.Waits == l.r.poolAt+1 && l.r.view.Waiting > 0 {
		return 0
	}
	return l.Cost
}

func (l *line) want(now limit.Micros, q bucket.Request, waits bool) {
	v := &l.r.view
	if v.Waiting == 0 || v.Cost < l.Cost {
		v.Cost = l.Cost
	}
	if waits {
		until := now + limit.Micros(q.WaitFor.Microseconds())
		if v.Waiting > 0 {
			until = max(until, l.r.waitsTo)
		}
		v.Waiting += l.more()
		l.r.waitsTo = until
	} else {
		v.Denied += l.Cost
	}
	l.changed = true
	if l.Pool.Capacity >= l.Cost {
		l.tell(now, q)
	}
}

func (l *line) tell(now limit.Micros, q bucket.Request) {
	const every = 50_000
	r := l.r
	if r.deadline > now || r.view.DryUntil > now || (r.toldAt <= now && now-r.toldAt < every) {
		return
	}
	r.toldAt = now
	if q.Traceparent != "" {
		r.view.Traceparent = q.Traceparent
	}
}

// write keeps l's record, for as long as E4 says.
func (m *Model) write(now limit.Micros, l *line) {
	r, v := l.r, &l.r.view
	if v.Cost == 0 {
		v.Cost = l.Cost
	}
	v.Policy, v.Variant, v.Revision, v.Sealed = l.Policy, l.Variant, l.Revision, l.Sealed
	r.keep(now)
	m.records[l.Ref] = r
}

func (r *record) keep(now limit.Micros) {
	full := r.numbers.TimeTo(r.numbers.Capacity.Micro() - r.level)
	life := min(max(60*limit.MicrosPerSecond, 2*full, 2*r.ttl), limit.Never)
	r.dies = now + (life/1000+1)*1000
}

func (l *line) state(now limit.Micros) bucket.State {
	r := l.r
	s := bucket.State{Lacking: l.lacks, Level: l.level, Left: r.view.Left, PoolLevel: r.pool, PoolAge: -1, Heard: -1, Round: r.poolAt + 1}
	if r.poolAt > 0 {
		s.PoolAge = max(0, now-r.poolAt)
	}
	if l.shard.heardAt > 0 {
		s.Heard = max(0, now-l.shard.heardAt)
	}
	need := (l.Cost - r.view.Left).Micro() - l.level
	if need <= 0 || r.view.Left >= l.Cost {
		return s
	}
	s.RetryIn = limit.Never
	if l.level+need <= l.Part.Capacity.Micro() {
		s.RetryIn = min(limit.Never, max(0, l.Part.TimeTo(need)+l.mark-now))
	}
	if l.Leased && l.Pool.Capacity >= l.Cost {
		s.RetryIn = min(s.RetryIn, max(0, r.fitsAt-now))
	}
	return s
}
