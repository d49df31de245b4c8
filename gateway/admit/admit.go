// Package admit decides whether a request may pass: which policies match it, what it is charged at the region's buckets, and
// what happens where tokens lack or a dependency is out. It has three answers: admitted, denied, and refused, which means that
// it could not ask and is never a denial.
package admit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"golang.org/x/time/rate"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// Taker takes tokens from the region's buckets: all charges of a request or none. An error means that it could not ask. One that
// wraps a server's reply, a connection that was never made or bucket.ErrNotRun stands for the whole take: where other parts of
// it may have been charged it must not wrap these, for local mode denies on their word.
type Taker interface {
	Take(ctx context.Context, r bucket.Request) (bucket.Verdict, error)
}

// Why a request is refused without its failure modes being asked.
var (
	ErrNoDocument  = errors.New("there is no policy document yet")
	ErrManyMatches = fmt.Errorf("more than %d policies match; make their matches narrower", policy.MaxMatches)
	errUnserved    = errors.New("a global policy cannot be asked about in this region yet")
)

// Options are an Admitter's settings.
type Options struct {
	Region string
	// Shadow is how the Admitter begins: see SetShadow.
	Shadow bool
	// Patience is how long a request waits until this process may hold slots at all: redis.timeout. 0 stands for 50 ms.
	Patience time.Duration
	// Settler takes what comes after a take: see Run.
	Settler   Settler
	Telemetry *telemetry.Telemetry
}

// Admitter decides for one gateway. Its methods are safe for any number of goroutines.
type Admitter struct {
	taker   Taker
	options Options

	snapshot  atomic.Pointer[Snapshot]
	shadow    atomic.Bool
	roundTrip atomic.Int64 // to the allocator, as the agent measured it, in ns
	waiters   waiters
	allocator allocator
	local     *local
	memory    *memory
	keepers   keepers
	settler   *settler
	rollouts  rollouts
	trouble   *trouble
	many      rate.Sometimes // the log, of requests that too many policies match
}

// New returns an Admitter that refuses everything until it is given a snapshot.
func New(taker Taker, options Options) *Admitter {
	a := &Admitter{
		taker: newBreaker(taker, options.Telemetry.Log), options: options,
		local: newLocal(), memory: newMemory(), trouble: newTrouble(options), many: rate.Sometimes{Interval: troubleTold},
	}
	a.keepers.admitter = a
	a.settler = newSettler(a)
	a.shadow.Store(options.Shadow)
	return a
}

// Run settles what ended requests owe, and renews what others hold, until ctx ends and nobody holds anything any more: ctx must
// outlive the requests.
func (a *Admitter) Run(ctx context.Context) {
	if a.options.Settler == nil {
		return
	}
	var beside sync.WaitGroup
	beside.Go(func() { a.keepers.run(ctx) })
	beside.Go(func() { a.settler.run(ctx) })
	beside.Wait()
}

// Use makes s decide about every request from now on.
func (a *Admitter) Use(s *Snapshot) { a.snapshot.Store(s) }

// Snapshot returns the one in use, nil before the first.
func (a *Admitter) Snapshot() *Snapshot { return a.snapshot.Load() }

// SetRoundTrip tells how long the way to the allocator and back is; it sizes the default wait for a lease.
func (a *Admitter) SetRoundTrip(d time.Duration) { a.roundTrip.Store(int64(d)) }

// Filled wakes the requests that wait for the bucket that was just filled; denials of before hold no longer.
func (a *Admitter) Filled(fill bucket.Announcement) {
	a.waiters.filled(fill.Key)
	a.memory.filled(fill.Key)
}

// Decide answers r; where r does not say in which region and when it came, here and now. The errors are policy.ErrMissing, a
// policy needs an identity that r lacks, and policy.ErrCost, a trusted peer says a cost that can be none.
func (a *Admitter) Decide(ctx context.Context, asked *policy.Request) (Decision, error) {
	r := *asked
	if r.Region == "" {
		r.Region = a.options.Region
	}
	if r.At.IsZero() {
		r.At = time.Now()
	}
	s := a.snapshot.Load()
	if s == nil {
		return Decision{Answer: Refused, Cause: ErrNoDocument}, nil
	}
	d, err := a.decide(ctx, s, &r, false)
	if err == nil && errors.Is(d.Cause, bucket.ErrOlderRevision) {
		return a.decide(ctx, a.newer(ctx, s), &r, true)
	}
	return d, err
}

