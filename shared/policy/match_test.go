package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// matches is the dumb twin of the index: whether p is for method and path.
func matches(p *Policy, method, path string) bool {
	if len(p.Methods) > 0 && !slices.Contains(p.Methods, method) {
		return false
	}
	return len(p.Paths) == 0 || slices.ContainsFunc(p.Paths, func(pattern string) bool {
		prefix, under := strings.CutSuffix(pattern, "/*")
		if !under {
			return path == pattern
		}
		return strings.HasPrefix(path, "/") && (path == prefix || strings.HasPrefix(path, prefix+"/"))
	})
}

func TestMatchPaths(t *testing.T) {
	for pattern, paths := range map[string]map[string]bool{
		"/x/*":   {"/x": true, "/x/": true, "/x/a": true, "/x/a/b": true, "/xa": false, "/": false, "/X": false, "x": false, "": false, "/y/x/a": false},
		"/x":     {"/x": true, "/x/": false, "/x/a": false, "/X": false},
		"/x/":    {"/x/": true, "/x": false, "/x/a": false},
		"/":      {"/": true, "/x": false, "": false},
		"/*":     {"/": true, "/x": true, "/x/y": true, "": false, "x": false},
		"/a/b/*": {"/a": false, "/a/b": true, "/a/b/c": true, "/a/bc": false},
		"/%2f/*": {"/%2f/a": true, "///a": false},
	} {
		index := newIndex([]*Policy{{Paths: []string{pattern}}})
		for path, want := range paths {
			found := index.find(&Request{Method: "GET", Path: path})
			if got := found.count() == 1; got != want {
				t.Errorf("%q matches %q = %t, want %t", pattern, path, got, want)
			}
		}
	}
}

func TestMatchMethods(t *testing.T) {
	d := mustParse(t, policyWith("match: {methods: [GET, PURGE]}"))
	for method, want := range map[string]int{"GET": 1, "PURGE": 1, "get": 0, "POST": 0, "": 0} {
		matched, err := d.Match(&Request{Identity: Identity{User: "a"}, Method: method, Path: "/"})
		if err != nil || len(matched) != want {
			t.Errorf("Match of %q = %d policies, %v, want %d", method, len(matched), err, want)
		}
	}
}

