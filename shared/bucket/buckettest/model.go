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
	known    limit.Micros // since when an unknown leased bucket counts as empty
	sessions uint64
	heardAt  limit.Micros
	limits   map[string][]change // by policy and variant
}

// change is numbers that came into force.
type change struct {
	at       limit.Micros
	numbers  limit.Budget
	revision uint64
}

// record is one bucket. view holds what agents see of it.
type record struct {
	epoch   string
	level   limit.Micro
	mark    limit.Micros
	numbers limit.Budget
	variant string
	change  int          // the change of variant's numbers up to which it was brought
	dies    limit.Micros // when Redis forgets it

	view                   bucket.View
	ttl, deadline, waitsTo limit.Micros
	filled, pool           limit.Tokens
	dryCost                limit.Tokens // the pool was dry for
	keepUntil              limit.Micros // full by numbers that it had before
	poolAt, toldAt, fitsAt limit.Micros
	// What the item in flight reported, beyond what view shows.
	askedReturned, askedLapsed limit.Tokens

	// Give-backs: the number of the lease, and the highest level since the oldest take that may give back.
	lease               uint64
	top                 limit.Micro
	topSince, openUntil limit.Micros
	open                int
}

// NewModel returns a store that holds nothing.
func NewModel() *Model {
	return &Model{shards: map[int]*shard{}, records: map[bucket.Ref]*record{}}
}

// Begin begins an epoch of a shard, whose clock was vouched for until now; sessions and numbers go on.
func (m *Model) Begin(now limit.Micros, number int, epoch string) {
	fresh := &shard{
		epoch: epoch, birth: now, known: now + limit.Micros(bucket.DemotedFor.Microseconds()), limits: map[string][]change{},
	}
	if old := m.shards[number]; old != nil {
		fresh.sessions, fresh.limits = old.sessions, old.limits
	}
	for _, all := range fresh.limits {
		for i := range all {
			all[i].at = min(all[i].at, now) // a clock that went back
		}
	}
	m.shards[number] = fresh
}

// line is one charge while a take looks at it.
type line struct {
	bucket.Charge
	shard   *shard
	changes []change
	r       *record
	fresh   bool
	level   limit.Micro // refilled up to now
	mark    limit.Micros
	lease   limit.Tokens // tokens that the cost takes of the lease
	lacks   bool
	ends    bool // lacks, and no lease may help in time
	changed bool
}

// Take is bucket.Store.Take at now; false where it could not be asked: its revision is older than that of the numbers in force.
func (m *Model) Take(now limit.Micros, q bucket.Request) (bucket.Verdict, bool) {
	for _, c := range q.Charges {
		if old := m.changes(c, c.Variant); len(old) > 0 && old[len(old)-1].numbers != c.Part && c.Revision < old[len(old)-1].revision {
			return bucket.Verdict{}, false
		}
	}
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
	if q.GiveBackFor > 0 && v.Outcome == bucket.Admitted {
		for _, l := range lines {
			v.Receipts = append(v.Receipts, l.receipt(now, q))
		}
	}
	return v, true
}

func (m *Model) changes(c bucket.Charge, variant string) []change {
	return m.shards[c.Shard].limits[c.Policy+"/"+variant]
}

// follow makes c's numbers those in force.
func (m *Model) follow(now limit.Micros, c bucket.Charge) []change {
	all := m.changes(c, c.Variant)
	if len(all) == 0 || all[len(all)-1].numbers != c.Part {
		all = append(all, change{at: now, numbers: c.Part, revision: c.Revision})
		m.shards[c.Shard].limits[c.Policy+"/"+c.Variant] = all
	}
	return all
}

// open looks at one charge's bucket as it is at now.
func (m *Model) open(now limit.Micros, c bucket.Charge) *line {
	l := &line{Charge: c, shard: m.shards[c.Shard], changes: m.follow(now, c)}
	l.begin(now, m.look(now, c.Ref))
	l.retune(now, m)
	r := l.r
	if r.view.DryUntil > 0 && r.view.Revision < c.Revision {
		r.view.DryUntil, r.fitsAt, l.changed = 0, 0, true // said of other numbers
	}
	l.changed = r.lapse(now) || l.changed
	if c.Leased && c.Denied > 0 {
		r.view.Denied += c.Denied
		l.changed = true
	}
	level, took := c.Part.Refill(r.level, now-r.mark)
	l.level, l.mark = level, r.mark+took
	l.lease = max(0, c.Cost-max(0, level).Whole())
	l.lacks = l.lease > r.view.Left || (l.lease > 0 && !c.Leased)
	l.ends = l.lacks && (!c.Leased || c.Pool.Capacity < c.Cost || l.dry(now) || r.view.Waiting+l.more() > c.Pool.Capacity)
	return l
}

