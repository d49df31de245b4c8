package refill_test

import (
	"testing"

	"github.com/annona-gateway/annona/region/refill"
	"github.com/annona-gateway/annona/shared/limit"
)

// model is one bucket without an allotment and its pool at the other end of a round trip, in steps of a millisecond: the
// least that shows what a plan costs (items) and what it brings (requests served at once, tokens not lying about).
type model struct {
	pool    limit.Budget
	level   limit.Tokens
	out     limit.Tokens
	mark    limit.Micros
	view    refill.View
	inbound *answer
	serial  bool // one client that sends nothing while a request of its waits

	items, served, waited, denied int
	deadlines                     []limit.Micros // of requests that wait
	look, hint                    limit.Micros
	filled                        limit.Tokens
}

type answer struct {
	at, dryFor                       limit.Micros
	granted, spent, returned, lapsed limit.Tokens
}

func newModel(pool limit.Budget) *model {
	return &model{
		pool: pool, level: pool.Capacity, mark: now,
		view: refill.View{Now: now, AskedAt: now - 60*second, Cost: 1}, look: limit.Never, hint: limit.Never,
	}
}

// run lets one second hold perSecond requests, for span.
func (m *model) run(span limit.Micros, perSecond int) {
	for end := m.view.Now + span; m.view.Now < end; m.view.Now += ms {
		if m.inbound != nil && m.inbound.at <= m.view.Now {
			m.fill(*m.inbound)
		}
		phase := int64(m.view.Now % second)
		due := phase*int64(perSecond)/int64(second) != (phase-int64(ms))*int64(perSecond)/int64(second)
		if due && (!m.serial || len(m.deadlines) == 0) {
			m.take(0)
		}
		m.expire()
		if m.look <= m.view.Now || m.hint <= m.view.Now {
			m.plan()
		}
	}
}

// take is one request: its first take (deadline 0) or the one after a fill.
func (m *model) take(deadline limit.Micros) {
	v := &m.view
	switch {
	case v.Left > 0:
		v.Left--
		v.Spent++
		v.LastSpentAt = v.Now
		m.served++
		if deadline != 0 {
			m.waited++
		}
		if v.Left < m.filled/2 || v.Left == 0 {
			m.hint = min(m.hint, v.Now+5*ms)
		}
	case v.DryUntil > v.Now:
		v.Denied++
		m.denied++
	default:
		if deadline == 0 {
			deadline = v.Now + 500*ms
		}
		m.deadlines = append(m.deadlines, deadline)
		v.Waiting++
		m.hint = min(m.hint, v.Now+5*ms)
	}
}

// expire ends waits that came to nothing.
func (m *model) expire() {
	for len(m.deadlines) > 0 && m.deadlines[0] <= m.view.Now {
		m.deadlines = m.deadlines[1:]
		m.view.Waiting = max(m.view.Waiting-1, 0)
		m.view.Denied++
		m.denied++
	}
}

func (m *model) plan() {
	d := refill.Plan(m.view, params)
	m.hint, m.look = limit.Never, limit.Never
	if d.Due != refill.Off {
		m.look = m.view.Now + d.Due
	}
	if !d.Ask {
		return
	}
	v := &m.view
	m.items++
	v.Left -= d.Return
	v.Returned += d.Return
	v.InFlight = true
	v.AskedAt, v.AskedSpent, v.AskedDenied, v.AskedDemand = v.Now, v.Spent, v.Denied, d.Demand
	m.inbound = m.decide(d)
}

// decide is the pool's side, by DESIGN.md 4: settle, refill up to the cap less what is out, serve who waits, go ahead with a
// little.
func (m *model) decide(d refill.Decision) *answer {
	v := m.view
	accrued, took := m.pool.Accrued(v.Now - m.mark)
	m.mark += took
	m.level = min(m.level+accrued, m.pool.Capacity-m.out)
	m.out -= v.Spent - v.AnsweredSpent + v.Returned - v.AnsweredReturned
	m.level += v.Returned - v.AnsweredReturned
	granted := min(d.Waiting, m.level)
	granted += min(d.Want-d.Waiting, (m.level-granted)/6)
	m.level -= granted
	m.out += granted
	a := &answer{at: v.Now + params.RoundTrip, granted: granted, spent: v.Spent, returned: v.Returned, lapsed: v.Lapsed}
	if m.level == 0 {
		a.dryFor = 100 * ms
	}
	return a
}

