package lessee

import (
	"context"
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"github.com/annona-gateway/annona/region/refill"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

const (
	// deadline is how long a seq may be without an answer before a newer one may be sent (C4).
	deadline = 3 * time.Second
	// storeAgain is when buckets are looked at again that the store did not answer about.
	storeAgain = 250 * time.Millisecond
)

// turn is one round: look at buckets, plan, make items, and an envelope for each shard and epoch that has some.
type turn struct {
	looks       map[int][]look // by shard; every shard here has one slot
	begun       time.Time
	draining    bool
	fingerprint string
	params      refill.Params
	done        map[int]*done
}

// newTurn fixes what a turn needs of the loop's state.
func (l *Lessee) newTurn(looks map[int][]look) *turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &turn{
		looks: looks, begun: time.Now(), draining: l.loop.draining, fingerprint: l.loop.secret.fingerprint,
		params: refill.Params{
			TTL: micros(l.mu.times.TTL), RoundTrip: micros(l.mu.roundTrip), Deadline: micros(deadline),
			Draining: l.loop.draining,
		},
		done: map[int]*done{},
	}
	for shard := range looks {
		t.done[shard] = &done{shard: shard, held: map[bucket.Ref]bool{}}
	}
	return t
}

func micros(d time.Duration) limit.Micros { return limit.Micros(d.Microseconds()) }

// run plays a turn to its end. Each shard's slot comes back when its envelopes are answered or given up; a bucket that asked
// for nothing is released before, so that it need not wait for the others' answers.
func (l *Lessee) run(ctx context.Context, t *turn) {
	asked, err := l.ask(ctx, t)
	if err != nil {
		l.storeFailed(ctx, err)
		t.postponeAll(storeAgain)
		asked = nil
	}
	envelopes := map[int]map[string][]*bucket.Asked{}
	busy := map[bucket.Ref]bool{}
	for _, a := range asked {
		if envelopes[a.Shard] == nil {
			envelopes[a.Shard] = map[string][]*bucket.Asked{}
		}
		envelopes[a.Shard][a.Epoch] = append(envelopes[a.Shard][a.Epoch], a)
		t.done[a.Shard].asked = append(t.done[a.Shard].asked, a.Ref)
		busy[a.Ref] = true
	}
	var idle []bucket.Ref
	for _, looks := range t.looks {
		for _, k := range looks {
			if !busy[k.ref] {
				idle = append(idle, k.ref)
			}
		}
	}
	l.looked <- idle
	for shard, d := range t.done {
		if len(envelopes[shard]) == 0 {
			l.done <- *d
			continue
		}
		// Two epochs in one shard are a matter of the moment in which it changes; they go one after the other.
		l.beside.Go(func() {
			for _, epoch := range slices.Sorted(maps.Keys(envelopes[shard])) {
				l.envelope(ctx, t, d, epoch, envelopes[shard][epoch])
			}
			l.done <- *d
		})
	}
}

// ask looks at the turn's buckets, plans them and makes the items; those that make none are scheduled for their next look
// (an item schedules itself, so that a lease is settled even if this agent ends now).
func (l *Lessee) ask(ctx context.Context, t *turn) ([]*bucket.Asked, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*storeWait)
	defer cancel()
	looks := make([]look, 0, len(t.looks))
	for _, shard := range slices.Sorted(maps.Keys(t.looks)) {
		looks = append(looks, t.looks[shard]...)
	}
	refs := make([]bucket.Ref, len(looks))
	for i, k := range looks {
		refs[i] = k.ref
	}
	views, err := l.store.Views(ctx, refs)
	if err != nil {
		return nil, err
	}
	var plans []bucket.Plan
	var asked []*bucket.Asked
	var dues []bucket.Due
	for i, view := range views {
		l.noteEpoch(view)
		k := looks[i]
		if k.resend != nil && inFlight(view, k.resend) {
			asked = append(asked, k.resend)
			continue
		}
		plan, ask, due := t.plan(view, k)
		t.done[k.ref.Shard].held[k.ref] = ask || due.In >= 0
		if ask {
			plans = append(plans, plan)
		} else {
			dues = append(dues, due)
		}
	}
	if len(dues) > 0 {
		if err := l.store.Schedule(ctx, dues); err != nil {
			return nil, err
		}
	}
	if len(plans) == 0 {
		return asked, nil
	}
	made, err := l.store.Ask(ctx, plans)
	if err != nil {
		return nil, err
	}
	l.countPlans(ctx, plans, made)
	return append(asked, slices.DeleteFunc(made, func(a *bucket.Asked) bool { return a == nil })...), nil
}