func TestMatchKeepsDocumentOrder(t *testing.T) {
	var policies []*Policy
	for i := range MaxPolicies {
		p := &Policy{Name: fmt.Sprint("p", i), Parts: []string{"all"}}
		switch i % 4 {
		case 0:
			p.Paths = []string{"/a/*"}
		case 1:
			p.Paths, p.Methods = []string{"/a/b"}, []string{"GET"}
		case 2:
			p.Methods = []string{"POST"}
		}
		policies = append(policies, p)
	}
	d := &Document{Policies: policies} // one that Parse did not make works too
	matched, err := d.Match(&Request{Method: "GET", Path: "/a/b"})
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, m := range matched {
		got = append(got, m.Policy.Name)
	}
	for _, p := range policies {
		if matches(p, "GET", "/a/b") {
			want = append(want, p.Name)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMatchMissingIdentity(t *testing.T) {
	anyone := &Request{Method: "GET", Path: "/"}
	if matched, err := mustParse(t, policyWith("missing: skip")).Match(anyone); err != nil || len(matched) != 0 {
		t.Errorf("missing: skip: Match = %v, %v, want none", matched, err)
	}
	_, err := mustParse(t, policyWith("missing: deny")).Match(anyone)
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "policy p") {
		t.Errorf("missing: deny: Match = %v, want ErrMissing that names the policy", err)
	}
	// A shadow policy denies nobody, 401 included.
	if matched, err := mustParse(t, policyWith("missing: deny\n    enforce: 0%")).Match(anyone); err != nil || len(matched) != 0 {
		t.Errorf("missing: deny in shadow: Match = %v, %v, want none", matched, err)
	}
}

func TestFieldsForEveryPart(t *testing.T) {
	whole := Request{
		Identity: Identity{User: "acme", APIKey: "5e1f", Tier: "premium", IP: netip.MustParseAddr("::ffff:10.0.0.1")},
		Method:   "GET", Path: "/", Route: "api",
	}
	for key, want := range map[string]struct {
		fields  []string
		display string
	}{
		"user":          {[]string{"user", "acme"}, "user=acme"},
		"api_key":       {[]string{"api_key", "5e1f"}, "api_key=5e1f"},
		"ip":            {[]string{"ip", "10.0.0.1"}, "ip=10.0.0.1"},
		"tier, route":   {[]string{"tier", "premium", "route", "api"}, "tier=premium,route=api"},
		"method, user":  {[]string{"user", "acme", "method", "GET"}, "user=acme,method=GET"},
		"ip, user":      {[]string{"user", "acme", "ip", "10.0.0.1"}, "user=acme,ip=10.0.0.1"},
		"user, ip":      {[]string{"user", "acme", "ip", "10.0.0.1"}, "user=acme,ip=10.0.0.1"}, // order in the document changes no key
		"all":           {[]string{"all", ""}, "all"},
		"user, api_key": {[]string{"user", "acme", "api_key", "5e1f"}, "user=acme,api_key=5e1f"},
	} {
		p := mustParse(t, policyWith("key: ["+key+"]")).Policies[0]
		fields, display, err := p.FieldsFor(&whole)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(append([]string{"p", "token_bucket"}, want.fields...), fields); diff != "" || display != want.display {
			t.Errorf("key [%s]: FieldsFor = %q, %q, want %q, %q", key, fields, display, want.fields, want.display)
		}
		_, _, err = p.FieldsFor(&Request{})
		if missing := errors.Is(err, ErrMissing); missing != (key != "all") {
			t.Errorf("key [%s]: FieldsFor nobody = %v", key, err)
		}
	}
	future := Policy{Name: "p", Parts: []string{"user", "claim:org"}}
	if _, _, err := future.FieldsFor(&whole); !errors.Is(err, ErrMissing) {
		t.Errorf("FieldsFor with an unknown part = %v, want ErrMissing: a shorter key would be another bucket", err)
	}
}

func TestFieldsForCanonicalAddress(t *testing.T) {
	p := &Policy{Parts: []string{"ip"}}
	for address, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "2001:DB8:0::1": "2001:db8::1", "fe80::1%eth0": "fe80::1",
	} {
		fields, _, err := p.FieldsFor(&Request{Identity: Identity{IP: netip.MustParseAddr(address)}})
		if err != nil || fields[3] != want {
			t.Errorf("FieldsFor %s = %q, %v, want %s", address, fields, err, want)
		}
	}
}

// FuzzMatch compares the index with its dumb twin, over policies made of fuzzed patterns.
func FuzzMatch(f *testing.F) {
	f.Add("/x/* /x /y /*", "GET  POST", "GET", "/x/y")
	f.Add("/x/", "", "", "")
	f.Add("/a/b/*", "GET", "GET", "/a/b")
	f.Fuzz(func(t *testing.T, patterns, methods, method, path string) {
		var policies []*Policy
		names := strings.Split(methods, " ")
		for i, pattern := range strings.Split(patterns, " ") {
			if len(policies) == 64 {
				break
			}
			p := &Policy{}
			if strings.HasPrefix(pattern, "/") { // Parse refuses others
				p.Paths = []string{pattern, "/always"}
			}
			if name := names[i%len(names)]; name != "" {
				p.Methods = []string{name}
			}
			policies = append(policies, p)
		}
		found := newIndex(policies).find(&Request{Method: method, Path: path})
		for i, p := range policies {
			if got, want := found[0]&(1<<i) != 0, matches(p, method, path); got != want {
				t.Errorf("policy %q %q matches %q %q = %t, want %t", p.Methods, p.Paths, method, path, got, want)
			}
			for _, pattern := range p.Paths {
				// What warnings and cost rules go by is the same matching, one pattern at a time.
				if one := matches(&Policy{Paths: []string{pattern}}, "", path); pathMatches(pattern, path) != one {
					t.Errorf("pathMatches(%q, %q) = %t", pattern, path, !one)
				}
				for _, other := range policies[0].Paths {
					if pathCovers(pattern, other) && pathMatches(other, path) && !pathMatches(pattern, path) {
						t.Errorf("%q covers %q, but only the latter matches %q", pattern, other, path)
					}
				}
			}
		}
	})
}

// FuzzMatchHost compares the index with its dumb twin.
func FuzzMatchHost(f *testing.F) {
	f.Add("*.example a.example", "A.example.:80")
	f.Add("*.b.c *.c", "a.b.c")
	f.Add("*.a", "..a")
	f.Fuzz(func(t *testing.T, patterns, host string) {
		var policies []*Policy
		for pattern := range strings.SplitSeq(strings.ToLower(patterns), " ") {
			if len(policies) < 64 && pattern != "" {
				policies = append(policies, &Policy{Hosts: []string{pattern}})
			}
		}
		found := newIndex(policies).find(&Request{Host: host})
		name := hostname(host)
		for i, p := range policies {
			suffix, under := strings.CutPrefix(p.Hosts[0], "*.")
			want := name == p.Hosts[0]
			if under {
				want = strings.HasSuffix(name, "."+suffix) && len(name) > len(suffix)+1
			}
			want = want && len(name) <= maxHost
			if got := found[0]&(1<<i) != 0; got != want {
				t.Errorf("host %q matches %q (%q) = %t, want %t", p.Hosts[0], host, name, got, want)
			}
		}
	})
}

func thousand(t testing.TB) *Document {
	var source strings.Builder
	source.WriteString("schema: 1\npolicies:\n")
	for i := range MaxPolicies {
		fmt.Fprintf(&source, "- {name: p%d, match: {methods: [GET], paths: [/v%d/*]}, key: [user, ip], algorithm: token_bucket, rate: 1/s, scope: global, on_failure: open}\n", i, i)
	}
	return mustParse(t, source.String())
}

func TestMatchAllocatesOnlyForMatches(t *testing.T) {
	d := thousand(t)
	r := &Request{Identity: Identity{User: "a", IP: netip.MustParseAddr("10.0.0.1")}, Method: "GET", Path: "/other/" + strings.Repeat("a/", 4000)}
	if allocs := testing.AllocsPerRun(100, func() { _, _ = d.Match(r) }); allocs != 0 {
		t.Errorf("a request that no policy matches costs %v allocations", allocs)
	}
	// Nor does it where policies of all kinds are looked at and left out.
	d = mustParse(t, strings.Replace(exempting("{user: b}, {ip: 10.1.0.0/16}"), "owner: x",
		"match: {hosts: [\"*.example\"], headers: {X-A: b}, claims: {org: o}, tiers: [gold], regions: [eu]}", 1))
	r.Host, r.Tier, r.Region = "a.example", "gold", "eu"
	if allocs := testing.AllocsPerRun(100, func() { _, _ = d.Match(r) }); allocs != 0 {
		t.Errorf("a request without the header that a policy needs costs %v allocations", allocs)
	}
}

func BenchmarkMatch(b *testing.B) {
	d := thousand(b)
	for name, path := range map[string]string{"one of 1000": "/v500/items/7", "none of 1000": "/other/items/7"} {
		r := &Request{Identity: Identity{User: "a", IP: netip.MustParseAddr("10.0.0.1")}, Method: "GET", Path: path}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := d.Match(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	// Of 1000 that all name a host, a tier, a region, a header and a parameter, one matches.
	source := strings.ReplaceAll(string(d.Source), "methods: [GET],", "hosts: [\"*.example\"], tiers: [gold], regions: [eu], headers: {X-A: b}, query: {q: 1}, methods: [GET],")
	d = mustParse(b, source)
	r := &Request{
		Identity: Identity{User: "a", Tier: "gold", IP: netip.MustParseAddr("10.0.0.1")}, Method: "GET", Path: "/v500/items/7",
		Host: "api.example:443", Region: "eu", Header: map[string][]string{"X-A": {"b"}}, Query: "q=1",
	}
	b.Run("one of 1000 by every field", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if matched, err := d.Match(r); err != nil || len(matched) != 1 {
				b.Fatal(matched, err)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	source := thousand(b).Source
	b.SetBytes(int64(len(source)))
	for b.Loop() {
		Parse(source)
	}
}
