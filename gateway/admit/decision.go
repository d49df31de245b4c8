package admit

import (
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

// Answer is one of the gateway's three. Refused means that no policy could be asked, or could be asked in full: it is never a denial.
type Answer int

// The three answers: admitted, denied (429), refused (503).
const (
	Admitted Answer = iota + 1
	Denied
	Refused
)

// String is the word for logs.
func (a Answer) String() string {
	switch a {
	case Admitted:
		return countAdmitted
	case Denied:
		return countDenied
	case Refused:
		return countRefused
	}
	return "undecided"
}

// The dependencies that a degraded answer names.
const (
	DegradedRedis     = "redis"
	DegradedAllocator = "allocator"
)

// Decision is the answer to one request.
type Decision struct {
	Answer Answer
	// Degraded names the dependency that was out where a policy's failure mode admitted the request, else it is "".
	Degraded string
	// Reports has one entry for each enforced policy that matched, in document order.
	Reports []Report
	// RetryIn is how long until the request fits, for a denied one.
	RetryIn limit.Micros
	// Banned is true where a denied request's client is banned: by a policy that it ran into too often.
	Banned bool
	// Hold is what an admitted request owes when it has ended, nil where nothing.
	Hold *Hold
	// Cause is why a request was refused, for the log; it is not for the client.
	Cause error
}

// Report says where a client stands with one policy after the decision.
type Report struct {
	Policy *policy.Policy
	// Variant names which of the policy's numbers are this client's.
	Variant string
	// Limit is the whole budget, over all regions where the policy's scope is global. What has no refill has no rate.
	Limit limit.Budget
	// Remaining is the best estimate of what is left of it, 0 to its capacity.
	Remaining limit.Tokens
	// Reset is how long until it is full again or, where it is violated, until the request fits.
	Reset limit.Micros
	// Violated is true where this policy made the request denied.
	Violated bool
}

// Rate is the policy's rate in words for this client.
func (r Report) Rate() string { return r.Policy.RateOf(r.Variant) }

// refusedReset is what a refused client hears of the reset: nobody knows more than that it may try again.
const refusedReset limit.Micros = limit.MicrosPerSecond

// report is the client's standing with c's policy after a take that c had part in.
func (c *claim) report(answer Answer) Report {
	r := Report{Policy: c.policy, Variant: c.charge.Variant, Limit: c.parts.whole}
	if !c.asked {
		// Nothing is known: while refused nothing can be spent, while open, or where others denied, nothing is held back here.
		if answer == Refused {
			r.Reset = refusedReset
		} else {
			r.Remaining = r.Limit.Capacity
		}
		return r
	}
	r.Remaining, r.Reset = c.standing()
	switch {
	case c.state.Banned > 0:
		r.Remaining, r.Reset = 0, c.state.Banned
		r.Violated = answer == Denied
	case c.state.Lacking:
		r.Remaining = max(min(r.Remaining, c.charge.Cost-1), 0)
		r.Reset = max(c.state.RetryIn, 1) // at any moment, but not yet
		r.Violated = answer == Denied && !c.passed
	}
	return r
}

// standing is how much is left of the whole budget, and how long until all is there again.
func (c *claim) standing() (limit.Tokens, limit.Micros) {
	whole := c.parts.whole
	switch {
	case c.charge.Algorithm != limit.TokenBucket:
		return c.state.Remaining, c.state.Reset
	case !c.charge.Leased && c.state.Level < 0:
		return 0, whole.TimeTo(whole.Capacity.Micro() - c.state.Level)
	}
	left := c.remaining()
	return left.Whole(), whole.TimeTo(whole.Capacity.Micro() - left)
}

// remaining estimates what is left of the whole budget: what is held here, and the pool as last heard with its refill since.
// (Other regions' allotments are not counted: nobody here knows them.)
func (c *claim) remaining() limit.Micro {
	left := max(c.state.Level, 0) + c.state.Left.Micro()
	if c.charge.Leased {
		pool := c.parts.pool.Capacity.Micro()
		if c.state.PoolAge >= 0 {
			heard, _ := c.parts.pool.Refill(c.state.PoolLevel.Micro(), c.state.PoolAge)
			pool = min(pool, max(heard, 0))
		}
		left += pool
	}
	return min(left, c.parts.whole.Capacity.Micro())
}
