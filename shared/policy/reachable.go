package policy

import (
	"slices"
	"strings"
)

// reachable refuses a policy that can never apply to any request, and warns of parts that cannot, as far as the document alone
// proves it. (All policies that match apply, so that none hides another.)
func (r *reader) reachable(d *Document, p draft) {
	match := p.found["match"]
	if match == nil || match.kind != mapping {
		r.sharedTiers(p)
		return
	}
	if tiers := itemOf(match, "tiers"); tiers != nil && len(p.ForTiers) > 0 {
		r.reachableTiers(d, p, tiers)
	}
	if regions := itemOf(match, "regions"); regions != nil && len(p.Regions) == 1 && p.Scope == Global && tokenFault(p.Regions[0], regionLetters, "") == nil {
		r.warn(regions, faultf("write scope: region, which leases no tokens", "the policy matches in one region only, and its budget is global"))
	}
	r.idleTiers(p)
	r.sharedTiers(p)
}

func (r *reader) reachableTiers(d *Document, p draft, tiers *node) {
	if slices.Equal(p.ForTiers, []string{Anonymous}) {
		if part := p.credentialPart(); part != "" && !p.DenyMissing {
			r.refuse(tiers, faultf("key by ip, or write missing: deny to answer 401",
				"the policy never applies: a client of tier %s has no %s, and its key needs one", Anonymous, part))
		}
		if len(p.Claims) > 0 {
			r.refuse(tiers, faultf("remove claims, or another tier", "the policy never applies: a client of tier %s has no claims", Anonymous))
		}
	}
	exempt := func(tier string) bool {
		return slices.ContainsFunc(d.Exempt, func(s Selector) bool { return s.covers(&Selector{Tier: tier}) })
	}
	if !slices.ContainsFunc(p.ForTiers, func(tier string) bool { return !exempt(tier) }) {
		r.refuse(tiers, faultf("remove the exemption, or the policy", "the policy never applies: every tier that it matches is exempt"))
	}
}

// credentialPart returns a key part that only a client with a credential has, or "".
func (p *Policy) credentialPart() string {
	for _, part := range p.Parts {
		if part == "user" || part == "api_key" || strings.HasPrefix(part, claimPart) {
			return part
		}
	}
	return ""
}

// idleTiers warns of numbers for tiers that the policy does not match.
func (r *reader) idleTiers(p draft) {
	tiers := p.found["tiers"]
	if len(p.ForTiers) == 0 || tiers == nil || tiers.kind != mapping {
		return
	}
	for _, tier := range tiers.items {
		if !slices.Contains(p.ForTiers, tier.name) {
			named := *tier
			named.at = tier.nameAt
			r.warn(&named, faultf("remove it, or add the tier to match", "the numbers of tier %s never apply: the policy does not match it", shown(tier.name)))
		}
	}
}

// sharedTiers warns where one bucket is shared by clients of several tiers, each with numbers of its own.
func (r *reader) sharedTiers(p draft) {
	if tiers := p.found["tiers"]; len(p.Tiers) > 0 && p.keyedBy(everyone) && len(p.ForTiers) != 1 {
		r.warn(tiers, faultf("write key: [tier] for a budget of each tier", "all tiers share one budget, and give it now these numbers, now those"))
	}
}
