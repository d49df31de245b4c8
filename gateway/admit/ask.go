package admit

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// The default wait for a lease: long enough for the agent's question to the allocator and back with half as much again to
// spare, not so short that a hiccup denies, not so long that a client gives up first.
const (
	minLeaseWait = 500 * time.Millisecond
	maxLeaseWait = 2 * time.Second
)

// leaseWait is how long a request with these claims may wait: the least that one of the leased policies allows, 0 where none
// is leased.
func (a *Admitter) leaseWait(claims []*claim) time.Duration {
	usual := min(max(minLeaseWait, time.Duration(a.roundTrip.Load())*5/2), maxLeaseWait)
	var least time.Duration
	for _, c := range claims {
		if !c.charge.Leased {
			continue
		}
		wait := c.policy.LeaseWait
		if wait == 0 {
			wait = usual
		}
		if least == 0 || wait < least {
			least = wait
		}
	}
	return least
}

// ask takes, and where only a lease is missing waits for it and takes again, until an answer other than bucket.Wait or the
// deadline, at which the last take is one that may not wait: so the unmet demand of a request counts once. The states of the
// last take are left in claims. waited tells whether the request waited.
func (a *Admitter) ask(ctx context.Context, claims []*claim, patient bool) (outcome bucket.Outcome, waited bool, err error) {
	wait := a.leaseWait(claims)
	patient = patient && wait > 0 && !a.waiters.full()
	came := time.Now()
	var seen []uint64
	if patient {
		seen = a.waiters.seen(keys(claims))
	}
	outcome, err = a.take(ctx, claims, patient, wait)
	if err != nil || outcome != bucket.Wait {
		return outcome, false, err
	}
	outcome, err = a.wait(ctx, claims, seen, came, came.Add(wait))
	return outcome, true, err
}

// wait goes on where a first take was told to wait; seen is from before that take, at which the request came.
func (a *Admitter) wait(ctx context.Context, claims []*claim, seen []uint64, came, deadline time.Time) (bucket.Outcome, error) {
	ctx, span := a.options.Telemetry.Tracer.Start(ctx, "lease wait")
	defer span.End()
	start := time.Now()
	defer func() {
		a.options.Telemetry.Metrics.LeaseWait.Record(context.WithoutCancel(ctx), time.Since(start).Seconds())
	}()
	for {
		patient := a.await(ctx, claims, seen, came, deadline) && time.Now().Before(deadline)
		if err := ctx.Err(); err != nil {
			return 0, fmt.Errorf("the client left while it waited for a lease: %w", err)
		}
		if patient {
			seen = a.waiters.seen(keys(claims))
		}
		outcome, err := a.take(ctx, claims, patient, time.Until(deadline))
		if err != nil || outcome != bucket.Wait {
			return outcome, err
		}
	}
}

// await waits for a fill of one of the buckets that lacked tokens.
func (a *Admitter) await(ctx context.Context, claims []*claim, seen []uint64, came, deadline time.Time) bool {
	lacking := make([]limit.Key, 0, len(claims))
	known := make([]uint64, 0, len(claims))
	for i, c := range claims {
		if c.state.Lacking && c.charge.Leased {
			lacking, known = append(lacking, c.charge.Key), append(known, seen[i])
		}
	}
	return a.waiters.wait(ctx, lacking, known, came, deadline)
}

func keys(claims []*claim) []limit.Key {
	all := make([]limit.Key, len(claims))
	for i, c := range claims {
		all[i] = c.charge.Key
	}
	return all
}

