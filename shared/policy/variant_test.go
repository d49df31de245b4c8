package policy

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/limit"
)

const overridden = `schema: 1
policies:
  - name: p
    key: [user, ip]
    algorithm: token_bucket
    rate: 100/min
    scope: global
    on_failure: closed
    tiers: {gold: {rate: 1000/min}}
    overrides:
      - {key: {user: acme}, rate: 500/min, burst: 7, from: 2026-01-01T00:00:00Z, until: 2026-02-01T01:00:00+01:00}
      - {key: {user: acme, ip: 10.0.0.0/8}, rate: 50/min}
      - {key: {tier: gold}, rate: 5/min, until: 2025-01-01T00:00:00Z}
      - {key: {}, rate: 2/min, from: 2030-01-01T00:00:00Z}
`

func TestVariants(t *testing.T) {
	p := mustParse(t, overridden).Policies[0]
	instant := func(text string) time.Time {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	for name, row := range map[string]struct {
		user, tier, at string
		capacity       limit.Tokens
		words          string
	}{
		"nobody special":           {"x", "", "2026-01-15T00:00:00Z", 100, "100 per minute"},
		"a tier":                   {"x", "gold", "2026-01-15T00:00:00Z", 1000, "1000 per minute"},
		"a user, in time":          {"acme", "", "2026-01-15T00:00:00Z", 7, "500 per minute"},
		"before its tier":          {"acme", "gold", "2026-01-15T00:00:00Z", 7, "500 per minute"},
		"at the first instant":     {"acme", "", "2026-01-01T00:00:00Z", 7, "500 per minute"},
		"just before":              {"acme", "", "2025-12-31T23:59:59Z", 100, "100 per minute"},
		"the end is excluded":      {"acme", "", "2026-02-01T00:00:00Z", 100, "100 per minute"},
		"just before the end":      {"acme", "", "2026-01-31T23:59:59Z", 7, "500 per minute"},
		"a tier's, before its end": {"x", "gold", "2024-12-31T00:00:00Z", 5, "5 per minute"},
		"everyone, one day":        {"x", "gold", "2030-01-01T00:00:00Z", 2, "2 per minute"},
	} {
		id := &Identity{User: row.user, Tier: row.tier}
		variant, b := p.Variant(id, instant(row.at))
		if b.Capacity != row.capacity || p.RateOf(variant) != row.words {
			t.Errorf("%s: Variant = %q %v (%s), want capacity %d", name, variant, b, p.RateOf(variant), row.capacity)
		}
		if again, ok := p.BudgetOf(variant); !ok || again != b {
			t.Errorf("%s: BudgetOf(%q) = %v, %t, want %v", name, variant, again, ok, b)
		}
	}
	for _, variant := range []string{"tier:silver", "override:0", "override:", "gold", "tier:"} {
		if b, ok := p.BudgetOf(variant); ok {
			t.Errorf("BudgetOf(%q) = %v, want none", variant, b)
		}
	}
	seen := map[string]bool{}
	for _, variant := range p.Variants() {
		if _, ok := p.BudgetOf(variant); !ok || seen[variant] || len(variant) > 128 {
			t.Errorf("variant %q: known %t, seen %t", variant, ok, seen[variant])
		}
		seen[variant] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d variants, want 6", len(seen))
	}
}

// While a new revision spreads, an override that moved in the list or got other numbers must be the same one to old and new.
func TestOverridesKeepTheirNames(t *testing.T) {
	old, changed := mustParse(t, overridden), mustParse(t, strings.Replace(overridden, "overrides:", "overrides:\n      - {key: {user: first}, rate: 1/s}", 1))
	changed = mustParse(t, strings.Replace(string(changed.Source), "500/min, burst: 7", "600/min", 1))
	was, is := old.Policies[0].Overrides[0], changed.Policies[0].Overrides[1]
	if was.Name() != is.Name() || is.Budget.Capacity != 600 {
		t.Errorf("the override is now called %s with %v, was %s", is.Name(), is.Budget, was.Name())
	}
	byHand := Override{Key: was.Key, From: was.From, Until: was.Until.In(time.FixedZone("x", 3600))}
	if byHand.Name() != was.Name() {
		t.Errorf("one that was put together is called %s, want %s", byHand.Name(), was.Name())
	}
	other := Override{Key: Selector{User: "a", Tier: "b"}}
	if twin := (Override{Key: Selector{User: "a\"=\"\",\"tier\"=\"b"}}); twin.Name() == other.Name() {
		t.Error("two different keys have one name")
	}
}

func TestEnforcesAPartOfTheKeys(t *testing.T) {
	p := mustParse(t, policyWith("enforce: 25%")).Policies[0]
	more := mustParse(t, policyWith("enforce: 50%")).Policies[0]
	secret, err := limit.NewSecret([]byte("sixteen bytes at least"))
	if err != nil {
		t.Fatal(err)
	}
	enforced, shards := 0, map[int]int{}
	const keys = 20_000
	for i := range keys {
		key := secret.Key("p", "token_bucket", "user", string(rune('a'+i%26)), string(rune(i)))
		if !p.Enforces(key) {
			continue
		}
		enforced++
		shards[key.Shard(8)]++
		if !more.Enforces(key) {
			t.Fatal("a key that 25 % enforce is not enforced at 50 %")
		}
	}
	if enforced < keys*23/100 || enforced > keys*27/100 || len(shards) != 8 {
		t.Errorf("%d of %d keys are enforced, in %d of 8 shards, want a quarter", enforced, keys, len(shards))
	}
	for line, want := range map[string]bool{"enforce: 0%": false, "enforce: 100%": true, "owner: x": true} {
		if got := mustParse(t, policyWith(line)).Policies[0].Enforces(limit.Key{0xff}); got != want {
			t.Errorf("%s: Enforces = %t", line, got)
		}
	}
}

const costly = "cost: {default: 2, rules: [{methods: [POST], paths: [\"/v1/*\"], cost: 5}, {paths: [/v1/big], cost: 9}], header: X-Cost, max: 50}"

func TestCosts(t *testing.T) {
	d := mustParse(t, policyWith(costly))
	for name, row := range map[string]struct {
		method, path string
		trusted      bool
		header       []string
		want         limit.Tokens // 0: ErrCost
	}{
		"default":                {"GET", "/", false, nil, 2},
		"rule":                   {"POST", "/v1/x", false, nil, 5},
		"first rule":             {"POST", "/v1/big", false, nil, 5},
		"second rule":            {"GET", "/v1/big", false, nil, 9},
		"header":                 {"POST", "/v1/x", true, []string{"7"}, 7},
		"header of a stranger":   {"POST", "/v1/x", false, []string{"7"}, 5},
		"negative of a stranger": {"GET", "/", false, []string{"-7"}, 2},
		"header at max":          {"GET", "/", true, []string{"50"}, 50},
		"header above max":       {"GET", "/", true, []string{"51"}, 0},
		"negative":               {"GET", "/", true, []string{"-1"}, 0},
		"nothing":                {"GET", "/", true, []string{"0"}, 0},
		"NaN":                    {"GET", "/", true, []string{"NaN"}, 0},
		"infinite":               {"GET", "/", true, []string{"Inf"}, 0},
		"huge":                   {"GET", "/", true, []string{"99999999999999999999999"}, 0},
		"fraction":               {"GET", "/", true, []string{"1.5"}, 0},
		"hexadecimal":            {"GET", "/", true, []string{"0x10"}, 0},
		"empty":                  {"GET", "/", true, []string{""}, 0},
		"twice":                  {"GET", "/", true, []string{"1", "1"}, 0},
		"a list":                 {"GET", "/", true, []string{"1, 1"}, 0},
	} {
		r := &Request{Identity: Identity{User: "a"}, Method: row.method, Path: row.path, TrustedPeer: row.trusted}
		if row.header != nil {
			r.Header = map[string][]string{"X-Cost": row.header}
		}
		matched, err := d.Match(r)
		switch {
		case row.want == 0:
			if !errors.Is(err, ErrCost) || matched != nil {
				t.Errorf("%s: Match = %v, %v, want ErrCost", name, matched, err)
			}
		case err != nil || len(matched) != 1 || matched[0].Cost != row.want:
			t.Errorf("%s: Match = %v, %v, want cost %d", name, matched, err, row.want)
		}
	}
	// What is in shadow denies nobody, and what does not match asks for no cost.
	bad := &Request{Identity: Identity{User: "a"}, Method: "GET", Path: "/", TrustedPeer: true, Header: map[string][]string{"X-Cost": {"-1"}}}
	for _, line := range []string{costly + "\n    enforce: 0%", costly + "\n    match: {methods: [POST]}"} {
		if matched, err := mustParse(t, policyWith(line)).Match(bad); err != nil || len(matched) != 0 {
			t.Errorf("%s: Match = %v, %v, want none", line, matched, err)
		}
	}
	if got := (&Policy{}).MaxCost(); got != 1 {
		t.Errorf("MaxCost of a policy that says nothing = %d, want 1", got)
	}
}

// FuzzCostHeader: whatever a peer says, a request costs 1 to the largest cost, or is told that its cost is none.
func FuzzCostHeader(f *testing.F) {
	for _, value := range []string{"1", "50", "51", "-1", "NaN", "1e3", "", " 1", "+1", "1,1", "٣"} {
		f.Add(value, true)
		f.Add(value, false)
	}
	d := mustParse(f, policyWith(costly))
	f.Fuzz(func(t *testing.T, value string, trusted bool) {
		r := &Request{Identity: Identity{User: "a"}, Method: "GET", Path: "/", TrustedPeer: trusted, Header: map[string][]string{"X-Cost": {value}}}
		matched, err := d.Match(r)
		switch {
		case err != nil:
			if !trusted || !errors.Is(err, ErrCost) || strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("Match of %q = %v", value, err)
			}
		case matched[0].Cost < 1 || matched[0].Cost > d.Policies[0].MaxCost() || (!trusted && matched[0].Cost != 2):
			t.Errorf("%q costs %d", value, matched[0].Cost)
		}
	})
}
