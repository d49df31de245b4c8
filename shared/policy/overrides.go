package policy

import (
	"slices"
	"strings"
	"time"
)

var overrideFields = []string{"key", "rate", "burst", "limit", "from", "until"}

const (
	overrideRemedy = "write {key: {user: NAME}, rate: 500/min, burst: 1000, from: 2026-01-31T00:00:00Z, until: 2026-02-01T00:00:00Z}," +
		" with limit: 500 for rate and burst where the algorithm is not token_bucket"
	// maxOverrides is how many overrides one policy may have: a client's numbers are found by looking at them in turn.
	maxOverrides = 100
)

// overrides reads the numbers of single clients, and of single times.
func (r *reader) overrides(d *Document, p draft) {
	n := p.found["overrides"]
	if n == nil || !r.is(n, list, overrideRemedy) {
		return
	}
	if len(n.items) > maxOverrides {
		r.refuse(n, faultf("use tiers", "there are %d overrides, more than %d", len(n.items), maxOverrides))
		return
	}
	lines := make([]int, 0, len(n.items)) // of p.Overrides
	for _, item := range n.items {
		if !r.is(item, mapping, overrideRemedy) {
			continue
		}
		before := r.errors
		o := r.override(p, item)
		if r.errors != before {
			continue
		}
		o.name = o.Name()
		for i := range p.Overrides {
			if p.Overrides[i].Name() == o.Name() {
				r.refuse(item, faultf("remove one", "there is an override of %s for the same time already, on line %d", &o.Key, lines[i]))
				break
			}
			if p.Overrides[i].covers(&o) {
				r.warn(item, faultf("put it before that one, or remove it",
					"the override never applies: the one on line %d includes it and comes first", lines[i]))
				break
			}
		}
		r.idleOverride(d, p, item, &o)
		p.Overrides, lines = append(p.Overrides, o), append(lines, item.at.line)
		if size := itemOf(item, p.sizeField()); size != nil {
			d.places[variantOf{p.Name, o.Name()}] = spot{at: size.at, path: item.path()}
		}
	}
}

func (r *reader) override(p draft, n *node) Override {
	var o Override
	found := r.fields(n, overrideFields)
	r.foreign(p, n, variedFields)
	size := p.sizeField()
	r.need(n, found, []string{"key", size}, map[string]string{
		"key": "write key: {user: NAME}, or key: {} for everyone", size: requiredRemedies[size],
	})
	o.Budget, o.RateText = r.budget(p, found)
	if from := found["from"]; from != nil {
		o.From = r.instant(from)
	}
	if until := found["until"]; until != nil {
		o.Until = r.instant(until)
		if !o.Until.IsZero() && !o.Until.After(o.From) {
			r.refuse(until, faultf("write an until after from", "the override never applies: it ends before it begins"))
		}
	}
	key := found["key"]
	if key == nil {
		return o
	}
	var ok bool
	if o.Key, ok = r.selector(key); !ok {
		return o
	}
	r.overrideKey(p, key, &o)
	return o
}

// overrideKey refuses an override of what the policy's key does not tell apart: clients that share one bucket would give it
// now these numbers, now those. (Tiers give a client other numbers as they are, so a tier may be named.)
func (r *reader) overrideKey(p draft, n *node, o *Override) {
	for _, field := range o.Key.fields() {
		if name := field[0]; name != "tier" && !p.keyedBy(name) && len(p.Parts) > 0 {
			r.refuse(n, faultf("add "+shown(name)+" to the policy's key, or write a policy of its own",
				"the override is for one %s, but the policy's key is [%s], so others share the bucket", shown(name), strings.Join(p.Parts, ", ")))
			return
		}
	}
	if len(o.Key.fields()) == 0 && o.From.IsZero() && o.Until.IsZero() {
		r.warn(n, faultf("write its "+p.sizes()+" as the policy's own", "an override of everyone for ever leaves the policy's own numbers and tiers idle"))
	}
}

// idleOverride warns of an override for clients to whom the policy does not apply.
func (r *reader) idleOverride(d *Document, p draft, n *node, o *Override) {
	if o.Key.Tier != "" && len(p.ForTiers) > 0 && !slices.Contains(p.ForTiers, o.Key.Tier) {
		r.warn(n, faultf("remove it, or add the tier to match", "the override never applies: the policy does not match tier %s", o.Key.Tier))
	}
	for i := range d.Exempt {
		if d.Exempt[i].covers(&o.Key) {
			r.warn(n, faultf("remove it, or the exemption", "the override never applies: %s is exempt", &d.Exempt[i]))
			return
		}
	}
}

// instant reads a point in time, RFC 3339.
func (r *reader) instant(n *node) time.Time {
	const remedy = "write a date, a time and a zone, such as 2026-01-31T18:00:00Z or 2026-01-31T19:00:00+01:00"
	text, ok := r.text(n, remedy)
	if !ok {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil || at.Year() < 1970 {
		r.refuse(n, faultf(remedy, "%s is no instant that can be read", shown(text)))
		return time.Time{}
	}
	return at.UTC()
}

// itemOf returns a mapping's item, or nil.
func itemOf(n *node, name string) *node {
	if i := slices.IndexFunc(n.items, func(item *node) bool { return item.name == name }); i >= 0 {
		return n.items[i]
	}
	return nil
}
