package policy

import (
	"fmt"

	"github.com/annona-gateway/annona/shared/limit"
)

// maxTiers is how many tiers one policy may tell apart.
const maxTiers = 64

// numbers reads a policy's rate and burst, and each tier's.
func (r *reader) numbers(d *Document, p draft) {
	p.Budget, p.RateText = r.budget(p.found["rate"], p.found["burst"])
	if n := p.found["rate"]; n != nil {
		d.places[variantOf{p.Name, ""}] = spot{at: n.at, path: n.path()}
	}
	r.tiers(d, p)
	r.overrides(d, p)
}

func (r *reader) tiers(d *Document, p draft) {
	tiers := p.found["tiers"]
	if tiers == nil || !r.is(tiers, mapping, "write tiers: {NAME: {rate: 1000/min, burst: 2000}}") {
		return
	}
	if len(tiers.items) > maxTiers {
		r.refuse(tiers, faultf("keep fewer tiers", "there are %d tiers, more than %d", len(tiers.items), maxTiers))
		return
	}
	p.Tiers = make(map[string]limit.Budget, len(tiers.items))
	p.TierText = make(map[string]string, len(tiers.items))
	for _, tier := range tiers.items {
		r.tier(d, p, tier)
	}
}

func (r *reader) tier(d *Document, p draft, n *node) {
	remedy := fmt.Sprintf("write 1 to %d of %s", maxName, tierLetters)
	if f := tokenFault(n.name, tierLetters, remedy); f != nil {
		r.refuseName(n, f)
		return
	}
	if _, taken := p.Tiers[n.name]; taken {
		r.refuseName(n, faultf("remove one", "the tier %s stands twice", n.name))
		return
	}
	p.Tiers[n.name] = limit.Budget{}
	if !r.is(n, mapping, "write {rate: 1000/min, burst: 2000}") {
		return
	}
	found := r.fields(n, []string{"rate", "burst"})
	r.need(n, found, []string{"rate"}, requiredRemedies)
	p.Tiers[n.name], p.TierText[n.name] = r.budget(found["rate"], found["burst"])
	d.places[variantOf{p.Name, tierVariant + n.name}] = spot{at: n.nameAt, path: n.path()}
	if n.name == Anonymous && p.credentialPart() != "" {
		r.warn(n, faultf("key by ip, or remove the tier", "a client of tier %s has no credential, and this policy's key needs one", Anonymous))
	}
}

// budget reads a rate and a burst, by default the rate's number, and writes the rate in words.
func (r *reader) budget(rateNode, burstNode *node) (limit.Budget, string) {
	pace, paced := r.rate(rateNode)
	burst, given := r.burst(burstNode)
	if !paced {
		return limit.Budget{}, ""
	}
	if !given {
		burst = pace.tokens
	}
	switch {
	case pace.tokens == 0 && burst > 0:
		r.refuse(burstNode, faultf("write burst: 0 or remove it, or give a rate above 0", "the rate 0 denies all, but burst is %d", burst))
	case pace.tokens > 0 && burst == 0:
		remedy := fmt.Sprintf("burst is the whole capacity: remove it for %d, or write the rate as 0 too", pace.tokens)
		r.warn(burstNode, faultf(remedy, "burst 0 denies every request"))
	}
	floor, _ := pace.micro()
	return limit.Budget{Capacity: burst, Rate: limit.Rate(floor)}, pace.words()
}

func (r *reader) rate(n *node) (pace rate, ok bool) {
	if n == nil {
		return rate{}, false
	}
	text, ok := r.text(n, rateRemedy)
	if !ok {
		return rate{}, false
	}
	pace, f := parseRate(text)
	if f != nil {
		r.refuse(n, f)
		return rate{}, false
	}
	if f := pace.flooring(); f != nil {
		r.warn(n, f)
	}
	return pace, true
}

func (r *reader) burst(n *node) (burst limit.Tokens, ok bool) {
	if n == nil {
		return 0, false
	}
	text, ok := r.text(n, "write a whole number of tokens")
	if !ok {
		return 0, false
	}
	burst, f := parseTokens(text)
	if f != nil {
		r.refuse(n, faultf(f.remedy, "burst %s", f.message))
	}
	return burst, f == nil
}
