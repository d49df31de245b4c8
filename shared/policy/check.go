package policy

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// CheckOptions say what Check may assume about the deployment that a document is for. Zero values: not known.
type CheckOptions struct {
	// RTT is the round trip between a region and the allocator.
	RTT time.Duration
	// Weights are the regions' weights.
	Weights map[string]uint64
	// Now tells what is over.
	Now time.Time
}

// Check returns warnings and notes about a valid document in a deployment, in document order: pools too small for the round
// trip, and what each region serves while a dependency is out.
func Check(d *Document, o CheckOptions) Problems {
	var problems Problems
	say := func(p *Policy, variant string, severity Severity, f *fault) {
		if f == nil {
			return
		}
		at := d.places[variantOf{p.Name, variant}]
		problems = append(problems, Problem{
			Severity: severity, Line: at.at.line, Column: at.at.column, Path: at.path, Message: f.message, Remedy: f.remedy,
		})
	}
	for _, p := range d.Policies {
		if p.OnRedis == Local {
			say(p, "", SeverityNote, faultf("choose closed to admit nothing then",
				"policy %s: while Redis is out each gateway admits from its own part of what the region keeps, at most that much beyond the limit", p.Name))
		}
		say(p, "", SeverityWarning, o.unknownRegion(p))
		say(p, "", SeverityNote, o.edges(p))
		for i := range p.Overrides {
			say(p, p.Overrides[i].Name(), SeverityWarning, o.ended(p, &p.Overrides[i]))
		}
		if p.Scope != Global {
			continue
		}
		say(p, "", SeverityNote, o.smallAllotments(p))
		for _, variant := range p.Variants() {
			budget, _ := p.BudgetOf(variant)
			say(p, variant, SeverityWarning, o.smallPool(p, budget))
			say(p, variant, SeverityNote, o.shares(p, variant, budget))
		}
	}
	return problems.sorted()
}

// edges notes where one window ends and the next begins, which is when a fixed_window admits its limit twice.
func (o CheckOptions) edges(p *Policy) *fault {
	switch {
	case p.Algorithm != limit.FixedWindow || p.Budget.Capacity == 0:
		return nil
	case p.Window.Unit() == limit.Fixed:
		return faultf("choose sliding_window_counter or sliding_window_log if no more may ever pass in that time",
			"policy %s: twice its limit may pass within a moment, around the edge of two windows", p.Name)
	case o.Now.IsZero():
		return nil
	}
	start, next := p.Window.Start(o.Now), p.Window.Next(o.Now)
	return faultf("change timezone or anchor to move it", "policy %s: the present %s began %s and ends %s, when all of the limit is there again",
		p.Name, p.Window.Unit(), start.Format(time.RFC3339), next.Format(time.RFC3339))
}

// ended warns of an override that does nothing any more.
func (o CheckOptions) ended(p *Policy, over *Override) *fault {
	if o.Now.IsZero() || over.Until.IsZero() || over.Until.After(o.Now) {
		return nil
	}
	return faultf("remove it", "policy %s: the override of %s has ended, %s", p.Name, &over.Key, over.Until.Format(time.RFC3339))
}

// unknownRegion warns of a region in a match that the deployment does not have.
func (o CheckOptions) unknownRegion(p *Policy) *fault {
	for _, region := range p.Regions {
		if _, known := o.Weights[region]; !known && len(o.Weights) > 0 {
			return faultf("write one of "+strings.Join(slices.Sorted(maps.Keys(o.Weights)), ", "),
				"policy %s matches in region %s, which there is not", p.Name, shown(region))
		}
	}
	return nil
}

// smallAllotments notes where a policy's largest cost leaves regions no allotment, which it would have for a cost of 1.
func (o CheckOptions) smallAllotments(p *Policy) *fault {
	for _, region := range slices.Sorted(maps.Keys(o.Weights)) {
		split := limit.Split{AllotmentPPM: p.AllotmentPPM, Weights: o.Weights, Cost: 1}
		part := split.Allotment(p.Budget, region).Capacity
		if part > 0 && part < p.MaxCost() {
			return faultf("raise burst or allotment, or lower the largest cost, to decide more without the allocator",
				"policy %s: the allotment of %s, %d tokens, is less than the largest cost, %d: every first request waits for a lease",
				p.Name, region, part, p.MaxCost())
		}
	}
	return nil
}

// smallPool warns where p·C < 4·R·RTT: a pool that refills faster than leases of it can travel leaves tokens unused.
func (o CheckOptions) smallPool(p *Policy, b limit.Budget) *fault {
	pool := o.pool(p, b)
	wanted := limit.Micros((4 * o.RTT).Microseconds())
	if b.Rate == 0 || b.Capacity == 0 || b.TimeTo(pool.Micro()) >= wanted {
		return nil
	}
	if p.AllotmentPPM == limit.Whole {
		return faultf("lower allotment so that regions can lease what others do not use",
			"policy %s has no pool: what one region does not use serves no other", p.Name)
	}
	// Allotments are floored, so p is never less than 1 − k. Only a suggestion, so floats will do.
	tokens := float64(b.Rate) / limit.MicroPerToken * (4 * o.RTT).Seconds()
	needed := math.Ceil(tokens * limit.Whole / float64(limit.Whole-p.AllotmentPPM))
	remedy := "lower the rate"
	if needed <= float64(limit.MaxTokens) {
		remedy = fmt.Sprintf("raise burst to %.0f, or lower the rate", needed)
	}
	return faultf(remedy, "policy %s: its pool of %d tokens is less than 4 round trips of %s at its rate, so demand in one region may not get all of it",
		p.Name, pool, o.RTT)
}

// pool returns what is left of b when every region has its allotment; where the regions are not known, but for rounding.
func (o CheckOptions) pool(p *Policy, b limit.Budget) limit.Tokens {
	if len(o.Weights) > 0 {
		return limit.Split{AllotmentPPM: p.AllotmentPPM, Weights: o.Weights, Cost: p.MaxCost()}.Pool(b).Capacity
	}
	return b.Capacity - b.Capacity*limit.Tokens(p.AllotmentPPM)/limit.Whole
}

// shares notes what each region serves of b while the allocator is out: its whole share.
func (o CheckOptions) shares(p *Policy, variant string, b limit.Budget) *fault {
	if len(o.Weights) == 0 || b.Capacity == 0 {
		return nil
	}
	whole := limit.Split{AllotmentPPM: limit.Whole, Weights: o.Weights, Cost: p.MaxCost()}
	served := make([]string, 0, len(o.Weights))
	for _, region := range slices.Sorted(maps.Keys(o.Weights)) {
		served = append(served, fmt.Sprintf("%s %s", region, whole.Allotment(b, region)))
	}
	name := p.Name
	if variant != "" {
		name += " for " + p.titleOf(variant)
	}
	beyond, remedy := "", "change weights to change it, or on_failure.allocator to open to admit what is beyond it"
	if p.OnAllocator == Open {
		beyond, remedy = ", and then admits what is beyond it", "change on_failure.allocator to local to keep the limit"
	}
	return faultf(remedy, "policy %s: while the allocator is out each region serves its share (%s)%s", name, strings.Join(served, ", "), beyond)
}
