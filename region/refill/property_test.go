package refill_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/annona-gateway/annona/region/refill"
	"github.com/annona-gateway/annona/shared/limit"
)

// check asserts what Plan promises of any view whatever, and returns its decision.
func check(t interface {
	Fatalf(format string, args ...any)
	Helper()
}, v refill.View, p refill.Params,
) refill.Decision {
	t.Helper()
	d := refill.Plan(v, p)
	held := max(v.Left, 0)
	if v.ExpiresAt <= v.Now {
		held = 0
	}
	switch {
	case d.Return < 0 || d.Return > held:
		t.Fatalf("Plan(%+v, %+v) returns %d of %d left", v, p, d.Return, held)
	case d.Waiting < 0 || d.Want < d.Waiting:
		t.Fatalf("Plan(%+v, %+v) wants %d, less than the %d that wait", v, p, d.Want, d.Waiting)
	case d.Return > 0 && d.Want > 0:
		t.Fatalf("Plan(%+v, %+v) wants %d and returns %d", v, p, d.Want, d.Return)
	case d.Demand < 0:
		t.Fatalf("Plan(%+v, %+v) reports demand %d", v, p, d.Demand)
	case !d.Ask && (d.Want != 0 || d.Waiting != 0 || d.Return != 0):
		t.Fatalf("Plan(%+v, %+v) does not ask and yet has amounts: %+v", v, p, d)
	case d.Ask && v.InFlight:
		t.Fatalf("Plan(%+v, %+v) asks while an item is in flight", v, p)
	case d.Due != refill.Off && d.Due <= 0:
		t.Fatalf("Plan(%+v, %+v) looks again in %d µs", v, p, d.Due)
	case d.Due == refill.Off && d.Ask:
		t.Fatalf("Plan(%+v, %+v) asks and never looks for the answer", v, p)
	}
	return d
}

// at draws an instant near the clock, mostly.
func at(t *rapid.T, label string) limit.Micros {
	return now + limit.Micros(rapid.Int64Range(-12*int64(second), 12*int64(second)).Draw(t, label))
}

func tokens(t *rapid.T, label string) limit.Tokens {
	return limit.Tokens(rapid.OneOf(rapid.Int64Range(0, 8), rapid.Int64Range(0, 1e9)).Draw(t, label))
}

// consistent draws a view that a store could show: counters grow, marks lie behind the clock.
func consistent(t *rapid.T) refill.View {
	v := refill.View{
		Now: now, InFlight: rapid.Bool().Draw(t, "in flight"),
		AskedAt: min(at(t, "asked"), now), LastSpentAt: min(at(t, "last spent"), now),
		ExpiresAt: at(t, "expires"), DryUntil: at(t, "dry"),
		Left: tokens(t, "left"), Waiting: tokens(t, "waiting"), Cost: 1 + tokens(t, "cost"),
		AnsweredSpent: tokens(t, "answered spent"), AnsweredReturned: tokens(t, "answered returned"),
		AnsweredLapsed: tokens(t, "answered lapsed"), AskedDenied: tokens(t, "asked denied"), AskedDemand: tokens(t, "demand").Micro(),
	}
	v.AskedSpent = v.AnsweredSpent + tokens(t, "asked")
	v.Spent = v.AskedSpent + tokens(t, "spent")
	v.Returned = v.AnsweredReturned + tokens(t, "returned")
	v.Lapsed = v.AnsweredLapsed + tokens(t, "lapsed")
	v.Denied = v.AskedDenied + tokens(t, "denied")
	return v
}

func drawParams(t *rapid.T) refill.Params {
	return refill.Params{
		TTL:       limit.Micros(rapid.Int64Range(int64(second), 600*int64(second)).Draw(t, "ttl")),
		RoundTrip: limit.Micros(rapid.Int64Range(0, int64(second)).Draw(t, "round trip")),
		Deadline:  3 * second, Spread: rapid.Uint64().Draw(t, "spread"), Draining: rapid.Bool().Draw(t, "draining"),
	}
}

