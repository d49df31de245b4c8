package policy

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/annona-gateway/annona/shared/limit"
)

// matchesOne tells whether the one policy of a document applies to r.
func matchesOne(t *testing.T, d *Document, r *Request) bool {
	t.Helper()
	matched, err := d.Match(r)
	if err != nil {
		t.Fatal(err)
	}
	return len(matched) == 1
}

// Fields are all needed, one of the entries of each is enough, and an empty field is any.
func TestMatchFields(t *testing.T) {
	acme := Request{
		Identity: Identity{User: "acme", Tier: "gold", Claims: map[string]string{"org": "o1", "plan": "p"}},
		Method:   "GET", Path: "/", Host: "API.Example.com:8443", Query: "a=1&b=2&b=3&c=&d=%3B&e;f",
		Header: map[string][]string{"X-Plan": {"free"}, "X-Many": {"one", "two"}, "X-None": {""}}, Region: "eu",
	}
	for match, want := range map[string]bool{
		"hosts: []": true, "hosts: [api.example.com]": true, "hosts: [API.EXAMPLE.COM]": true, "hosts: [other.com, api.example.com]": true,
		"hosts: [\"*.example.com\"]": true, "hosts: [\"*.com\"]": true, "hosts: [\"*.api.example.com\"]": false, "hosts: [example.com]": false,
		"hosts: [\"*.ample.com\"]": false, "hosts: [other.com]": false,
		"methods: [GET, POST]": true, "methods: [POST]": false,
		"headers: {}": true, "headers: {x-plan: free}": true, "headers: {X-Plan: [trial, free]}": true, "headers: {X-Plan: Free}": false,
		"headers: {X-Plan: \"*\"}": true, "headers: {X-Absent: \"*\"}": false, "headers: {X-None: \"*\"}": false, "headers: {X-Many: two}": true,
		"headers: {X-Many: \"one, two\"}": false, "headers: {X-Plan: free, X-Many: one}": true, "headers: {X-Plan: free, X-Many: three}": false,
		"query: {}": true, "query: {a: 1}": true, "query: {a: [7, 1]}": true, "query: {b: 3}": true, "query: {a: 1, b: 7}": false,
		"query: {c: \"*\"}": false, "query: {d: \";\"}": true, "query: {e: \"*\"}": false, "query: {A: 1}": false,
		"tiers: []": true, "tiers: [silver, gold]": true, "tiers: [silver]": false, "tiers: [Gold]": false,
		"claims: {}": true, "claims: {org: o1}": true, "claims: {org: [o2, o1], plan: p}": true, "claims: {org: o1, plan: q}": false, "claims: {seat: \"*\"}": false,
		"regions: []": true, "regions: [us, eu]": true, "regions: [us]": false,
		"hosts: [api.example.com], methods: [GET], paths: [/], headers: {X-Plan: free}, query: {a: 1}, tiers: [gold], claims: {org: o1}, regions: [eu, us]": true,
		"hosts: [api.example.com], methods: [GET], paths: [/], headers: {X-Plan: free}, query: {a: 2}, tiers: [gold], claims: {org: o1}, regions: [eu, us]": false,
	} {
		d := mustParse(t, policyWith("match: {"+match+"}"))
		if got := matchesOne(t, d, &acme); got != want {
			t.Errorf("match {%s} = %t, want %t", match, got, want)
		}
		byHand := &Document{Policies: d.Policies}
		if got := matchesOne(t, byHand, &acme); got != want {
			t.Errorf("match {%s} of a document that was put together = %t, want %t", match, got, want)
		}
	}
}

func TestMatchHosts(t *testing.T) {
	long := strings.Repeat("a.", 30_000) + "example"
	for pattern, hosts := range map[string]map[string]bool{
		"a.example":   {"a.example": true, "A.EXAMPLE.:80": true, "b.a.example": false, "a.example.b": false, "": false, "a.example:": true},
		"*.example":   {"a.example": true, "b.a.example": true, "example": false, ".example": false, "aexample": false, long: false},
		"*.a.example": {"b.a.example:1": true, "a.example": false, "xa.example": false},
	} {
		d := mustParse(t, policyWith("match: {hosts: [\""+pattern+"\"]}"))
		for host, want := range hosts {
			if got := matchesOne(t, d, &Request{Identity: Identity{User: "u"}, Host: host, Method: "GET", Path: "/"}); got != want {
				t.Errorf("host %q matches %q = %t, want %t", pattern, host, got, want)
			}
		}
	}
}