func (m *model) fill(a answer) {
	v := &m.view
	m.inbound = nil
	v.InFlight = false
	v.Left += a.granted
	v.ExpiresAt = v.AskedAt + params.TTL
	v.AnsweredSpent, v.AnsweredReturned, v.AnsweredLapsed = a.spent, a.returned, a.lapsed
	v.DryUntil = v.Now + a.dryFor
	m.filled = v.Left
	waiters := m.deadlines
	m.deadlines, v.Waiting = nil, 0
	for _, deadline := range waiters {
		m.take(deadline)
	}
}

// A key below its limit is served at once, but for the first requests, with a few items a second.
func TestModelBelowTheLimit(t *testing.T) {
	t.Parallel()
	m := newModel(limit.Budget{Capacity: 1000, Rate: 500 * limit.MicroPerToken})
	m.run(2*second, 300)
	waited, items := m.waited, m.items
	m.run(10*second, 300)
	if m.denied > 0 {
		t.Errorf("%d of %d requests denied below the limit, want none", m.denied, m.served)
	}
	if late := m.waited - waited; late > 30 {
		t.Errorf("%d of 3000 requests waited for a lease in steady state, want at most 1 %%", late)
	}
	if rate := (m.items - items) / 10; rate > 4 {
		t.Errorf("%d items a second for one key, want a few", rate)
	}
}

// One client that sends its next request when it has the last answer gets ahead of its waits, although each wait hides most of
// its demand: what is one token a round trip at first must not be taken for all it wants.
func TestModelOneSerialClient(t *testing.T) {
	t.Parallel()
	m := newModel(limit.Budget{Capacity: 180, Rate: 90 * limit.MicroPerToken})
	m.serial = true
	m.run(3*second, 25)
	waited, served := m.waited, m.served
	m.run(10*second, 25)
	if late, all := m.waited-waited, m.served-served; late*20 > all {
		t.Errorf("%d of %d requests waited for a lease in steady state, want at most 5 %%", late, all)
	}
}

// A key at three times its limit gets the whole pool, round trips notwithstanding.
func TestModelAboveTheLimit(t *testing.T) {
	t.Parallel()
	m := newModel(limit.Budget{Capacity: 90, Rate: 45 * limit.MicroPerToken})
	m.run(10*second, 150)
	if want := (90 + 45*10) * 97 / 100; m.served < want {
		t.Errorf("%d requests served in 10 s, want at least %d", m.served, want)
	}
	if most := 90 + 45*10; m.served > most {
		t.Errorf("%d requests served in 10 s, the bound is %d", m.served, most)
	}
	if rate := m.items / 10; rate > 7 {
		t.Errorf("%d items a second for one key, want no more than the dry times allow", rate)
	}
}

// When demand ends, everything but one cost is back within about a second, and that by half of a lease's life.
func TestModelGoesQuiet(t *testing.T) {
	t.Parallel()
	m := newModel(limit.Budget{Capacity: 1000, Rate: 500 * limit.MicroPerToken})
	m.run(5*second, 200)
	m.run(1300*ms, 0)
	if m.view.Left > 1 {
		t.Errorf("%d tokens left 1.3 s after the last request, want at most one cost", m.view.Left)
	}
	items := m.items
	m.run(6*second, 0)
	if m.view.Left > 0 || m.out > 0 || m.look != limit.Never {
		t.Errorf("left %d, outstanding %d, next look %d: want nothing half a lease later", m.view.Left, m.out, m.look)
	}
	if m.items > items+2 {
		t.Errorf("%d items for a key that nobody used, want at most 2", m.items-items)
	}
}

// When demand falls, what it does not need any more goes back although the lease is still in use.
func TestModelShrinks(t *testing.T) {
	t.Parallel()
	m := newModel(limit.Budget{Capacity: 1000, Rate: 500 * limit.MicroPerToken})
	m.run(5*second, 200)
	m.run(4*second, 5)
	if m.view.Left > 20 {
		t.Errorf("%d tokens left at 5 requests a second, want the near need", m.view.Left)
	}
}
