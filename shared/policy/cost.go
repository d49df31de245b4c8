package policy

import (
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strconv"

	"github.com/annona-gateway/annona/shared/limit"
)

// ErrCost is returned by Match when a trusted peer says a cost that cannot be one: the gateway answers 400.
var ErrCost = errors.New("the header that says the request's cost must be one whole number from 1 to the policy's max")

// Cost says how many tokens a request takes. Its zero value is 1 for all.
type Cost struct {
	// Default is the cost where nothing else says one; 0 stands for 1.
	Default limit.Tokens
	// Rules are looked at in order; the first that matches the request says its cost.
	Rules []CostRule
	// Header is the canonical name of a header in which a trusted peer says the cost, 1 to Max; "": none. It goes before Rules.
	Header string
	Max    limit.Tokens
	// Actual is the canonical name of a header or trailer in which the upstream says what the request did cost; "": none.
	Actual string
	// Refund are the statuses, of the upstream or in its place, for which a request costs nothing, in order.
	Refund []int
}

// CostRule is the cost of requests of these methods to these paths; empty lists are any, as in a policy's match.
type CostRule struct {
	Methods, Paths []string
	Cost           limit.Tokens
}

func (c *CostRule) matches(r *Request) bool {
	return (len(c.Methods) == 0 || slices.Contains(c.Methods, r.Method)) &&
		(len(c.Paths) == 0 || slices.ContainsFunc(c.Paths, func(pattern string) bool { return pathMatches(pattern, r.Path) }))
}

// MaxCost is the largest cost that one request may have under p. An allotment below it is none (PROTOCOL.md A1).
func (p *Policy) MaxCost() limit.Tokens {
	most := max(p.Cost.Default, p.Cost.Max, 1)
	for i := range p.Cost.Rules {
		most = max(most, p.Cost.Rules[i].Cost)
	}
	return most
}

// of returns what r costs, or ErrCost. Whoever is not trusted to say a cost is not heard, not refused: its header is stripped.
func (c *Cost) of(r *Request) (limit.Tokens, error) {
	if c.Header != "" && r.TrustedPeer {
		if said := r.Header[c.Header]; len(said) > 0 {
			return c.said(said)
		}
	}
	for i := range c.Rules {
		if c.Rules[i].matches(r) {
			return c.Rules[i].Cost, nil
		}
	}
	return max(c.Default, 1), nil
}

func (c *Cost) said(values []string) (limit.Tokens, error) {
	if len(values) != 1 {
		return 0, fmt.Errorf("%w: %s stands %d times", ErrCost, c.Header, len(values))
	}
	cost, f := parseCost(values[0])
	switch {
	case f != nil:
		return 0, fmt.Errorf("%w: %s: %s", ErrCost, c.Header, f.message)
	case cost < 1 || cost > c.Max:
		return 0, fmt.Errorf("%w: %s: %d is not in 1 to %d", ErrCost, c.Header, cost, c.Max)
	}
	return cost, nil
}

