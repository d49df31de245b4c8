package refill_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/annona-gateway/annona/region/refill"
	"github.com/annona-gateway/annona/shared/limit"
)

const (
	ms     limit.Micros = 1_000
	second limit.Micros = 1_000_000
	// now is a store's clock; rows count from it.
	now = 1_000 * second
)

var params = refill.Params{TTL: 10 * second, RoundTrip: 80 * ms, Deadline: 3 * second}

// lease is a lease of left tokens that was asked for and answered 100 ms ago and used a moment ago.
func lease(left limit.Tokens) refill.View {
	return refill.View{
		Now: now, AskedAt: now - 100*ms, LastSpentAt: now - ms, ExpiresAt: now + 9_900*ms, Left: left, Cost: 1,
	}
}

func with(v refill.View, change func(*refill.View)) refill.View {
	change(&v)
	return v
}

// row is a view and what is decided about it.
type row struct {
	view refill.View
	want refill.Decision
}

// run plays rows.
func run(t *testing.T, p refill.Params, rows map[string]row) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := refill.Plan(row.view, p)
			if diff := cmp.Diff(row.want, got); diff != "" {
				t.Errorf("Plan(%+v) (-want +got):\n%s", row.view, diff)
			}
		})
	}
}

func TestPlanAsks(t *testing.T) {
	t.Parallel()
	run(t, params, map[string]row{
		"a bucket that never had a lease and needs none leaves the schedule": {
			refill.View{Now: now, Cost: 1},
			refill.Decision{Due: refill.Off},
		},
		"what waits is asked for at once, and nothing ahead of it without demand": {
			refill.View{Now: now, Cost: 1, Waiting: 3},
			refill.Decision{Ask: true, Want: 3, Waiting: 3, Due: 1080 * ms},
		},
		"ahead is the demand of a second less what is left and what waits": {
			with(lease(2), func(v *refill.View) { v.Spent, v.Waiting = 40, 5 }),
			refill.Decision{Ask: true, Want: 38, Waiting: 5, Demand: 40e6, Due: 1080 * ms},
		},
		"nobody asks while an item is in flight; the next look is at its deadline": {
			with(lease(0), func(v *refill.View) { v.InFlight, v.Waiting = true, 5 }),
			refill.Decision{Due: 2900 * ms},
		},
		"nobody asks a dry pool; the next look is when it has tokens": {
			with(lease(0), func(v *refill.View) { v.Waiting, v.DryUntil = 5, now+70*ms }),
			refill.Decision{Due: 70 * ms},
		},
		"a dry pool is settled with all the same, and asked by the way": {
			with(lease(0), func(v *refill.View) {
				v.Spent, v.AskedAt, v.DryUntil = 20, now-1080*ms, now+70*ms
			}),
			refill.Decision{Ask: true, Want: 19, Demand: 19e6, Due: 1080 * ms},
		},
		"a lease that lasts for the round trip is not topped up": {
			with(lease(40), func(v *refill.View) { v.Spent, v.AskedSpent, v.AnsweredSpent = 60, 20, 20 }),
			refill.Decision{Demand: 40e6, Due: 980 * ms},
		},
		"one that does not is, before it is empty": {
			with(lease(13), func(v *refill.View) { v.Spent, v.AskedAt = 40, now-200*ms }),
			refill.Decision{Ask: true, Want: 27, Demand: 40e6, Due: 1080 * ms},
		},
		"asking only ahead keeps its pace": {
			with(lease(1), func(v *refill.View) { v.Spent = 40 }),
			refill.Decision{Demand: 40e6, Due: 100 * ms},
		},
		"a request every few seconds is demand for one": {
			with(lease(0), func(v *refill.View) { v.Spent, v.AskedAt = 1, now-3*second }),
			refill.Decision{Ask: true, Want: 1, Demand: 1e6, Due: 1080 * ms},
		},
		"the last item's demand stands for the part of the second before it": {
			with(lease(0), func(v *refill.View) { v.Spent, v.AskedDemand, v.AskedAt = 10, 100e6, now-250*ms }),
			refill.Decision{Ask: true, Want: 85, Demand: 85e6, Due: 1080 * ms},
		},
		"denied cost is demand": {
			with(lease(0), func(v *refill.View) {
				v.Denied, v.AskedDenied, v.AskedAt, v.LastSpentAt = 9, 2, now-500*ms, 0
			}),
			refill.Decision{Ask: true, Want: 7, Demand: 7e6, Due: 1080 * ms},
		},
	})
}