// newerWithin is how long a request whose document was found to be an old one waits for the new one, which another gateway of
// the region has already.
const newerWithin = 500 * time.Millisecond

// newer waits for a snapshot other than s, and returns the one in use.
func (a *Admitter) newer(ctx context.Context, s *Snapshot) *Snapshot {
	const every = 10 * time.Millisecond // it is seldom, and short
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range newerWithin / every {
		if now := a.snapshot.Load(); now != s {
			return now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return s
		}
	}
	return a.snapshot.Load()
}

// decide answers r by s. Unless it is the last attempt, an s that proves to be an older document's leaves r undecided, with
// bucket.ErrOlderRevision as the cause: such a take has surely charged nothing.
func (a *Admitter) decide(ctx context.Context, s *Snapshot, r *policy.Request, last bool) (Decision, error) {
	matched, err := s.document.Match(r)
	switch {
	case err != nil && a.shadow.Load():
		return Decision{Answer: Admitted}, nil // what is not enforced denies nobody
	case err != nil:
		return Decision{}, err
	case len(matched) > policy.MaxMatches:
		a.many.Do(func() {
			a.options.Telemetry.Log.ErrorContext(ctx, ErrManyMatches.Error(), "matches", len(matched), "route", r.Route)
		})
		return Decision{Answer: Refused, Cause: ErrManyMatches}, nil
	}
	var enforced, shadow, candidates []*claim
	off := a.shadow.Load()
	for _, m := range matched {
		c := s.claim(m)
		switch {
		case !off && m.Policy.CandidateOf == "" && m.Policy.Enforces(c.charge.Key):
			enforced = append(enforced, &c)
			continue
		case s.unserved[m.Policy]:
			continue
		case m.Policy.CandidateOf == "":
			shadow = append(shadow, &c)
		case !off: // with nothing enforced there is nothing to compare with
			candidates = append(candidates, &c)
		}
		c.reports()
	}
	d := a.enforce(ctx, s, enforced, last)
	if d.Answer == Admitted && len(shadow) > 0 {
		a.evaluate(ctx, s, shadow)
		d.Hold = d.Hold.join(a.hold(shadow))
	}
	if d.Answer != Refused && s.hasCandidates {
		d.Hold = d.Hold.join(a.compare(ctx, s, d.Answer, enforced, candidates))
	}
	return d, nil
}

// enforce charges all claims or none. A round that lacks only what an allocator that is out would have brought, at policies
// that are then open, is followed by one without those policies: they stay uncharged, the others still decide.
func (a *Admitter) enforce(ctx context.Context, s *Snapshot, claims []*claim, last bool) Decision {
	for _, c := range claims {
		if s.unserved[c.policy] {
			return a.couldNotAsk(ctx, s, claims, fmt.Errorf("%w: policy %s: %s", errUnserved, c.policy.Name, s.why))
		}
	}
	if a.memory.recall(s, claims) {
		return a.denied(ctx, s, claims)
	}
	asking, waited := claims, false
	for len(asking) > 0 {
		outcome, waitedNow, err := a.ask(ctx, asking, !waited)
		waited = waited || waitedNow
		switch {
		case errors.Is(err, bucket.ErrOlderRevision) && !last:
			return Decision{Answer: Refused, Cause: err}
		case err != nil:
			return a.couldNotAsk(ctx, s, claims, err)
		case outcome == bucket.Admitted:
			asking = nil
			continue
		case outcome == bucket.Banned:
			a.memory.remember(s, asking, a.waiters.fills)
			return a.denied(ctx, s, claims)
		}
		a.allocator.ended(asking, waited, s.ttl)
		rest := without(asking, func(c *claim) bool { return c.open(waited, s.ttl) })
		if rest == nil {
			a.memory.remember(s, asking, a.waiters.fills)
			return a.denied(ctx, s, claims)
		}
		asking = rest
	}
	return a.admitted(ctx, s, claims)
}

