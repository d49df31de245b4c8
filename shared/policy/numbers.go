package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/annona-gateway/annona/shared/limit"
)

// maxTiers is how many tiers one policy may tell apart.
const maxTiers = 64

// numberFields are the fields that say how much, each of them for some algorithms.
var numberFields = []string{"rate", "burst", "max_delay", "limit", "window", "timezone", "anchor"}

// numbersOf returns those of an algorithm, first those that are required.
func numbersOf(a limit.Algorithm) (fields []string, required int) {
	switch a {
	case limit.FixedWindow:
		return []string{"limit", "window", "timezone", "anchor"}, 2
	case limit.SlidingWindowLog, limit.SlidingWindowCounter:
		return []string{"limit", "window"}, 2
	case limit.Concurrency:
		return []string{"limit"}, 1
	default:
		return []string{"rate", "burst", "max_delay"}, 1
	}
}

// variedFields are the numbers that a tier or an override may have of its own: what divides time is the whole policy's.
var variedFields = []string{"rate", "burst", "limit"}

// numbers reads a policy's numbers, and those of each tier and override.
func (r *reader) numbers(d *Document, p draft) {
	r.foreign(p, p.node, numberFields)
	r.window(p)
	r.maxDelay(p)
	p.Budget, p.RateText = r.budget(p, p.found)
	if n := p.found[p.sizeField()]; n != nil {
		d.places[variantOf{p.Name, ""}] = spot{at: n.at, path: n.path()}
	}
	r.tiers(d, p)
	r.overrides(d, p)
}

// sizeField is the field without which a variant of p has no numbers.
func (p draft) sizeField() string {
	fields, _ := numbersOf(p.Algorithm)
	return fields[0]
}

// capacityField is the field that says how much p admits at once.
func (p draft) capacityField() string {
	if p.Algorithm == limit.TokenBucket {
		return "burst"
	}
	return "limit"
}

// sizes are the fields that say how much a variant of p has.
func (p *Policy) sizes() string {
	if p.Algorithm == limit.TokenBucket {
		return "rate and burst"
	}
	return "limit"
}

// foreign refuses the numbers among names that belong to other algorithms than p's.
func (r *reader) foreign(p draft, n *node, names []string) {
	own, _ := numbersOf(p.Algorithm)
	for _, item := range n.items {
		switch {
		case !slices.Contains(names, item.name) || slices.Contains(own, item.name):
		case item.name == "max_delay" && item.kind == scalar && zeroDelay(item.text): // which is what every other algorithm has
		case slices.Contains([]string{"timezone", "anchor"}, item.name) && p.Algorithm.Windowed():
			r.refuseName(item, faultf("remove it, or write algorithm: fixed_window", "%s is for calendar windows, and %s slides", item.name, p.Algorithm))
		default:
			remedy := fmt.Sprintf("remove it: %s takes %s; or write algorithm: %s", p.Algorithm, andList(own), orList(algorithmsWith(item.name)))
			r.refuseName(item, faultf(remedy, "%s is not for %s", item.name, p.Algorithm))
		}
	}
}

// algorithmsWith are those that have a field.
func algorithmsWith(field string) []string {
	var names []string
	for _, a := range limit.Algorithms() {
		if fields, _ := numbersOf(a); slices.Contains(fields, field) {
			names = append(names, a.String())
		}
	}
	return names
}

func (r *reader) tiers(d *Document, p draft) {
	tiers := p.found["tiers"]
	if tiers == nil || !r.is(tiers, mapping, fmt.Sprintf("write tiers: {NAME: %s}", p.example())) {
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

// example is how a variant's numbers are written.
func (p draft) example() string {
	if p.Algorithm == limit.TokenBucket {
		return "{rate: 1000/min, burst: 2000}"
	}
	return "{limit: 1000}"
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
	if !r.is(n, mapping, "write "+p.example()) {
		return
	}
	found := r.fields(n, variedFields)
	r.foreign(p, n, variedFields)
	r.need(n, found, []string{p.sizeField()}, requiredRemedies)
	p.Tiers[n.name], p.TierText[n.name] = r.budget(p, found)
	d.places[variantOf{p.Name, tierVariant + n.name}] = spot{at: n.nameAt, path: n.path()}
	if n.name == Anonymous && p.credentialPart() != "" {
		r.warn(n, faultf("key by ip, or remove the tier", "a client of tier %s has no credential, and this policy's key needs one", Anonymous))
	}
}

// budget reads a variant's numbers, and writes them in words.
func (r *reader) budget(p draft, found map[string]*node) (limit.Budget, string) {
	if p.Algorithm == limit.TokenBucket {
		return r.bucket(found["rate"], found["burst"])
	}
	n, ok := r.amount(found["limit"], p.Algorithm.MaxN())
	if !ok {
		return limit.Budget{}, ""
	}
	return limit.Budget{Capacity: n}, p.inWords(n)
}

// inWords writes N of a window or of slots for a person: "1000000 per month", "20 at the same time".
func (p *Policy) inWords(n limit.Tokens) string {
	switch {
	case p.Algorithm == limit.Concurrency:
		return fmt.Sprintf("%d at the same time", n)
	case p.Window.Unit() != limit.Fixed:
		return fmt.Sprintf("%d per %s", n, p.Window.Unit())
	default:
		return rate{tokens: n, per: lengthOf(p.Window)}.words()
	}
}

// bucket reads a rate and a burst, by default the rate's number, and writes the rate in words.
func (r *reader) bucket(rateNode, burstNode *node) (limit.Budget, string) {
	pace, paced := r.rate(rateNode)
	burst, given := r.amount(burstNode, limit.MaxTokens)
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

// amount reads a burst or a limit, 0 to most.
func (r *reader) amount(n *node, most limit.Tokens) (amount limit.Tokens, ok bool) {
	if n == nil {
		return 0, false
	}
	text, ok := r.text(n, "write a whole number of tokens")
	if !ok {
		return 0, false
	}
	amount, f := parseAmount(text, most)
	if f == nil {
		return amount, true
	}
	remedy := f.remedy
	if digits := strings.Trim(text, "0123456789") == ""; digits && most == limit.MaxLogTokens {
		remedy = "write at most " + strconv.FormatInt(int64(most), 10) + ", for a log keeps every admission, or algorithm: sliding_window_counter"
	}
	r.refuse(n, faultf(remedy, "%s %s", label(n), f.message))
	return 0, false
}