// inFlight is true if a is the item that view's bucket waits for the answer of.
func inFlight(view bucket.View, a *bucket.Asked) bool {
	return view.Found && view.InFlight && view.Epoch == a.Epoch && view.Session == a.Item.GetSession() && view.Seq == a.Item.GetSeq()
}

// postponeAll has every bucket of the turn looked at again after a while.
func (t *turn) postponeAll(after time.Duration) {
	for shard, looks := range t.looks {
		for _, k := range looks {
			t.done[shard].later = append(t.done[shard].later, later{look: k, after: after})
		}
	}
}

// plan decides about one bucket: the item to make, if any, and else the next look.
func (t *turn) plan(view bucket.View, k look) (plan bucket.Plan, ask bool, due bucket.Due) {
	due = bucket.Due{Ref: k.ref, In: -1}
	if !view.Found {
		return plan, false, due // unknown here, or of an older epoch: its lease is void
	}
	v := viewOf(view)
	abandon := k.abandon != nil && view.Epoch == k.abandon.Epoch && view.Session == k.abandon.Item.GetSession() && !view.InFlight
	if abandon {
		v = fresh(v)
	}
	params := t.params
	// The first bytes choose the shard, so the others spread the keys of one.
	params.Spread = binary.BigEndian.Uint64(k.ref.Key[8:])
	d := refill.Plan(v, params)
	if d.Due >= 0 {
		due.In = time.Duration(d.Due) * time.Microsecond
	}
	return bucket.Plan{
		View: view, Want: d.Want, Waiting: d.Waiting, Return: d.Return, Demand: d.Demand,
		NewSession: abandon, Deadline: deadline, Draining: t.draining,
	}, d.Ask || abandon, due // a refused session is replaced even if it wants nothing: its settling would be refused for ever
}

// viewOf is what the planner sees of a bucket.
func viewOf(v bucket.View) refill.View {
	return refill.View{
		Now: v.Now, InFlight: v.InFlight, AskedAt: v.AskedAt, LastSpentAt: v.LastSpentAt, ExpiresAt: v.ExpiresAt,
		DryUntil: v.DryUntil, Left: v.Left, Waiting: v.Waiting, Cost: v.Cost,
		Spent: v.Spent, Returned: v.Returned, Lapsed: v.Lapsed, Denied: v.Denied,
		AskedSpent: v.AskedSpent, AskedDenied: v.AskedDenied, AskedDemand: v.AskedDemand,
		AnsweredSpent: v.AnsweredSpent, AnsweredReturned: v.AnsweredReturned, AnsweredLapsed: v.AnsweredLapsed,
	}
}

// fresh is v in a session that has just begun: its lease is given up, what waits still waits.
func fresh(v refill.View) refill.View {
	return refill.View{Now: v.Now, AskedAt: v.AskedAt, LastSpentAt: v.LastSpentAt, DryUntil: v.DryUntil, Waiting: v.Waiting, Cost: v.Cost}
}

// noteEpoch notices a shard whose store has begun a new epoch.
func (l *Lessee) noteEpoch(v bucket.View) {
	if v.Epoch == "" {
		return
	}
	l.mu.Lock()
	old := l.mu.epochs[v.Shard]
	l.mu.epochs[v.Shard] = v.Epoch
	l.mu.Unlock()
	if old != "" && old != v.Epoch && l.cfg.NewEpoch != nil {
		l.cfg.NewEpoch()
	}
}