func TestMatchExempt(t *testing.T) {
	d := mustParse(t, exempting("{ip: 10.0.0.0/8}, {ip: \"2001:db8::1\"}, {user: monitor}, {api_key: "+strings.ToUpper(hexKey)+"}, {tier: staff}, {user: half, tier: night}, {\"claim:org\": ops}"))
	for name, row := range map[string]struct {
		id   Identity
		want bool
	}{
		"nobody of them":     {Identity{User: "acme", IP: netip.MustParseAddr("11.0.0.1")}, false},
		"address":            {Identity{User: "acme", IP: netip.MustParseAddr("10.1.2.3")}, true},
		"mapped address":     {Identity{User: "acme", IP: netip.MustParseAddr("::ffff:10.1.2.3")}, true},
		"one IPv6":           {Identity{User: "acme", IP: netip.MustParseAddr("2001:db8::1")}, true},
		"another IPv6":       {Identity{User: "acme", IP: netip.MustParseAddr("2001:db8::2")}, false},
		"no address":         {Identity{User: "acme"}, false},
		"user":               {Identity{User: "monitor"}, true},
		"user in capitals":   {Identity{User: "Monitor"}, false},
		"api key":            {Identity{User: "a", APIKey: hexKey}, true},
		"tier":               {Identity{User: "a", Tier: "staff"}, true},
		"half of two fields": {Identity{User: "half", Tier: "day"}, false},
		"both":               {Identity{User: "half", Tier: "night"}, true},
		"claim":              {Identity{User: "a", Claims: map[string]string{"org": "ops"}}, true},
		"another claim":      {Identity{User: "a", Claims: map[string]string{"org": "dev"}}, false},
	} {
		if got := d.Exempts(&row.id); got != row.want {
			t.Errorf("%s: Exempts = %t, want %t", name, got, row.want)
		}
		if got := !matchesOne(t, d, &Request{Identity: row.id, Method: "GET", Path: "/"}); got != row.want {
			t.Errorf("%s: Match leaves all policies out: %t, want %t", name, got, row.want)
		}
	}
	// Also of a 401 an exempt client hears nothing.
	strict := mustParse(t, strings.Replace(exempting("{ip: 10.0.0.0/8}"), "owner: x", "missing: deny", 1))
	if matched, err := strict.Match(&Request{Identity: Identity{IP: netip.MustParseAddr("10.0.0.1")}}); err != nil || len(matched) != 0 {
		t.Errorf("Match of an exempt client = %v, %v", matched, err)
	}
}

func TestFieldsForNamedParts(t *testing.T) {
	r := &Request{
		Identity: Identity{User: "acme", Claims: map[string]string{"org": "o1"}}, Query: "q=a&q=b&z=%20",
		Header: map[string][]string{"X-Org": {"o"}, "X-Long": {strings.Repeat("é", 40_000)}, "X-Two": {"1", "2"}},
	}
	for key, want := range map[string][]string{
		`"header:x-org"`:                           {"header:X-Org", "o"},
		`"header:X-Two"`:                           {"header:X-Two", "1, 2"},
		`"query:q"`:                                {"query:q", "a, b"},
		`"claim:org"`:                              {"claim:org", "o1"},
		`"claim:org", "query:z", "header:X-Org"`:   {"header:X-Org", "o", "query:z", " ", "claim:org", "o1"},
		`"query:z", "claim:org", user, "query:q"`:  {"user", "acme", "query:q", "a, b", "query:z", " ", "claim:org", "o1"},
		`"header:X-Absent"`:                        nil,
		`"query:absent"`:                           nil,
		`"claim:absent", user`:                     nil,
		`"query:q", user, "claim:org", "query:no"`: nil,
	} {
		p := mustParse(t, keyed(key, "owner: x")).Policies[0]
		fields, _, err := p.FieldsFor(r)
		if (want == nil) != errors.Is(err, ErrMissing) || (err == nil && !slices.Equal(fields[2:], want)) {
			t.Errorf("key [%s]: FieldsFor = %q, %v, want %q", key, fields, err, want)
		}
	}
	fields, display, err := (&Policy{Parts: []string{"header:X-Long"}}).FieldsFor(r)
	if err != nil || len(fields[3]) != 80_000 || len(display) > maxDisplay+len("…") {
		t.Errorf("a long value: %d bytes to hash, %d to display, %v", len(fields[3]), len(display), err)
	}
}