func TestPlanSettlesAndReturns(t *testing.T) {
	t.Parallel()
	run(t, params, map[string]row{
		"what was unused for a second goes back, but for one cost": {
			with(lease(30), func(v *refill.View) { v.Cost, v.AskedAt, v.LastSpentAt = 4, now-1100*ms, now-1050*ms }),
			refill.Decision{Ask: true, Return: 26, Due: 1080 * ms},
		},
		"a lease in use gives back what is far beyond its need": {
			with(lease(90), func(v *refill.View) {
				v.Spent, v.AskedAt = 10, now-2*second
			}),
			refill.Decision{Ask: true, Return: 82, Demand: 5e6, Due: 1080 * ms},
		},
		"the last cost waits for the next request until the lease is half over": {
			with(lease(1), func(v *refill.View) { v.AskedAt, v.LastSpentAt, v.ExpiresAt = now-3*second, 0, now+7*second }),
			refill.Decision{Due: 1000 * ms},
		},
		"then it goes back too": {
			with(lease(1), func(v *refill.View) { v.AskedAt, v.LastSpentAt, v.ExpiresAt = now-4*second, 0, now+6*second }),
			refill.Decision{Ask: true, Return: 1, Due: 1080 * ms},
		},
		"a lease that was used since is renewed at half of its life": {
			with(lease(2), func(v *refill.View) {
				v.Spent, v.AskedAt, v.ExpiresAt = 1, now-4*second, now+6*second
			}),
			refill.Decision{Ask: true, Demand: 1e6, Due: 1080 * ms},
		},
		"a lease that an answer did not renew is not asked about all the time": {
			with(lease(2), func(v *refill.View) { v.ExpiresAt, v.Spent, v.AskedSpent, v.AnsweredSpent = now+second, 5, 5, 5 }),
			refill.Decision{Due: 980 * ms},
		},
		"a lease that is spent by half is settled soon, for it stops the pool's refill": {
			with(lease(6), func(v *refill.View) { v.Spent, v.AskedAt = 6, now-1080*ms }),
			refill.Decision{Ask: true, Demand: 6e6, Due: 1080 * ms},
		},
		"an item whose answer never came is repeated in a newer one after its deadline": {
			with(lease(0), func(v *refill.View) {
				v.Returned, v.AnsweredReturned, v.AskedAt, v.LastSpentAt = 7, 2, now-3*second, 0
			}),
			refill.Decision{Ask: true, Due: 1080 * ms},
		},
		"a lease past its end has lapsed, whoever wrote that down, and is settled": {
			with(lease(5), func(v *refill.View) { v.ExpiresAt, v.AskedAt, v.LastSpentAt = now, now-10*second, 0 }),
			refill.Decision{Ask: true, Due: 1080 * ms},
		},
		"nothing left, nothing unsettled, nobody waits: off the schedule": {
			with(lease(0), func(v *refill.View) {
				v.Spent, v.AskedSpent, v.AnsweredSpent, v.LastSpentAt = 9, 9, 9, now-2*second
			}),
			refill.Decision{Due: refill.Off},
		},
	})
}

// Draining gives back everything and wants nothing, until all is settled.
func TestPlanDraining(t *testing.T) {
	t.Parallel()
	draining := params
	draining.Draining = true
	run(t, draining, map[string]row{
		"a lease goes back whole, in use or not": {
			with(lease(30), func(v *refill.View) { v.Spent, v.Waiting = 7, 2 }),
			refill.Decision{Ask: true, Return: 30, Demand: 7e6, Due: 1080 * ms},
		},
		"what is spent is settled": {
			with(lease(0), func(v *refill.View) { v.Spent, v.AnsweredSpent, v.LastSpentAt = 7, 6, 0 }),
			refill.Decision{Ask: true, Due: 1080 * ms},
		},
		"what is in flight comes first": {
			with(lease(30), func(v *refill.View) { v.InFlight = true }),
			refill.Decision{Due: 2900 * ms},
		},
		"with nothing left and all settled it is done": {
			with(lease(0), func(v *refill.View) { v.Waiting, v.LastSpentAt = 3, 0 }),
			refill.Decision{Due: refill.Off},
		},
	})
}

// Renewals of keys that were asked for together come at 40 to 50 % of the lease's life, evenly.
func TestPlanSpreadsRenewals(t *testing.T) {
	t.Parallel()
	tenths := map[limit.Micros]int{}
	for spread := range uint64(1000) {
		p := params
		p.Spread = spread * 7919
		v := with(lease(1), func(v *refill.View) { v.AskedAt, v.Spent, v.AskedSpent, v.AnsweredSpent = now, 5, 5, 5 })
		v.LastSpentAt = now
		v.ExpiresAt = now + p.TTL
		due := refill.Plan(v, p).Due
		if due < 4*second || due > 5*second {
			t.Fatalf("spread %d: due in %d µs, want 40 to 50 %% of %d", p.Spread, due, p.TTL)
		}
		tenths[due/(100*ms)]++
	}
	for tenth, n := range tenths {
		if n > 200 {
			t.Errorf("%d of 1000 renewals in the same 100 ms (%d)", n, tenth)
		}
	}
}