// What the invariant promises; and progress: whatever waits, is left or is unsettled is asked about now, or looked at again no
// later than a lease lasts, unless the pool is dry for longer and there is nothing to settle.
func TestPlanMakesProgress(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v, p := consistent(t), drawParams(t)
		d := check(t, v, p)
		held := v.Left > 0 && v.ExpiresAt > v.Now
		open := held || v.Left > 0 || v.Spent > v.AnsweredSpent || v.Returned > v.AnsweredReturned || v.Lapsed > v.AnsweredLapsed
		waits := v.Waiting > 0 && !p.Draining
		switch {
		case (open || waits) && !v.InFlight && d.Due == refill.Off:
			t.Fatalf("Plan(%+v, %+v) forgets the bucket", v, p)
		case waits && !v.InFlight && v.DryUntil <= v.Now && !d.Ask:
			t.Fatalf("Plan(%+v, %+v) lets requests wait", v, p)
		case open && d.Due > max(p.TTL, p.Deadline):
			t.Fatalf("Plan(%+v, %+v) looks again only in %d µs", v, p, d.Due)
		case p.Draining && d.Ask && (d.Want != 0 || (held && d.Return != v.Left)):
			t.Fatalf("Plan(%+v, %+v) keeps tokens while draining: %+v", v, p, d)
		}
	})
}

// A dry pool is not asked for tokens alone.
func TestPlanLeavesADryPoolAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v, p := consistent(t), drawParams(t)
		v.DryUntil = v.Now + 1 + limit.Micros(rapid.Int64Range(0, 1e6).Draw(t, "dry for"))
		v.Left, v.Spent, v.Returned, v.Lapsed = 0, v.AnsweredSpent, v.AnsweredReturned, v.AnsweredLapsed
		if d := check(t, v, p); d.Ask {
			t.Fatalf("Plan(%+v, %+v) asks: %+v", v, p, d)
		}
	})
}

// A look that comes when Plan said is never too early for what it was meant for: a second look at the same bucket, nothing
// having happened, does something, or the bucket settles down within a few looks. (Else a schedule could spin.)
func TestPlanDoesNotSpin(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v, p := consistent(t), drawParams(t)
		v.InFlight = false
		until := v.Now + p.TTL
		looks := 0
		for v.Now < until {
			d := check(t, v, p)
			if d.Ask || d.Due == refill.Off {
				return
			}
			v.Now += d.Due
			looks++
		}
		if most := int(p.TTL/second) + 8; looks > most {
			t.Fatalf("%d looks in one ttl without anything to do, want at most %d", looks, most)
		}
	})
}

func FuzzPlan(f *testing.F) {
	f.Add(int64(now), int64(now), int64(now), int64(now), int64(now), int64(1), int64(1), int64(1), int64(1), int64(1), false, uint8(0))
	f.Add(int64(-1), int64(1)<<62, int64(-1)<<62, int64(1)<<62, int64(0), int64(1)<<62, int64(-5), int64(1)<<62, int64(-1)<<63, int64(0), true, uint8(3))
	f.Fuzz(func(t *testing.T, clock, asked, spentAt, expires, dry, left, waiting, cost, spent, denied int64, inFlight bool, shape uint8) {
		v := refill.View{
			Now: limit.Micros(clock), AskedAt: limit.Micros(asked), LastSpentAt: limit.Micros(spentAt),
			ExpiresAt: limit.Micros(expires), DryUntil: limit.Micros(dry), InFlight: inFlight,
			Left: limit.Tokens(left), Waiting: limit.Tokens(waiting), Cost: limit.Tokens(cost),
			Spent: limit.Tokens(spent), Denied: limit.Tokens(denied), Returned: limit.Tokens(left), AskedDemand: limit.Micro(spent),
		}
		p := params
		p.Draining = shape&1 != 0
		if shape&2 != 0 {
			p.TTL, p.RoundTrip, p.Deadline = limit.Micros(asked), limit.Micros(spentAt), limit.Micros(dry)
		}
		if shape&4 != 0 {
			v.AskedSpent, v.AskedDenied, v.AnsweredReturned = limit.Tokens(denied), limit.Tokens(spent), limit.Tokens(waiting)
		}
		check(t, v, p)
	})
}