// CostHeaders returns the canonical names of all headers in which trusted peers may say costs, or upstreams actual ones, sorted:
// those of anyone else must not reach an upstream, which may believe them, or send them back as its own.
func (d *Document) CostHeaders() []string {
	var names []string
	for _, p := range d.Policies {
		for _, name := range []string{p.Cost.Header, p.Cost.Actual} {
			if name != "" {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

var (
	costFields     = []string{"default", "rules", "header", "max", "actual", "refund"}
	costRuleFields = []string{"methods", "paths", "cost"}
)

const (
	costRemedy = "write a whole number from 1 to the capacity, or {default: 1, rules: [{methods: [POST], paths: [\"/v1/*\"], cost: 5}]}"
	maxRules   = 100
)

// cost reads `cost: 5`, or {default, rules, header, max}.
func (r *reader) cost(p draft, n *node) {
	if n.kind == scalar {
		p.Cost.Default = r.oneCost(n)
		return
	}
	if !r.is(n, mapping, costRemedy) {
		return
	}
	found := r.fields(n, costFields)
	r.corrected(p, found)
	if one := found["default"]; one != nil {
		p.Cost.Default = r.oneCost(one)
	}
	if rules := found["rules"]; rules != nil {
		r.costRules(p, rules)
	}
	most, header := found["max"], found["header"]
	if most != nil {
		p.Cost.Max = r.oneCost(most)
	}
	switch {
	case header != nil:
		p.Cost.Header = r.headerName(header, header.text)
		r.need(n, found, []string{"max"}, map[string]string{"max": "write max: and the largest cost that the header may say"})
	case most != nil:
		r.warn(most, faultf("remove it, or name the header", "max bounds what a header says, and there is no header"))
		p.Cost.Max = 0
	}
}

func (r *reader) oneCost(n *node) limit.Tokens {
	text, ok := r.text(n, costRemedy)
	if !ok {
		return 0
	}
	cost, f := parseCost(text)
	switch {
	case f != nil:
		r.refuse(n, faultf(costRemedy, "%s: %s", label(n), f.message))
	case cost == 0:
		r.refuse(n, faultf("write 1 or more; what is to cost nothing stays out of match, and clients under exempt", "a cost of 0 charges nothing"))
	}
	return cost
}

func (r *reader) costRules(p draft, n *node) {
	if !r.is(n, list, costRemedy) {
		return
	}
	if len(n.items) > maxRules {
		r.refuse(n, faultf("split the policy", "there are %d cost rules, more than %d", len(n.items), maxRules))
		return
	}
	for _, item := range n.items {
		if !r.is(item, mapping, costRemedy) {
			continue
		}
		found := r.fields(item, costRuleFields)
		r.need(item, found, []string{"cost"}, map[string]string{"cost": "write cost: and a whole number"})
		var rule CostRule
		if one := found["cost"]; one != nil {
			rule.Cost = r.oneCost(one)
		}
		if methods := found["methods"]; methods != nil {
			rule.Methods = r.checked(methods, methodsRemedy, r.method)
		}
		if paths := found["paths"]; paths != nil {
			rule.Paths = r.checked(paths, pathsRemedy, r.path)
		}
		r.idleRule(p, item, &rule)
		p.Cost.Rules = append(p.Cost.Rules, rule)
	}
}

// idleRule warns of a rule that no request of the policy can reach.
func (r *reader) idleRule(p draft, n *node, rule *CostRule) {
	// Long lists are not compared with each other: what a mistake looks like is short, and this is only a warning.
	const most = 16
	for i := range p.Cost.Rules {
		earlier := &p.Cost.Rules[i]
		if len(rule.Paths)+len(rule.Methods) <= most && covered(rule.Methods, earlier.Methods, equal) &&
			covered(rule.Paths, earlier.Paths, pathCovers) {
			r.warn(n, faultf("remove it, or put it before that one", "the cost rule never applies: rules[%d] matches the same requests and comes first", i))
			return
		}
	}
	if apart(rule.Methods, p.Methods, equal) {
		r.warn(n, faultf("remove it, or add its methods to match", "the cost rule never applies: the policy matches none of its methods"))
	}
	if apart(rule.Paths, p.Paths, pathsMeet) {
		r.warn(n, faultf("remove it, or add its paths to match", "the cost rule never applies: the policy matches none of its paths"))
	}
}

// affordable refuses each written cost that is above the capacity of any of the policy's numbers: such a request would wait for
// ever. Numbers that deny all anyway count for nothing here.
func (r *reader) affordable(p draft) {
	n, least, whose := p.found["cost"], limit.Tokens(0), ""
	for _, variant := range p.Variants() {
		if b, _ := p.BudgetOf(variant); b.Capacity > 0 && (least == 0 || b.Capacity < least) {
			least, whose = b.Capacity, variant
		}
	}
	if n == nil || least == 0 {
		return
	}
	name := ""
	if whose != "" {
		name = " of " + p.titleOf(whose)
	}
	for _, one := range costNodes(n) {
		if cost, f := parseCost(one.text); f == nil && cost > least {
			r.refuse(one, faultf("lower the cost, or raise "+p.capacityField()+" to "+strconv.FormatInt(int64(cost), 10),
				"the cost %d is above the capacity%s, %d: such a request never fits", cost, name, least))
		}
	}
}

// costNodes are all places of a cost where a number stands.
func costNodes(n *node) []*node {
	if n.kind == scalar {
		return []*node{n}
	}
	var nodes []*node
	for _, item := range n.items {
		switch {
		case item.kind == scalar && (item.name == "default" || item.name == "max"):
			nodes = append(nodes, item)
		case item.name == "rules" && item.kind == list:
			for _, rule := range item.items {
				for _, field := range rule.items {
					if field.name == "cost" && field.kind == scalar {
						nodes = append(nodes, field)
					}
				}
			}
		}
	}
	return nodes
}

// headerName returns a header's canonical name, "" where it is refused. n is where to say so.
func (r *reader) headerName(n *node, name string) string {
	const remedy, most = "write a header's name, such as X-Plan", 64
	if n.kind != scalar && n.name != name {
		r.is(n, scalar, remedy)
		return ""
	}
	valid := name != "" && len(name) <= most
	for _, c := range name {
		valid = valid && (c == '-' || c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z')
	}
	if !valid {
		r.refuse(n, faultf(remedy, "%s is no header's name", shown(name)))
		return ""
	}
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	switch canonical {
	case "Host":
		r.refuse(n, faultf("match by hosts", "the header Host is not among a request's headers"))
		return ""
	case "Authorization", "Proxy-Authorization", "Cookie", "X-Api-Key":
		r.refuse(n, faultf("use user or api_key", "the header %s holds credentials, which have no place in a policy or in a key", canonical))
		return ""
	}
	return canonical
}
