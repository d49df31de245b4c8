package policy

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

// Case is a request and what a document is expected to make of it, for `annona policy test`.
type Case struct {
	Name   string
	Line   int
	Column int
	// Target is the path as a client would send it, with a query if there is one: the gateway's to normalise. Request is the rest.
	Target  string
	Request Request
	Expect  Expectation
}

// Expectation is what a case says about the outcome; what it leaves out may be anything.
type Expectation struct {
	// Policies are those that match, in document order; nil: not said.
	Policies []string
	// Exempt is whether the client is; nil: not said.
	Exempt *bool
	// Status is 400 or 401 for a request that fails because of a policy; 0: it does not.
	Status int
	// Cost is by policy, under "" that of every policy that matches; Variant, Key and Enforced are by policy.
	Cost     map[string]limit.Tokens
	Variant  map[string]string
	Key      map[string]string
	Enforced map[string]bool
	// Limit is what a policy admits at once, in a window or at the same time; Resets is when its window ends. Both by policy.
	Limit  map[string]limit.Tokens
	Resets map[string]time.Time
}

// MaxCases is how many cases one file may have.
const MaxCases = 10_000

var (
	caseFields        = []string{"name", "request", "expect"}
	caseRequestFields = []string{
		"method", "path", "host", "headers", "user", "api_key", "ip", "tier", "claims", "route", "region", "trusted_peer", "at",
	}
	expectFields = []string{"policies", "exempt", "status", "cost", "variant", "key", "enforced", "limit", "resets"}
)

const (
	casesRemedy  = "write a list of {name: …, request: {path: /v1/x, user: acme}, expect: {policies: [api-per-user]}}"
	expectRemedy = "write what must come of it, such as expect: {policies: [api-per-user], cost: 5}"
)

// ParseCases reads a file of cases, YAML or JSON. Problems are errors, all at once; cases are nil if there is one.
func ParseCases(source []byte) ([]Case, Problems) {
	var r reader
	var cases []Case
	if root, at, f := readSource(source); f != nil {
		r.problems = Problems{{Severity: SeverityError, Line: at.line, Column: at.column, Message: f.message, Remedy: casesRemedy}}
	} else {
		cases = r.cases(root)
	}
	problems := r.problems.sorted()
	if !problems.Refused() {
		return cases, nil
	}
	for i := range problems {
		problems[i].Message = strings.ReplaceAll(problems[i].Message, "the document", "the file")
	}
	return nil, problems
}

func (r *reader) cases(root *node) []Case {
	if !r.is(root, list, casesRemedy) {
		return nil
	}
	if len(root.items) > MaxCases {
		r.refuse(root, faultf("split the file", "there are %d cases, more than %d", len(root.items), MaxCases))
		return nil
	}
	cases := make([]Case, 0, len(root.items))
	for _, item := range root.items {
		if !r.is(item, mapping, casesRemedy) {
			continue
		}
		found := r.fields(item, caseFields)
		r.need(item, found, caseFields, map[string]string{"name": "write name: and what the case shows", "request": casesRemedy, "expect": expectRemedy})
		c := Case{Line: item.at.line, Column: item.at.column, Target: "/"}
		if name := found["name"]; name != nil {
			c.Name = r.value(name)
		}
		if request := found["request"]; request != nil {
			r.caseRequest(&c, request)
		}
		if expect := found["expect"]; expect != nil {
			r.expectation(&c.Expect, expect)
		}
		cases = append(cases, c)
	}
	return cases
}

func (r *reader) caseRequest(c *Case, n *node) {
	if !r.is(n, mapping, casesRemedy) {
		return
	}
	q := &c.Request
	q.Method = "GET"
	found := r.fields(n, caseRequestFields)
	for _, name := range caseRequestFields {
		field := found[name]
		if field == nil {
			continue
		}
		switch name {
		case "method":
			q.Method = r.value(field)
		case "path":
			c.Target, _ = r.text(field, "write the path as a client sends it, such as /v1/x?q=1")
		case "host":
			q.Host = r.value(field)
		case "headers":
			q.Header = r.caseHeaders(field)
		case "user":
			q.User = r.value(field)
		case "api_key":
			q.APIKey = r.apiKey(field)
		case "ip":
			q.IP = r.address(field)
		case "tier":
			q.Tier = r.token(field, tierLetters)
		case "claims":
			q.Claims = r.texted(field)
		case "route":
			q.Route = r.value(field)
		case "region":
			q.Region = r.token(field, regionLetters)
		case "trusted_peer":
			q.TrustedPeer = r.truth(field)
		case "at":
			q.At = r.instant(field)
		}
	}
}

