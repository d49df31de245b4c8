package policy

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"

	"github.com/annona-gateway/annona/shared/limit"
)

// Matched is one policy that applies to a request, with the numbers and the name of the key that its client has.
type Matched struct {
	Policy  *Policy
	Variant string
	Cost    limit.Tokens
	Fields  []string // injective list to hash: name, algorithm, key parts and their values
	Display string   // the identity in words, to be sealed: "user=acme"
}

// Match returns the policies that apply to r in document order; none to a client that is exempt. A policy whose key part is
// absent is left out, or makes ErrMissing where it says so and is enforced; a cost that cannot be one makes ErrCost.
func (d *Document) Match(r *Request) ([]Matched, error) {
	if d.Exempts(&r.Identity) {
		return nil, nil
	}
	index := d.index
	if index == nil { // a document that was put together without Parse
		index = newIndex(d.Policies)
	}
	found := index.find(r)
	count := found.count()
	if count == 0 {
		return nil, nil
	}
	var matched []Matched
	a := asked{Request: r}
	for word, set := range found {
		for ; set != 0; set &= set - 1 {
			p := d.Policies[word*64+bits.TrailingZeros64(set)]
			if !a.has(p) {
				continue
			}
			if matched == nil {
				matched = make([]Matched, 0, count)
			}
			m, err := p.matched(&a)
			switch {
			case err == nil:
				matched = append(matched, m)
			case p.denies(err):
				return nil, fmt.Errorf("policy %s: %w", p.Name, err)
			}
		}
	}
	return matched, nil
}

// matched is what p counts a request as that it matches.
func (p *Policy) matched(a *asked) (Matched, error) {
	fields, display, err := p.fieldsFor(a)
	if err != nil {
		return Matched{}, err
	}
	cost, err := p.Cost.of(a.Request)
	if err != nil {
		return Matched{}, err
	}
	variant, _ := p.Variant(&a.Identity, a.At)
	return Matched{Policy: p, Variant: variant, Cost: cost, Fields: fields, Display: display}, nil
}

// denies tells whether a request that p cannot count fails for it. A policy in shadow denies nobody, and one that is enforced
// for a part of the keys nobody who has none.
func (p *Policy) denies(err error) bool {
	if errors.Is(err, ErrMissing) {
		return p.DenyMissing && p.Enforced && p.EnforcedPPM == 0
	}
	return p.Enforced
}

// MaxPolicies is how many policies a document may have.
const MaxPolicies = 1_000

// policySet is a set of policies by their place in the document: iterating it is document order.
type policySet [(MaxPolicies + 63) / 64]uint64

func (s *policySet) add(i int) { s[i/64] |= 1 << (i % 64) }

func (s *policySet) union(t *policySet) {
	for i := range s {
		s[i] |= t[i]
	}
}

func (s *policySet) intersect(t *policySet) {
	for i := range s {
		s[i] &= t[i]
	}
}

func (s *policySet) count() int {
	count := 0
	for _, word := range s {
		count += bits.OnesCount64(word)
	}
	return count
}

// index finds the policies of a request by a few map look-ups, however many policies there are, and without allocating. What
// few policies ask for (headers, query, claims) is looked at afterwards, policy by policy.
type index struct {
	methods, hosts, tiers, regions choice
	underHosts                     map[string]*policySet // by what stands behind "*."
	anyPath                        policySet
	exact                          map[string]*policySet
	under                          map[string]*policySet // by what stands before "/*"
	longest                        int                   // of under: no longer start of a path need be looked up
}

// choice are the policies by the values that they name of one field.
type choice struct {
	any   policySet
	named map[string]*policySet
}

func newChoice() choice { return choice{named: map[string]*policySet{}} }

func (c *choice) add(values []string, i int) {
	if len(values) == 0 {
		c.any.add(i)
	}
	for _, value := range values {
		addTo(c.named, value, i)
	}
}

// narrow leaves those of found that name value, or none.
func (c *choice) narrow(found *policySet, value string) {
	if len(c.named) == 0 {
		return
	}
	set := c.any
	if named := c.named[value]; named != nil {
		set.union(named)
	}
	found.intersect(&set)
}

func newIndex(policies []*Policy) *index {
	x := &index{
		methods: newChoice(), hosts: newChoice(), tiers: newChoice(), regions: newChoice(),
		underHosts: map[string]*policySet{}, exact: map[string]*policySet{}, under: map[string]*policySet{},
	}
	for i, p := range policies {
		x.methods.add(p.Methods, i)
		x.tiers.add(p.ForTiers, i)
		x.regions.add(p.Regions, i)
		x.addHosts(p.Hosts, i)
		x.addPaths(p.Paths, i)
	}
	return x
}

func (x *index) addHosts(hosts []string, i int) {
	if len(hosts) == 0 {
		x.hosts.any.add(i)
	}
	for _, host := range hosts {
		if suffix, ok := strings.CutPrefix(host, "*."); ok {
			addTo(x.underHosts, suffix, i)
		} else {
			addTo(x.hosts.named, host, i)
		}
	}
}

func (x *index) addPaths(paths []string, i int) {
	if len(paths) == 0 {
		x.anyPath.add(i)
	}
	for _, path := range paths {
		if prefix, ok := strings.CutSuffix(path, "/*"); ok {
			addTo(x.under, prefix, i)
			x.longest = max(x.longest, len(prefix))
		} else {
			addTo(x.exact, path, i)
		}
	}
}

func addTo(sets map[string]*policySet, key string, i int) {
	set := sets[key]
	if set == nil {
		set = &policySet{}
		sets[key] = set
	}
	set.add(i)
}

// find returns the policies that match r but for headers, query and claims.
func (x *index) find(r *Request) policySet {
	found := x.ofPath(r.Path)
	x.methods.narrow(&found, r.Method)
	x.tiers.narrow(&found, r.Tier)
	x.regions.narrow(&found, r.Region)
	if len(x.hosts.named) > 0 || len(x.underHosts) > 0 {
		hosts := x.ofHost(hostname(r.Host))
		found.intersect(&hosts)
	}
	return found
}

func (x *index) ofPath(path string) policySet {
	found := x.anyPath
	if set := x.exact[path]; set != nil {
		found.union(set)
	}
	// "/x/*" is "/x" and all under it: each start of path that ends before a slash or is all of it may stand in under.
	if len(x.under) > 0 && strings.HasPrefix(path, "/") {
		for end := 0; end <= min(len(path), x.longest); end++ {
			if end < len(path) && path[end] != '/' {
				continue
			}
			if set := x.under[path[:end]]; set != nil {
				found.union(set)
			}
		}
	}
	return found
}

func (x *index) ofHost(host string) policySet {
	found := x.hosts.any
	if len(host) > maxHost {
		return found // no name is that long
	}
	if set := x.hosts.named[host]; set != nil {
		found.union(set)
	}
	if len(x.underHosts) == 0 {
		return found
	}
	for i := 1; i < len(host); i++ {
		if host[i] != '.' {
			continue
		}
		if set := x.underHosts[host[i+1:]]; set != nil {
			found.union(set)
		}
	}
	return found
}
