package policy

import (
	"strings"
	"testing"
	"time"
)

// said returns what Parse and Check say about a good document, a line each.
func said(t *testing.T, source string, o CheckOptions) string {
	t.Helper()
	d, problems := Parse([]byte(source))
	if d == nil {
		t.Fatal(problems.Err())
	}
	var lines []string
	for _, p := range problems.With(Check(d, o)) {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
}

// second is one more policy, on line 10.
func second(fields string) string {
	return "  - {" + fields + ", key: [user], algorithm: token_bucket, scope: global, on_failure: closed}\n"
}

func TestParseWarns(t *testing.T) {
	for source, want := range map[string]string{
		policyWith("rate: 1/20h"):                     "6:11: warning: the refill is kept in whole micro-tokens a second: 13 is 6.4 % less than written; to round up instead write 1/19h50m28s",
		policyWith("burst: 0"):                        "9:12: warning: burst 0 denies every request; burst is the whole capacity: remove it for 100, or write the rate as 0 too",
		policyWith("owner: x"):                        "",
		policyWith("rate: 0/min"):                     "",
		policyWith("lease_wait: 0s"):                  "",
		policyWith("match: {methods: [GTE]}"):         "9:23: warning: GTE is an unusual method; did you mean GET?",
		policyWith("match: {methods: [PURGE]}"):       "",
		policyWith("match: {paths: [/a%20b]}"):        "9:21: warning: the path /a%20b is matched after decoding, so its % is a percent sign; write the character itself",
		policyWith("match: {paths: [/100%, /%zz]}"):   "",
		policyWith("tiers: {anonymous: {rate: 1/s}}"): "9:24: warning: a client of tier anonymous has no credential, and this policy's key needs one; key by ip, or remove the tier",
		strings.Replace(policyWith("tiers: {anonymous: {rate: 1/s}}"), "[user]", "[ip]", 1):                                     "",
		strings.Replace(policyWith("allotment: 20%"), "global", "region", 1):                                                    "9:16: warning: allotment does nothing in scope region, which leases no tokens; remove it, or write scope: global",
		keyed(`"header:X-Org"`, "owner: x"):                                                                                     "4:11: warning: clients choose their header X-Org: one that changes it has a new budget each time; key by user, api_key or ip beside a limit of this kind",
		keyed(`user, "query:q"`, "owner: x"):                                                                                    "4:17: warning: clients choose their query q: one that changes it has a new budget each time; key by user, api_key or ip beside a limit of this kind",
		keyed(`"claim:org"`, "owner: x"):                                                                                        "",
		keyed("all", "tiers: {gold: {rate: 1/s}}"):                                                                              "9:12: warning: all tiers share one budget, and give it now these numbers, now those; write key: [tier] for a budget of each tier",
		policyWith("match: {tiers: [anonymous]}\n    missing: deny"):                                                            "",
		policyWith("match: {tiers: [gold]}\n    tiers: {free: {rate: 1/s}}"):                                                    "10:13: warning: the numbers of tier free never apply: the policy does not match it; remove it, or add the tier to match",
		policyWith("match: {regions: [eu]}"):                                                                                    "9:22: warning: the policy matches in one region only, and its budget is global; write scope: region, which leases no tokens",
		policyWith("match: {paths: [\"/v1/*\", /v1/a]}"):                                                                        "9:30: warning: /v1/a is a part of /v1/*, which stands in the same list; remove it",
		policyWith("match: {hosts: [\"*.a.b\", \"*.b\"]}"):                                                                      "9:21: warning: *.a.b is a part of *.b, which stands in the same list; remove it",
		policyWith("cost: {max: 5}"):                                                                                            "9:17: warning: max bounds what a header says, and there is no header; remove it, or name the header",
		policyWith("cost: {rules: [{cost: 2}, {methods: [GET], cost: 3}]}"):                                                     "9:31: warning: the cost rule never applies: rules[0] matches the same requests and comes first; remove it, or put it before that one",
		policyWith("match: {methods: [GET]}\n    cost: {rules: [{methods: [POST], cost: 3}]}"):                                  "10:20: warning: the cost rule never applies: the policy matches none of its methods; remove it, or add its methods to match",
		policyWith("match: {paths: [\"/a/*\"]}\n    cost: {rules: [{paths: [/b], cost: 3}]}"):                                   "10:20: warning: the cost rule never applies: the policy matches none of its paths; remove it, or add its paths to match",
		policyWith("match: {paths: [\"/a/*\"]}\n    cost: {rules: [{paths: [\"/*\"], cost: 3}]}"):                               "",
		policyWith("overrides: [{key: {}, rate: 1/s}]"):                                                                         "9:23: warning: an override of everyone for ever leaves the policy's own numbers and tiers idle; write its rate and burst as the policy's own",
		policyWith("overrides: [{key: {user: a}, rate: 1/s}, {key: {user: a, tier: b}, rate: 2/s}]"):                            "9:46: warning: the override never applies: the one on line 9 includes it and comes first; put it before that one, or remove it",
		policyWith("match: {tiers: [gold]}\n    overrides: [{key: {tier: free}, rate: 1/s}]"):                                   "10:17: warning: the override never applies: the policy does not match tier free; remove it, or add the tier to match",
		strings.Replace(policyWith("overrides: [{key: {user: a}, rate: 1/s}]"), "policies", "exempt: [{user: a}]\npolicies", 1): "10:17: warning: the override never applies: user=a is exempt; remove it, or the exemption",
		policyWith("owner: x") + second("name: q, rate: 200/min"):                                                               "10:12: warning: the policy never denies: p, on line 3, counts the same and allows no more; remove it, or raise the other's rate or burst",
		policyWith("owner: x") + second("name: q, rate: 100/min"):                                                               "10:12: warning: the policy never denies: p, on line 3, counts the same and allows no more; remove it, or raise the other's rate or burst",
		policyWith("owner: x") + second("name: q, rate: 1000/h, burst: 1000"):                                                   "",
		policyWith("owner: x") + second("name: q, rate: 200/min, enforce: 0%"):                                                  "",
		policyWith("owner: x") + second("name: q, rate: 200/min, match: {paths: [/]}"):                                          "",
		exempting("{ip: 10.0.0.0/8}, {ip: 10.1.0.0/16}"):                                                                        "2:28: warning: ip=10.1.0.0/16 is exempt already, by ip=10.0.0.0/8; remove it",
		exempting("{ip: 0.0.0.0/0}"):                                                                                            "2:15: warning: 0.0.0.0/0 is every address of its kind; write a smaller network",
		"schema: 1\npolicies: []\n":                                                                                             "2:11: warning: there are no policies: nothing is limited; add a policy",
	} {
		if got := said(t, source, CheckOptions{}); got != want {
			t.Errorf("Parse of\n%ssays\n%s\nwant\n%s", source, got, want)
		}
	}
}

func TestCheckPoolsAgainstTheRoundTrip(t *testing.T) {
	const rtt = 150 * time.Millisecond
	fast := strings.Replace(policyWith("burst: 65"), "100/min", "100/s", 1)
	for name, row := range map[string]struct {
		source  string
		options CheckOptions
		want    string
	}{
		"too small":      {fast, CheckOptions{RTT: rtt}, "raise burst to 67, or lower the rate"},
		"just enough":    {strings.Replace(fast, "65", "66", 1), CheckOptions{RTT: rtt}, ""},
		"rtt not known":  {fast, CheckOptions{}, ""},
		"scope region":   {strings.Replace(fast, "global", "region", 1), CheckOptions{RTT: rtt}, ""},
		"denies all":     {policyWith("rate: 0/s"), CheckOptions{RTT: rtt}, ""},
		"no pool at all": {fast + "    allotment: 100%\n", CheckOptions{RTT: rtt}, "lower allotment"},
		"beyond numbers": {strings.Replace(policyWith("burst: 1000000000"), "100/min", "1000000000/s", 1), CheckOptions{RTT: rtt}, ""},
		"no burst helps": {strings.Replace(policyWith("burst: 1000000000"), "100/min", "1000000000/s", 1), CheckOptions{RTT: time.Second}, "lower the rate"},
		"of a tier":      {policyWith("tiers: {fast: {rate: 100/s, burst: 10}}"), CheckOptions{RTT: rtt}, "raise burst to 67"},
	} {
		t.Run(name, func(t *testing.T) {
			got := said(t, row.source, row.options)
			if (row.want == "") != (got == "") || !strings.Contains(got, row.want) {
				t.Errorf("Check says %q, want a warning with %q", got, row.want)
			}
			if row.want != "" && !strings.Contains(got, ": warning: policy p") {
				t.Errorf("Check says %q, want a warning that names the policy", got)
			}
		})
	}
}

// What Check suggests is enough, for any weights.
func TestCheckSuggestsEnough(t *testing.T) {
	for _, weights := range []map[string]uint64{nil, {"eu": 1}, {"eu": 1, "us": 2}, {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1}} {
		for _, rtt := range []time.Duration{time.Millisecond, 77 * time.Millisecond, time.Second} {
			o := CheckOptions{RTT: rtt, Weights: weights}
			source := strings.Replace(policyWith("burst: 1"), "100/min", "1000/s", 1)
			first := said(t, source, o)
			_, after, _ := strings.Cut(first, "raise burst to ")
			burst, _, _ := strings.Cut(after, ",")
			if again := said(t, strings.Replace(source, "burst: 1", "burst: "+burst, 1), o); strings.Contains(again, "warning") {
				t.Errorf("%v %s: after %q Check says %q", weights, rtt, first, again)
			}
		}
	}
}

func TestCheckNotesOutages(t *testing.T) {
	o := CheckOptions{Weights: map[string]uint64{"us": 2, "eu": 1}}
	source := policyWith("tiers: {premium: {rate: 30/s}}")
	want := "6:11: note: policy p: while the allocator is out each region serves its share (eu 33 tokens filling at 0.555555/s, us 66 tokens filling at 1.111110/s)" +
		"; change weights to change it, or on_failure.allocator to open to admit what is beyond it\n" +
		"9:13: note: policy p for tier premium: while the allocator is out each region serves its share (eu 10 tokens filling at 10.000000/s, us 20 tokens filling at 20.000000/s)" +
		"; change weights to change it, or on_failure.allocator to open to admit what is beyond it"
	if got := said(t, source, o); got != want {
		t.Errorf("Check says\n%s\nwant\n%s", got, want)
	}
	open := strings.Replace(policyWith("owner: x"), "on_failure: closed", "on_failure: {redis: local, allocator: open}", 1)
	got := said(t, open, o)
	for _, part := range []string{"each gateway admits from its own part", "and then admits what is beyond it"} {
		if !strings.Contains(got, part) {
			t.Errorf("Check says %q, want %q", got, part)
		}
	}
	if got := said(t, strings.Replace(source, "global", "region", 1), o); got != "" {
		t.Errorf("Check of scope region says %q, want nothing: it needs no allocator", got)
	}
}

func TestCheckKnowsTheDeployment(t *testing.T) {
	o := CheckOptions{Weights: map[string]uint64{"eu": 1, "us": 1}, Now: time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)}
	for source, want := range map[string]string{
		policyWith("match: {regions: [eu, ap]}"):                                            "warning: policy p matches in region ap, which there is not; write one of eu, us",
		policyWith("overrides: [{key: {user: a}, rate: 1/s, until: 2026-02-01T00:00:00Z}]"): "warning: policy p: the override of user=a has ended, 2026-02-01T00:00:00Z; remove it",
		policyWith("cost: 6"): "note: policy p: the allotment of eu, 5 tokens, is less than the largest cost, 6: every first request waits for a lease",
	} {
		if got := said(t, source, o); !strings.Contains(got, want) {
			t.Errorf("Check of\n%ssays\n%s\nwant\n%s", source, got, want)
		}
		if got := said(t, source, CheckOptions{}); got != "" {
			t.Errorf("Check of a deployment that is not known says %q", got)
		}
	}
}