// take asks once and leaves the states in claims.
func (a *Admitter) take(ctx context.Context, claims []*claim, mayWait bool, wait time.Duration) (bucket.Outcome, error) {
	ctx, span := a.options.Telemetry.Tracer.Start(ctx, "take")
	defer span.End()
	request := bucket.Request{Charges: make([]bucket.Charge, len(claims)), MayWait: mayWait, Traceparent: telemetry.Traceparent(ctx)}
	if mayWait {
		request.WaitFor = wait
	}
	slotted := false
	for i, c := range claims {
		request.Charges[i] = c.charge
		request.GiveBackFor = max(request.GiveBackFor, c.giveBackFor())
		slotted = slotted || c.charge.Algorithm == limit.Concurrency
		c.fills = a.waiters.fills(c.charge.Key)
	}
	asking := ctx
	if slotted || request.GiveBackFor > 0 {
		// A client that leaves meanwhile must not keep us from learning what there is to give back. The store's patience bounds it.
		asking = context.WithoutCancel(ctx)
	}
	start := time.Now()
	verdict, keeper, err := a.takeHolding(asking, request, slotted)
	a.options.Telemetry.Metrics.TakeDuration.Record(context.WithoutCancel(ctx), time.Since(start).Seconds())
	switch {
	case err != nil:
	case len(verdict.States) != len(claims):
		err = fmt.Errorf("%w: %d states for %d charges; run one version of the gateway in a region",
			bucket.ErrCouldNotAsk, len(verdict.States), len(claims))
	case verdict.Outcome == bucket.Wait && !mayWait:
		err = fmt.Errorf("%w: told to wait where that was ruled out", bucket.ErrCouldNotAsk)
	case verdict.Outcome < bucket.Admitted || verdict.Outcome > bucket.Banned:
		err = fmt.Errorf("%w: outcome %d is unknown", bucket.ErrCouldNotAsk, verdict.Outcome)
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
		a.trouble.note(ctx, err)
		return 0, err
	}
	span.SetAttributes(attribute.Int("outcome", int(verdict.Outcome)))
	now := time.Now()
	for i, c := range claims {
		c.state, c.asked = verdict.States[i], true
		if i < len(verdict.Receipts) && (request.GiveBackFor > 0 || c.charge.Algorithm == limit.Concurrency) {
			c.receipt = verdict.Receipts[i]
		}
		if c.charge.Algorithm == limit.Concurrency && verdict.Outcome == bucket.Admitted {
			c.keeper = keeper
		}
		c.askedAt, c.answeredAt = start, now
		c.charge.Waits, c.charge.Denied, c.charge.Denials = 0, 0, 0
		if verdict.Outcome == bucket.Wait && c.state.Lacking && c.charge.Leased {
			c.charge.Waits = c.state.Round
		}
	}
	a.allocator.heard(claims)
	a.local.answered(claims)
	return verdict.Outcome, nil
}

// takeHolding takes, by a holder of this process where slots are among what is taken.
func (a *Admitter) takeHolding(ctx context.Context, r bucket.Request, slotted bool) (bucket.Verdict, *keeper, error) {
	if !slotted {
		verdict, err := a.taker.Take(ctx, r)
		return verdict, nil, err
	}
	for again := true; ; again = false {
		k, err := a.keepers.current(ctx)
		if err != nil {
			return bucket.Verdict{}, nil, err
		}
		r.Holder = k.id
		verdict, err := a.taker.Take(ctx, r)
		switch {
		case err == nil:
			return verdict, k, nil
		case errors.Is(err, bucket.ErrHolderGone) && again: // nothing happened
			a.keepers.retire(k)
			continue
		case !uncharged(err):
			// It may have taken slots of which nobody has a receipt. They end with their holder, which ends with its requests.
			k.taint()
		}
		return bucket.Verdict{}, nil, err
	}
}

// unheard tells whether the allocator has answered nothing about c's shard for as long as a lease lives.
func (c *claim) unheard(ttl time.Duration) bool {
	return c.charge.Leased && (c.state.Heard < 0 || time.Duration(c.state.Heard)*time.Microsecond > ttl)
}

// allocator is what this gateway knows of the allocator, which it never talks to.
type allocator struct {
	lastHeard atomic.Int64 // ns of this process's clock; 0: never
	outSince  atomic.Int64 // the first wait in vain since, 0: none
}

// heard notes when the allocator was heard last, as the buckets tell it.
func (a *allocator) heard(claims []*claim) {
	for _, c := range claims {
		if !c.charge.Leased || c.state.Heard < 0 {
			continue
		}
		at := time.Now().Add(-time.Duration(c.state.Heard) * time.Microsecond).UnixNano()
		if at > a.lastHeard.Load() {
			a.lastHeard.Store(at) // a lost race between two readings a moment apart changes nothing
		}
		if since := a.outSince.Load(); since != 0 && at > since {
			a.outSince.Store(0)
		}
	}
}

// ended notes a wait that ended in vain because the allocator is out.
func (a *allocator) ended(claims []*claim, waited bool, ttl time.Duration) {
	for _, c := range claims {
		if waited && c.state.Lacking && c.unheard(ttl) {
			a.outSince.CompareAndSwap(0, time.Now().UnixNano())
		}
	}
}

// Heard is how long ago the allocator answered the region, as far as this gateway's takes have shown; negative where they
// have not. Out is true from a wait that ended in vain until an answer is seen.
func (a *Admitter) Heard() (ago time.Duration, out bool) {
	out = a.allocator.outSince.Load() != 0
	if at := a.allocator.lastHeard.Load(); at != 0 {
		return time.Since(time.Unix(0, at)), out
	}
	return -1, out
}