// The design writes such names without quotes.
func TestParseReadsNamesWithoutQuotes(t *testing.T) {
	d := mustParse(t, strings.Replace(policyWith("overrides: [{key: {\"claim:org\": a}, rate: 1/s}]"), "[user]", "[header:X-A, query:q, claim:org]", 1))
	if p := d.Policies[0]; !slices.Equal(p.Parts, []string{"header:X-A", "query:q", "claim:org"}) || p.Overrides[0].Key.Claims["org"] != "a" {
		t.Errorf("Parse reads %q, %+v", p.Parts, p.Overrides)
	}
}

func TestParseWarnsOfACrowd(t *testing.T) {
	source := "schema: 1\npolicies:\n"
	for i := range MaxMatches + 1 {
		source += "  - {name: p" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + ", key: [user], algorithm: token_bucket, rate: " + strings.Repeat("1", 1+i%5) + "/s, scope: region, on_failure: closed, enforce: 0%}\n"
	}
	_, problems := Parse([]byte(source))
	if len(problems) != 1 || !strings.Contains(problems[0].Message, "33 policies match every request") {
		t.Errorf("Parse says %v", problems)
	}
}

func TestParseReadsSelections(t *testing.T) {
	d := mustParse(t, `schema: 1
exempt: [{ip: 10.0.0.0/8}]
policies:
  - name: p
    match: {hosts: [A.example], headers: {x-a: [b, c]}, query: {q: "*"}, tiers: [gold], claims: {org: o}, regions: [eu, us]}
    key: ["claim:org"]
    algorithm: token_bucket
    rate: 100/s
    scope: region
    on_loss: empty
    on_failure: closed
    enforce: 12.5%
    cost: {default: 2, rules: [{methods: [POST], paths: ["/a/*"], cost: 5}], header: x-cost, max: 50}
`)
	want := &Policy{
		Name: "p", Hosts: []string{"a.example"}, Headers: []Attribute{{Name: "X-A", Values: []string{"b", "c"}}}, Query: []Attribute{{Name: "q", Any: true}},
		ForTiers: []string{"gold"}, Claims: []Attribute{{Name: "org", Values: []string{"o"}}}, Regions: []string{"eu", "us"}, Parts: []string{"claim:org"},
		Algorithm: limit.TokenBucket, Budget: limit.Budget{Capacity: 100, Rate: 100_000_000}, RateText: "100 per second",
		Cost:  Cost{Default: 2, Rules: []CostRule{{Methods: []string{"POST"}, Paths: []string{"/a/*"}, Cost: 5}}, Header: "X-Cost", Max: 50},
		Scope: RegionOnly, OnLoss: LossEmpty, OnRedis: Closed, OnAllocator: Local, AllotmentPPM: 100_000, Enforced: true, EnforcedPPM: 125_000,
	}
	if diff := cmp.Diff(want, d.Policies[0], cmpopts.IgnoreUnexported(Override{})); diff != "" {
		t.Errorf("Parse (-want +got):\n%s", diff)
	}
	if got := d.Policies[0].MaxCost(); got != 50 {
		t.Errorf("MaxCost = %d, want 50", got)
	}
	if got := d.CostHeaders(); !slices.Equal(got, []string{"X-Cost"}) {
		t.Errorf("CostHeaders = %v", got)
	}
}
