package policy

import (
	"fmt"
	"math/bits"
	"strings"
)

// Matched is one policy that applies to a request, with the numbers and the name of the key that its client has.
type Matched struct {
	Policy  *Policy
	Variant string
	Fields  []string // injective list to hash: name, algorithm, key parts and their values
	Display string   // the identity in words, to be sealed: "user=acme"
}

// Match returns the policies that apply to r in document order. A policy whose key part is absent is left out, or makes
// ErrMissing where it says so and is enforced.
func (d *Document) Match(r *Request) ([]Matched, error) {
	index := d.index
	if index == nil { // a document that was put together without Parse
		index = newIndex(d.Policies)
	}
	found := index.find(r.Method, r.Path)
	count := found.count()
	if count == 0 {
		return nil, nil
	}
	matched := make([]Matched, 0, count)
	for word, set := range found {
		for ; set != 0; set &= set - 1 {
			p := d.Policies[word*64+bits.TrailingZeros64(set)]
			fields, display, err := p.FieldsFor(r)
			switch {
			case err == nil:
				variant, _ := p.Variant(r.Tier)
				matched = append(matched, Matched{Policy: p, Variant: variant, Fields: fields, Display: display})
			case p.DenyMissing && p.Enforced:
				return nil, fmt.Errorf("policy %s: %w", p.Name, err)
			}
		}
	}
	return matched, nil
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

// index finds the policies of a method and a path by a few map look-ups, however many policies there are, and without
// allocating.
type index struct {
	anyMethod policySet
	methods   map[string]*policySet
	anyPath   policySet
	exact     map[string]*policySet
	under     map[string]*policySet // by what stands before "/*"
	longest   int                   // of under: no longer start of a path need be looked up
}

func newIndex(policies []*Policy) *index {
	x := &index{methods: map[string]*policySet{}, exact: map[string]*policySet{}, under: map[string]*policySet{}}
	for i, p := range policies {
		if len(p.Methods) == 0 {
			x.anyMethod.add(i)
		}
		for _, method := range p.Methods {
			addTo(x.methods, method, i)
		}
		if len(p.Paths) == 0 {
			x.anyPath.add(i)
		}
		for _, path := range p.Paths {
			if prefix, ok := strings.CutSuffix(path, "/*"); ok {
				addTo(x.under, prefix, i)
				x.longest = max(x.longest, len(prefix))
			} else {
				addTo(x.exact, path, i)
			}
		}
	}
	return x
}

func addTo(sets map[string]*policySet, key string, i int) {
	set := sets[key]
	if set == nil {
		set = &policySet{}
		sets[key] = set
	}
	set.add(i)
}

// find returns the policies that match method and path.
func (x *index) find(method, path string) policySet {
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
	methods := x.anyMethod
	if set := x.methods[method]; set != nil {
		methods.union(set)
	}
	found.intersect(&methods)
	return found
}