// dry is true where the pool is known not to have the cost; what it lacks for a larger one it may have for this.
func (l *line) dry(now limit.Micros) bool { return l.r.view.DryUntil > now && l.Cost >= l.r.dryCost }

// begin takes known, the bucket's record if there is one, into the shard's epoch.
func (l *line) begin(now limit.Micros, known *record) {
	if known != nil && known.epoch == l.shard.epoch {
		l.r = known
		return
	}
	l.fresh = true
	l.r = &record{epoch: l.shard.epoch, numbers: l.Part, variant: l.Variant, change: len(l.changes) - 1}
	if known != nil && !l.Leased {
		l.r.level, l.r.mark, l.r.numbers = known.level, l.shard.birth, known.numbers
		l.r.variant, l.r.change = known.variant, known.change
		return
	}
	if l.r.mark = l.bornAt(); l.r.mark == 0 {
		l.r.level, l.r.mark = l.Part.Capacity.Micro(), now
	}
}

// bornAt is when an unknown bucket counts as empty; 0 where it is full.
func (l *line) bornAt() (at limit.Micros) {
	for i := 1; i < len(l.changes); i++ {
		before, after := l.changes[i-1].numbers, l.changes[i].numbers
		if l.Leased || after.TimeTo(after.Capacity.Micro()) > before.TimeTo(before.Capacity.Micro()) {
			at = l.changes[i].at
		}
	}
	if l.Leased || l.OnLossEmpty {
		at = max(at, l.shard.known)
	}
	return at
}

// retune brings the record up to the numbers in force (A2, A3).
func (l *line) retune(now limit.Micros, m *Model) {
	r, last := l.r, len(l.changes)-1
	if r.variant == l.Variant && r.change == last {
		return
	}
	at, one := l.changes[last].at, r.variant == l.Variant && r.change == last-1
	if r.variant != l.Variant && !l.fresh {
		at, one = now, r.change == len(m.changes(l.Charge, r.variant))-1
	}
	if one && !l.fresh {
		smaller := limit.Budget{Capacity: r.numbers.Capacity, Rate: min(r.numbers.Rate, l.Part.Rate)}
		if l.Leased {
			smaller = r.numbers.Min(l.Part)
		}
		r.level, _ = smaller.Refill(r.level, at-r.mark)
	}
	if !l.fresh {
		r.keepUntil = min(limit.Never, max(r.keepUntil, now+r.numbers.TimeTo(r.numbers.Capacity.Micro()-r.level)))
	}
	if l.Leased {
		r.level = min(r.level, l.Part.Capacity.Micro())
	} else {
		r.level += (l.Part.Capacity - r.numbers.Capacity).Micro()
	}
	r.mark, r.numbers, r.variant, r.change = max(r.mark, at), l.Part, l.Variant, last
	r.openUntil = 0
	l.changed = true
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
	if l.r.openUntil > now {
		l.r.top = max(l.r.top, l.level)
	}
	l.level -= (l.Cost - l.lease).Micro()
	l.r.level, l.r.mark = l.level, l.mark
	l.changed = true
	l.keepOpen(now, q)
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
	if v.DryUntil > now && !l.dry(now) {
		v.DryUntil, l.r.fitsAt = 0, 0
	}
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
	v.Policy, v.Variant, v.Revision, v.Sealed = l.Policy, l.Variant, max(v.Revision, l.Revision), l.Sealed
	r.keep(now)
	m.records[l.Ref] = r
}

func (r *record) keep(now limit.Micros) {
	full := r.numbers.TimeTo(r.numbers.Capacity.Micro() - r.level)
	life := min(max(60*limit.MicrosPerSecond, 2*full, 2*(r.keepUntil-now), 2*r.ttl), limit.Never)
	r.dies = now + (life/1000+1)*1000
}

func (l *line) state(now limit.Micros) bucket.State {
	r := l.r
	s := bucket.State{Lacking: l.lacks, Level: l.level, Left: r.view.Left, PoolLevel: r.pool, PoolAge: -1, Heard: -1, Round: r.poolAt + 1}
	s.Remaining = max(0, l.level.Whole()) + r.view.Left
	s.Reset = l.Part.TimeTo(l.Part.Capacity.Micro() - l.level)
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
		if s.RetryIn = l.Part.TimeTo(need); s.RetryIn < limit.Never {
			s.RetryIn = max(0, s.RetryIn+l.mark-now)
		}
	}
	if l.Leased && l.Pool.Capacity >= l.Cost {
		s.RetryIn = min(s.RetryIn, max(0, r.fitsAt-now))
	}
	return s
}
