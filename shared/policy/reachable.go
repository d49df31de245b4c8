package policy

import (
	"fmt"
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
	regions := itemOf(match, "regions")
	if regions != nil && len(p.Regions) == 1 && p.Scope == Global && tokenFault(p.Regions[0], regionLetters, "") == nil {
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

// outdone warns of each policy that another one, for the same requests and the same key, makes idle: both are charged alike, so
// the one with more of everything never denies. Policies that say more (tiers, overrides, a part of the keys) are left alone.
func (r *reader) outdone(policies []*Policy, names []*node) {
	alike, kinds := map[string][]int{}, make([]string, len(policies))
	for i, p := range policies {
		if p.Enforced && p.EnforcedPPM == 0 && p.Ban == (Ban{}) && len(p.Tiers) == 0 && len(p.Overrides) == 0 && names[i] != nil {
			kinds[i] = p.counts()
			alike[kinds[i]] = append(alike[kinds[i]], i)
		}
	}
	for i, p := range policies {
		if kinds[i] == "" {
			continue
		}
		for _, j := range alike[kinds[i]] {
			other := policies[j]
			more := p.Budget.Capacity >= other.Budget.Capacity && p.Budget.Rate >= other.Budget.Rate
			if i == j || !more || (p.Budget == other.Budget && i < j) {
				continue
			}
			r.warn(names[i], faultf("remove it, or raise the other's "+strings.ReplaceAll(p.sizes(), "and", "or"),
				"the policy never denies: %s, on line %d, counts the same and allows no more", other.Name, names[j].at.line))
			break
		}
	}
}

// crowded warns of more policies that match every request than one request may be charged for. (Whether all of them find their
// key in it only the request tells.)
func (r *reader) crowded(n *node, policies []*Policy) {
	var none Policy
	always := 0
	for _, p := range policies {
		if slices.Equal(p.matching(), none.matching()) {
			always++
		}
	}
	if always > MaxMatches {
		r.warn(n, faultf("give policies a match, or say more with tiers",
			"%d policies match every request, and one that more than %d count is answered 503", always, MaxMatches))
	}
}

// matching writes what p matches, field by field.
func (p *Policy) matching() []string {
	var fields []string
	for _, field := range []any{p.Hosts, p.Methods, p.Paths, p.Headers, p.Query, p.ForTiers, p.Claims, p.Regions} {
		fields = append(fields, fmt.Sprintf("%#v", field))
	}
	return fields
}

// counts names what p counts: two policies of the same name here are charged alike.
func (p *Policy) counts() string {
	return fmt.Sprintf("%#v", []any{
		p.matching(), slices.Sorted(slices.Values(p.Parts)), p.counting(), p.MaxDelay, p.Scope, p.Cost,
	})
}
