package admit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// ErrUnknownPolicy is the answer about a policy that the document lacks.
var ErrUnknownPolicy = errors.New("there is no such policy in the document that this gateway works by")

// Query asks about a request that somebody else carries.
type Query struct {
	Request *policy.Request
	// Policy, if not "", is the only one that is asked.
	Policy string
	// Cost, if not 0, stands in place of what the policies say.
	Cost limit.Tokens
	// Peek charges nothing: what is answered holds for this moment only.
	Peek bool
}

// Judgement is one policy's part in the answer to a Query.
type Judgement struct {
	Report

	// Enforced is false where the policy is in shadow: it has no say.
	Enforced bool
	// Allowed is false where the policy lacks the request's cost.
	Allowed bool
	// RetryIn is how long until it may have it.
	RetryIn limit.Micros
}

// Check decides about q as Decide does about a proxied request, from the same buckets, and tells each policy's part, those in
// shadow included, in document order. Its errors are ErrUnknownPolicy and policy.ErrMissing.
func (a *Admitter) Check(ctx context.Context, q Query) (Decision, []Judgement, error) {
	s := a.snapshot.Load()
	if s == nil {
		return Decision{Answer: Refused, Cause: ErrNoDocument}, nil, nil
	}
	if q.Policy != "" && s.document.Policy(q.Policy) == nil {
		return Decision{}, nil, ErrUnknownPolicy
	}
	matched, err := s.document.Match(q.Request)
	switch {
	case err != nil:
		return Decision{}, nil, err
	case len(matched) > policy.MaxMatches:
		return Decision{Answer: Refused, Cause: ErrManyMatches}, nil, nil
	}
	var all, enforced, shadow []*claim
	for _, m := range matched {
		if q.Policy != "" && m.Policy.Name != q.Policy {
			continue
		}
		c := s.claim(m)
		c.charge.MaxDelay = 0 // nobody here waits for a turn
		if q.Cost > 0 {
			c.charge.Cost = q.Cost
		}
		switch {
		case m.Policy.Enforces(c.charge.Key) && !a.shadow.Load():
			enforced = append(enforced, &c)
		case s.unserved[m.Policy]:
			continue // nobody can say anything about it
		default:
			c.reports()
			shadow = append(shadow, &c)
		}
		all = append(all, &c)
	}
	d := a.judge(ctx, s, q, enforced, shadow)
	// Nobody says when the request has ended: its slots are free at once, and its cost stands.
	d.Hold.join(a.hold(shadow)).End(Ended{})
	if d.Answer == Refused {
		return d, nil, nil
	}
	judgements := make([]Judgement, 0, len(all))
	for _, c := range all {
		judgements = append(judgements, c.judgement(d.Answer))
	}
	return d, judgements, nil
}

// judge decides, and leaves the states of those in shadow, too.
func (a *Admitter) judge(ctx context.Context, s *Snapshot, q Query, enforced, shadow []*claim) Decision {
	if q.Peek {
		if err := a.peek(ctx, s, slices.Concat(enforced, shadow)); err != nil {
			return Decision{Answer: Refused, Cause: err}
		}
		d := Decision{Answer: Admitted}
		for _, c := range enforced {
			if c.state.Lacking || c.state.Banned > 0 {
				d.Answer = Denied
			}
			d.Banned = d.Banned || c.state.Banned > 0
		}
		return d
	}
	d := a.enforce(ctx, s, enforced, true)
	switch {
	case len(shadow) == 0 || d.Answer == Refused:
	case d.Answer == Admitted:
		a.evaluate(ctx, s, shadow)
	default:
		_ = a.peek(ctx, s, shadow) // what cannot be seen stays unknown
	}
	return d
}

// peek leaves in claims how their buckets stand, and whether their costs would fit, without a charge.
func (a *Admitter) peek(ctx context.Context, s *Snapshot, claims []*claim) error {
	if len(claims) == 0 {
		return nil
	}
	looks := make([]claim, len(claims))
	asking := make([]*claim, len(claims))
	for i, c := range claims {
		if s.unserved[c.policy] {
			return fmt.Errorf("%w: policy %s: %s", errUnserved, c.policy.Name, s.why)
		}
		looks[i] = *c
		looks[i].charge.Cost = 0
		asking[i] = &looks[i]
	}
	if _, err := a.take(ctx, asking, false, 0); err != nil {
		return err
	}
	for i, c := range claims {
		c.state, c.asked = looks[i].state, true
		c.guess()
	}
	return nil
}

// guess tells from a look at c's bucket whether c's cost would fit, and if not, when at the latest, unless others come first.
func (c *claim) guess() {
	lacks, in := c.charge.Cost > c.state.Remaining, max(c.state.Reset, 1)
	if c.charge.Algorithm == limit.TokenBucket {
		need := c.charge.Cost.Micro() - c.remaining()
		if !c.charge.Leased {
			need -= min(c.state.Level, 0) // who stands in the queue comes first
		}
		lacks, in = need > 0, c.parts.whole.TimeTo(need)
	}
	switch c.state.Lacking, c.state.RetryIn = lacks, c.state.Banned; {
	case lacks && c.charge.Cost > c.parts.whole.Capacity:
		c.state.RetryIn = limit.Never
	case lacks:
		c.state.RetryIn = max(in, c.state.Banned)
	}
}

func (c *claim) judgement(answer Answer) Judgement {
	j := Judgement{Report: c.report(answer), Enforced: !c.shadow, Allowed: !c.asked || c.passed || !c.state.Lacking && c.state.Banned == 0}
	if !j.Allowed {
		j.RetryIn = max(c.state.RetryIn, 1)
	}
	return j
}

// Standing is how one client stands with one policy in this region.
type Standing struct {
	Report

	Key limit.Key
	// Part is what the region keeps of the limit, Own how much of that is left, Lease what it holds of the pool besides.
	Part       limit.Budget
	Own, Lease limit.Tokens
	// Pool is the pool's level as heard so long ago; PoolAge is negative where none was heard.
	Pool    limit.Tokens
	PoolAge time.Duration
}

// Usage looks at the bucket of one client under one policy. Its errors are ErrUnknownPolicy, policy.ErrMissing where the
// policy's key has parts that an identity does not tell, ErrNoDocument, and those of a store that cannot be asked.
func (a *Admitter) Usage(ctx context.Context, name string, id policy.Identity) (Standing, error) {
	s := a.snapshot.Load()
	if s == nil {
		return Standing{}, ErrNoDocument
	}
	p := s.document.Policy(name)
	if p == nil {
		return Standing{}, ErrUnknownPolicy
	}
	fields, display, err := p.FieldsFor(&policy.Request{Identity: id})
	if err != nil {
		return Standing{}, fmt.Errorf("policy %s: %w", p.Name, err)
	}
	variant, _ := p.Variant(&id, time.Now())
	c := s.claim(policy.Matched{Policy: p, Variant: variant, Fields: fields, Display: display, Cost: 1})
	if err := a.peek(ctx, s, []*claim{&c}); err != nil {
		return Standing{}, err
	}
	c.state.Lacking = false // nobody asks for a cost
	return Standing{
		Report: c.report(Admitted), Key: c.charge.Key, Part: c.parts.own,
		Own: max(c.state.Level, 0).Whole(), Lease: c.state.Left,
		Pool: max(c.state.PoolLevel, 0), PoolAge: time.Duration(c.state.PoolAge) * time.Microsecond,
	}, nil
}