// without returns the claims that did not lack tokens, and marks those that did as passed. It returns nil, and marks nothing,
// if one that lacks may not pass.
func without(claims []*claim, mayPass func(*claim) bool) []*claim {
	rest := make([]*claim, 0, len(claims))
	for _, c := range claims {
		switch {
		case !c.state.Lacking:
			rest = append(rest, c)
		case !mayPass(c):
			return nil
		}
	}
	if len(rest) == len(claims) {
		return nil // denied, and nobody says who lacked
	}
	for _, c := range claims {
		c.passed = c.state.Lacking
	}
	return rest
}

// open tells whether c's policy lets a request pass that lacked tokens at it: the allocator is out, which a wait in vain has
// shown, and the policy chose so.
func (c *claim) open(waited bool, ttl time.Duration) bool {
	return waited && c.policy.OnAllocator == policy.Open && c.unheard(ttl)
}

func (a *Admitter) admitted(ctx context.Context, s *Snapshot, claims []*claim) Decision {
	d := Decision{Answer: Admitted, Hold: a.hold(claims)}
	for _, c := range claims {
		outcome := countAdmitted
		if c.passed {
			outcome = countOpen
			d.Degraded = DegradedAllocator
			a.degraded(ctx, DegradedAllocator, c)
		}
		a.count(ctx, s, c, outcome)
		d.Reports = append(d.Reports, c.report(Admitted))
	}
	return d
}

func (a *Admitter) denied(ctx context.Context, s *Snapshot, claims []*claim) Decision {
	d := Decision{Answer: Denied}
	for _, c := range claims {
		r := c.report(Denied)
		if r.Violated {
			a.count(ctx, s, c, countDenied)
			d.RetryIn = max(d.RetryIn, r.Reset)
		}
		d.Banned = d.Banned || c.state.Banned > 0
		d.Reports = append(d.Reports, r)
	}
	return d
}

// couldNotAsk lets the policies' failure modes decide. A policy that is closed promised that nothing passes unasked, so one of
// them refuses the request; else those that are local decide, and those that are open let it pass.
func (a *Admitter) couldNotAsk(ctx context.Context, s *Snapshot, claims []*claim, cause error) Decision {
	if ctx.Err() == nil && !errors.Is(cause, errUnserved) {
		if d, ok := a.decideLocally(ctx, s, claims, cause); ok {
			return d
		}
	}
	d := Decision{Answer: Admitted, Degraded: DegradedRedis}
	for _, c := range claims {
		// What nobody knows this region's part of, nobody can decide locally.
		if c.policy.OnRedis != policy.Open || ctx.Err() != nil {
			d = Decision{Answer: Refused, Cause: cause}
		}
	}
	for _, c := range claims {
		c.asked, c.passed = false, false
		outcome := countRefused
		if d.Answer == Admitted {
			outcome = countOpen
		}
		a.count(ctx, s, c, outcome)
		if ctx.Err() == nil { // a client that went away is no outage
			a.degraded(ctx, DegradedRedis, c)
		}
		d.Reports = append(d.Reports, c.report(d.Answer))
	}
	return d
}

// evaluate takes for policies in shadow: what they would have done is counted, and nothing else comes of it.
func (a *Admitter) evaluate(ctx context.Context, s *Snapshot, claims []*claim) {
	outcome, err := a.take(ctx, claims, false, 0)
	if err != nil {
		return // the store's health shows in the takes of enforced policies and in /readyz
	}
	for _, c := range claims {
		switch {
		case outcome == bucket.Admitted:
			a.count(ctx, s, c, countAdmitted)
		case c.state.Lacking:
			a.count(ctx, s, c, countShadowDenied)
		}
	}
}

func (a *Admitter) count(ctx context.Context, s *Snapshot, c *claim, outcome string) {
	a.options.Telemetry.Metrics.Decisions.Add(ctx, 1, s.counts[c.policy][outcome])
}

func (a *Admitter) degraded(ctx context.Context, dependency string, c *claim) {
	a.options.Telemetry.Metrics.Degraded.Add(ctx, 1, metric.WithAttributes(attribute.String("dependency", dependency),
		attribute.String("policy", c.policy.Name), attribute.String("region", a.options.Region)))
}
