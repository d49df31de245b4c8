package lessee

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/lease/leasepb"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const (
	// unknownAgain is when an item about a policy that the allocator does not know yet is sent again; busyAgain when one that
	// it had no time for.
	unknownAgain, busyAgain = time.Second, 300 * time.Millisecond
	// fillTries and fillAgain bound the attempts to apply answers: the store applies each once, whatever it was told before.
	fillTries, fillAgain = 3, 50 * time.Millisecond
)

// Kinds of annona.lease.items: what items said and were answered, and what became of those that came to nothing.
const (
	kindWant    = "want"
	kindReturn  = "return"
	kindSettle  = "settle"
	kindGrant   = "grant"
	kindRefused = "refused" // by the allocator
	kindLost    = "lost"    // no answer until the deadline
	kindLate    = "late"    // the answer named another session or seq than the bucket's
	kindMoved   = "moved"   // the bucket moved on between look and item
	kindDropped = "dropped" // no room to look at the bucket
	kindUnknown = "unknown" // an announcement of a shard that there is not
	kindFailed  = "failed"  // the store could not be asked
	kindDeaf    = "deaf"    // the subscription to announcements failed
	kindSecrets = "secrets" // two fingerprints: nothing was asked
)

// apply fills the buckets with their answers. An item that was refused counted nothing, and its bucket is looked at again in
// the way that the reason asks for.
func (l *Lessee) apply(ctx context.Context, t *turn, d *done, asked []*bucket.Asked, reply *leasepb.Reply) {
	answers := make(map[limit.Key]*leasepb.Answer, len(asked))
	for _, answer := range reply.GetAnswers() {
		answers[limit.Key(answer.GetKey())] = answer
	}
	grants := make([]bucket.Grant, 0, len(asked))
	for _, a := range asked {
		answer := answers[a.Key] // the reply was checked: every item is answered
		if answer.GetRefusal() != leasepb.Refusal_REFUSAL_UNSPECIFIED {
			l.refused(ctx, t, d, a, answer.GetRefusal())
			continue
		}
		grants = append(grants, bucket.Grant{
			Ref: a.Ref, Epoch: a.Epoch, Session: answer.GetSession(), Seq: answer.GetSeq(),
			Granted: limit.Tokens(answer.GetGranted()), PoolLevel: limit.Tokens(answer.GetPoolLevel()),
			TTL: time.Duration(answer.GetTtlUs()) * time.Microsecond, DryFor: time.Duration(answer.GetDryForUs()) * time.Microsecond,
			FitsIn: time.Duration(answer.GetFitsInUs()) * time.Microsecond,
		})
	}
	if len(grants) == 0 {
		return
	}
	applied, err := l.fill(ctx, grants)
	if err != nil {
		// The next item's `applied` tells the allocator that these grants never arrived, and it takes them back (C3).
		l.storeFailed(ctx, err)
		return
	}
	granted, late := 0, 0
	for i, ok := range applied {
		switch {
		case !ok:
			late++
		case grants[i].Granted > 0:
			granted++
		}
		if t.draining {
			d.later = append(d.later, later{look: look{ref: grants[i].Ref}})
		}
	}
	l.count(ctx, kindGrant, granted)
	l.count(ctx, kindLate, late)
}

// fill applies grants. It may repeat them: the store applies each once.
func (l *Lessee) fill(ctx context.Context, grants []bucket.Grant) (applied []bool, err error) {
	for range fillTries {
		call, cancel := context.WithTimeout(ctx, storeWait)
		applied, err = l.store.Fill(call, grants)
		cancel()
		if err == nil || !pause(ctx, fillAgain) {
			break
		}
	}
	return applied, err
}

// refused decides when and how a bucket is looked at whose item was refused.
func (l *Lessee) refused(ctx context.Context, t *turn, d *done, a *bucket.Asked, why leasepb.Refusal) {
	l.count(ctx, kindRefused, 1)
	next := later{look: look{ref: a.Ref}, held: true}
	switch why {
	case leasepb.Refusal_REFUSAL_OLD_SESSION, leasepb.Refusal_REFUSAL_INVALID:
		// The store lets no item out before the last one's deadline, for its answer may be on its way still.
		next.abandon = a
		next.after = max(time.Until(t.begun.Add(deadline)), 0) + fillAgain
		l.warnings.session.Do(func() {
			l.tel.Log.WarnContext(ctx, "the allocator refused a lease's session; the region gives it up and begins another",
				"reason", why.String(), "policy", a.Item.GetPolicy(), "key_id", a.Key.String())
		})
	case leasepb.Refusal_REFUSAL_UNKNOWN_POLICY:
		next.resend, next.after = a, unknownAgain
	case leasepb.Refusal_REFUSAL_BUSY:
		next.resend, next.after = a, busyAgain
	default: // an old seq: the store's schedule brings the bucket when a newer one may go
		return
	}
	d.later = append(d.later, next)
}

// storeFailed counts and tells that the region's Redis could not be asked.
func (l *Lessee) storeFailed(ctx context.Context, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return // the agent ends
	}
	l.count(ctx, kindFailed, 1)
	l.warnings.store.Do(func() {
		l.tel.Log.WarnContext(ctx, "the region's Redis did not answer this agent; it tries again", "error", err)
	})
}

// countPlans counts what the items that were made say.
func (l *Lessee) countPlans(ctx context.Context, plans []bucket.Plan, made []*bucket.Asked) {
	var want, back, settle, moved int
	for i, plan := range plans {
		switch {
		case made[i] == nil:
			moved++
		case plan.Want > 0:
			want++
		case plan.Return > 0:
			back++
		default:
			settle++
		}
	}
	l.count(ctx, kindWant, want)
	l.count(ctx, kindReturn, back)
	l.count(ctx, kindSettle, settle)
	l.count(ctx, kindMoved, moved)
}

func (l *Lessee) count(ctx context.Context, kind string, n int) {
	if n > 0 {
		l.tel.Metrics.LeaseItems.Add(ctx, int64(n), metric.WithAttributes(
			telemetry.LabelKind.String(kind), telemetry.LabelRegion.String(l.cfg.Region)))
	}
}
