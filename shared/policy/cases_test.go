package policy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/annona-gateway/annona/shared/limit"
)

const cases = `# what the limits promise
- name: everything at once
  request:
    method: POST
    path: /v1/x?q=1
    host: api.example
    headers: {x-plan: free, X-Many: [a, b]}
    user: acme
    api_key: ` + hexKey + `
    ip: 192.0.2.7
    tier: gold
    claims: {org: o1}
    route: api
    region: eu
    trusted_peer: true
    at: 2026-01-15T00:00:00+01:00
  expect: {policies: [a, b], exempt: false, cost: {a: 5}, variant: {a: "", b: "tier:gold"}, key: {a: user=acme}, enforced: {a: true, b: false}}
- {name: nobody, request: {}, expect: {policies: [], cost: 1}}
- {name: refused, request: {path: /}, expect: {status: 401}}
`

func TestParseCases(t *testing.T) {
	got, problems := ParseCases([]byte(cases))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	no := false
	want := []Case{{
		Name: "everything at once", Line: 2, Column: 3, Target: "/v1/x?q=1",
		Request: Request{
			Identity: Identity{User: "acme", APIKey: hexKey, Tier: "gold", Claims: map[string]string{"org": "o1"}, IP: netip.MustParseAddr("192.0.2.7")},
			Method:   "POST", Host: "api.example", Header: map[string][]string{"X-Plan": {"free"}, "X-Many": {"a", "b"}}, Route: "api", Region: "eu", TrustedPeer: true,
			At: time.Date(2026, 1, 14, 23, 0, 0, 0, time.UTC),
		},
		Expect: Expectation{
			Policies: []string{"a", "b"}, Exempt: &no, Cost: map[string]limit.Tokens{"a": 5}, Variant: map[string]string{"a": "", "b": "tier:gold"},
			Key: map[string]string{"a": "user=acme"}, Enforced: map[string]bool{"a": true, "b": false},
		},
	}, {
		Name: "nobody", Line: 18, Column: 3, Target: "/", Request: Request{Method: "GET"}, Expect: Expectation{Policies: []string{}, Cost: map[string]limit.Tokens{"": 1}},
	}, {
		Name: "refused", Line: 19, Column: 3, Target: "/", Request: Request{Method: "GET"}, Expect: Expectation{Status: 401},
	}}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("ParseCases (-want +got):\n%s", diff)
	}
}

func TestParseCasesRefuses(t *testing.T) {
	one := func(request, expect string) string {
		return "- name: x\n  request: " + request + "\n  expect: " + expect + "\n"
	}
	for source, want := range map[string]string{
		"":                                      "1:1: error: the file is empty",
		"a: b\n":                                "1:1: error: the file is a mapping, not a list",
		"- a\n":                                 "1:3: error: the file[0] is a single value",
		"- name: x\n":                           "1:3: error: request is missing",
		one("{}", "{}"):                         "3:11: error: nothing is expected",
		one("{usr: a}", "{status: 401}"):        "2:13: error: unknown field usr; did you mean user?",
		one("{ip: a}", "{status: 401}"):         "2:17: error: a is no address",
		one("{api_key: a}", "{status: 401}"):    "2:22: error: this api_key is no SHA-256",
		one("{at: noon}", "{status: 401}"):      "2:17: error: noon is no instant",
		one("{trusted_peer: 1}", "{cost: 1}"):   "2:27: error: trusted_peer cannot be 1; write true or false",
		one("{headers: {\"a b\": c}}", "{}"):    "2:23: error: \"a b\" is no header's name",
		one("{}", "{status: 200}"):              "3:20: error: status cannot be 200",
		one("{}", "{cost: -1}"):                 "3:18: error: -1 is negative",
		one("{}", "{cost: {a: b}}"):             "3:22: error: b is no whole number",
		one("{}", "{policies: a}"):              "3:22: error: policies is a single value",
		one("{}", "{variant: {a: x, a: y}}"):    "3:28: error: a stands twice",
		one("{}", "{polices: [a]}"):             "3:12: error: unknown field polices; did you mean policies?",
		strings.Repeat("- a\n", MaxCases+1):     "1:1: error: there are 10001 cases",
		"- name: x\n  name: y\n  request: {}\n": "2:3: error: name stands twice",
	} {
		got, problems := ParseCases([]byte(source))
		if got != nil || !strings.Contains(problems.Err().Error(), want) {
			t.Errorf("ParseCases of\n%.200s\nsays %v, want %s", source, problems, want)
		}
	}
}

// FuzzCases: no input panics, and what is refused is refused with a place and a remedy.
func FuzzCases(f *testing.F) {
	f.Add([]byte(cases))
	f.Add([]byte("- {name: x, request: {headers: {a: [b, c]}}, expect: {cost: {a: 1}}}"))
	f.Fuzz(func(t *testing.T, source []byte) {
		got, problems := ParseCases(source)
		if got != nil && len(problems) > 0 || len(got) > MaxCases {
			t.Errorf("%d cases with problems %v", len(got), problems)
		}
		for _, p := range problems {
			if p.Line < 1 || p.Column < 1 || p.Message == "" || p.Remedy == "" || strings.ContainsAny(p.String()+p.Path, "\n\r") {
				t.Errorf("problem %q", p)
			}
		}
	})
}
