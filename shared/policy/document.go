package policy

import (
	"fmt"
	"strings"
)

// Document is one revision of the policy document, validated.
type Document struct {
	// Revision is the store's; 0 for a file that no store has numbered.
	Revision uint64
	// Source is the document as written, comments kept.
	Source []byte
	// Exempt are the clients to whom no policy applies.
	Exempt   []Selector
	Policies []*Policy

	index  *index
	places map[variantOf]spot // where each policy's numbers stand, for Check
}

type variantOf struct{ policy, variant string }

type spot struct {
	at   place
	path string
}

// Policy returns the policy called name, or nil.
func (d *Document) Policy(name string) *Policy {
	for _, p := range d.Policies {
		if p.Name == name {
			return p
		}
	}
	return nil
}

var documentFields = []string{"schema", "exempt", "policies"}

const schemaRemedy = "write schema: 1"

// Parse reads a policy document (YAML, of which JSON is a part). It returns every problem at once, in document order; the
// document is nil if one of them is an error.
func Parse(source []byte) (*Document, Problems) {
	root, at, f := readSource(source)
	if f != nil {
		return nil, Problems{{Severity: SeverityError, Line: at.line, Column: at.column, Message: f.message, Remedy: f.remedy}}
	}
	var r reader
	d := r.document(root)
	problems := r.problems.sorted()
	if problems.Refused() {
		return nil, problems
	}
	d.Source = source
	d.index = newIndex(d.Policies)
	return d, problems
}

func (r *reader) document(root *node) *Document {
	d := &Document{places: map[variantOf]spot{}}
	if !r.is(root, mapping, "start with `schema: 1` and `policies:`") {
		return d
	}
	found := r.fields(root, documentFields)
	r.need(root, found, []string{"schema", "policies"}, map[string]string{
		"schema": schemaRemedy, "policies": "write `policies:` and a list of policies under it",
	})
	if n := found["schema"]; n != nil {
		if text, ok := r.text(n, schemaRemedy); ok && text != "1" {
			r.refuse(n, faultf(schemaRemedy, "schema %s is not known", shown(text)))
		}
	}
	if n := found["exempt"]; n != nil {
		r.exempt(d, n)
	}
	if n := found["policies"]; n != nil {
		r.policies(d, n)
	}
	return d
}

func (r *reader) policies(d *Document, n *node) {
	if !r.is(n, list, "write each policy as `- name: …`") {
		return
	}
	if len(n.items) == 0 {
		r.warn(n, faultf("add a policy", "there are no policies: nothing is limited"))
	}
	if len(n.items) > MaxPolicies {
		r.refuse(n, faultf("say more with fewer policies, by tiers and paths", "there are %d policies, more than %d", len(n.items), MaxPolicies))
		return
	}
	first := make(map[string]int, len(n.items))
	names := make([]*node, 0, len(n.items))
	for _, item := range n.items {
		p, named := r.policy(d, item)
		if p == nil || named == nil {
			continue
		}
		if line, taken := first[p.Name]; taken {
			r.refuse(named, faultf("give each policy a name of its own", "the name %s stands twice (first on line %d)", p.Name, line))
		} else {
			first[p.Name] = named.at.line
		}
		d.Policies, names = append(d.Policies, p), append(names, named)
	}
	r.outdone(d.Policies, names)
	r.candidates(d)
	r.crowded(n, d.Policies)
}

// maxName is the longest name of a policy or a tier in bytes.
const maxName = 64

const (
	policyLetters = "abcdefghijklmnopqrstuvwxyz0123456789._-"
	tierLetters   = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + policyLetters
)

// token reads a name made of letters.
func (r *reader) token(n *node, letters string) string {
	remedy := fmt.Sprintf("write 1 to %d of %s", maxName, letters)
	text, ok := r.text(n, remedy)
	if !ok {
		return ""
	}
	if f := tokenFault(text, letters, remedy); f != nil {
		r.refuse(n, f)
		return ""
	}
	return text
}

func tokenFault(text, letters, remedy string) *fault {
	switch {
	case text == "":
		return faultf(remedy, "the name is empty")
	case len(text) > maxName:
		return faultf(remedy, "the name %s is longer than %d characters", shown(text), maxName)
	}
	for _, c := range text {
		if !strings.ContainsRune(letters, c) {
			return faultf(remedy, "the name %s has the character %q", shown(text), c)
		}
	}
	return nil
}