func (r *reader) expectation(e *Expectation, n *node) {
	if !r.is(n, mapping, expectRemedy) {
		return
	}
	found := r.fields(n, expectFields)
	if len(found) == 0 {
		r.refuse(n, faultf(expectRemedy, "nothing is expected, so that the case always passes"))
	}
	for _, name := range expectFields {
		field := found[name]
		if field == nil {
			continue
		}
		switch name {
		case "policies":
			e.Policies = append([]string{}, r.checked(field, "write a list of names, [] for none", func(n *node) { r.token(n, policyLetters) })...)
		case "exempt":
			exempt := r.truth(field)
			e.Exempt = &exempt
		case "status":
			e.Status, _ = strconv.Atoi(r.word(field, []string{"400", "401"}))
		case "cost":
			e.Cost = r.caseCost(field)
		case "variant":
			e.Variant = r.texted(field)
		case "key":
			e.Key = r.texted(field)
		case "enforced":
			e.Enforced = map[string]bool{}
			r.each(field, func(item *node) { e.Enforced[item.name] = r.truth(item) })
		case "limit":
			e.Limit = map[string]limit.Tokens{}
			r.each(field, func(item *node) { e.Limit[item.name], _ = r.amount(item, limit.MaxWindowTokens) })
		case "resets":
			e.Resets = map[string]time.Time{}
			r.each(field, func(item *node) { e.Resets[item.name] = r.instant(item) })
		}
	}
}

// caseCost reads `5`, of every policy that matches, or {POLICY: 5}.
func (r *reader) caseCost(n *node) map[string]limit.Tokens {
	costs := map[string]limit.Tokens{}
	read := func(item *node, name string) {
		if text, ok := r.text(item, "write a whole number, or {POLICY: NUMBER}"); ok {
			costs[name] = valueOf(r, item, text, parseCost)
		}
	}
	if n.kind == scalar {
		read(n, "")
		return costs
	}
	r.each(n, func(item *node) { read(item, item.name) })
	return costs
}

// each calls read for each item of a mapping of names that stand once.
func (r *reader) each(n *node, read func(item *node)) {
	if !r.is(n, mapping, "write {NAME: VALUE}") {
		return
	}
	seen := make(map[string]bool, len(n.items))
	for _, item := range n.items {
		if seen[item.name] {
			r.refuseName(item, faultf("remove one", "%s stands twice", shown(item.name)))
		}
		seen[item.name] = true
		read(item)
	}
}

// texted reads {NAME: VALUE}. A value may be empty: a policy's own numbers are the variant "".
func (r *reader) texted(n *node) map[string]string {
	texts := map[string]string{}
	r.each(n, func(item *node) { texts[item.name], _ = r.text(item, "write {NAME: VALUE}") })
	return texts
}

// caseHeaders reads {NAME: VALUE} and {NAME: [VALUE, VALUE]}: all of them are sent.
func (r *reader) caseHeaders(n *node) map[string][]string {
	headers := map[string][]string{}
	r.each(n, func(item *node) {
		const remedy = "write {NAME: VALUE}, or {NAME: [VALUE, VALUE]} for several of one name"
		named := *item
		named.at = item.nameAt
		name := r.headerName(&named, item.name)
		if item.kind == scalar {
			headers[name] = append(headers[name], item.text)
			return
		}
		values, _ := r.texts(item, maxEntries, remedy)
		for _, value := range values {
			headers[name] = append(headers[name], value.text)
		}
	})
	return headers
}

func (r *reader) address(n *node) netip.Addr {
	text, ok := r.text(n, "write one address, such as 192.0.2.7")
	if !ok {
		return netip.Addr{}
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		r.refuse(n, faultf("write one address, such as 192.0.2.7", "%s is no address", shown(text)))
	}
	return address
}

func (r *reader) truth(n *node) bool { return r.word(n, []string{"true", "false"}) == "true" }
