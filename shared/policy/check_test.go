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
		strings.Replace(policyWith("tiers: {anonymous: {rate: 1/s}}"), "[user]", "[ip]", 1): "",
		strings.Replace(policyWith("allotment: 20%"), "global", "region", 1):                "9:16: warning: allotment does nothing in scope region, which leases no tokens; remove it, or write scope: global",
		"schema: 1\npolicies: []\n": "2:11: warning: there are no policies: nothing is limited; add a policy",
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
