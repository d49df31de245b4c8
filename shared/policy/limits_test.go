package policy

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/annona-gateway/annona/shared/limit"
)

// regional is a good document but for what lines say: a policy of scope region from line 3 on, each line a field of it.
func regional(lines ...string) string {
	all := []string{"name: p", "key: [user]", "scope: region", "on_failure: closed"}
	for _, line := range lines {
		field, _, _ := strings.Cut(line, ":")
		replaced := false
		for i := range all {
			if strings.HasPrefix(all[i], field+":") {
				all[i], replaced = line, true
			}
		}
		if !replaced {
			all = append(all, line)
		}
	}
	return "schema: 1\npolicies:\n  - " + strings.Join(all, "\n    ") + "\n"
}

// quota is a fixed_window on line 7, whose limit is on line 8 and window on line 9; what lines say follows.
func quota(window string, lines ...string) string {
	return regional(append([]string{"algorithm: fixed_window", "limit: 1000000", "window: " + window}, lines...)...)
}

// candidate is a document with a policy p on line 3, and q on line 9 with one more line, the 15th.
func candidate(line string) string {
	q := strings.TrimPrefix(policyWith(line), "schema: 1\npolicies:\n")
	return policyWith("scope: global") + strings.Replace(q, "name: p", "name: q", 1)
}

func months(t *testing.T, zone string, anchor int) limit.Window {
	t.Helper()
	in, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	w, err := limit.Months(in, anchor)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func every(t *testing.T, length time.Duration) limit.Window {
	t.Helper()
	w, err := limit.Every(length)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestParseReadsEveryAlgorithm(t *testing.T) {
	base := Policy{Name: "p", Parts: []string{"user"}, Scope: RegionOnly, OnLoss: LossFull, OnRedis: Closed, OnAllocator: Local, AllotmentPPM: 100_000, Enforced: true}
	for source, change := range map[string]func(*Policy){
		quota("month", "timezone: Europe/Rome", "anchor: 15", "tiers: {gold: {limit: 1000000000000}}"): func(p *Policy) {
			p.Algorithm, p.Budget, p.RateText = limit.FixedWindow, limit.Budget{Capacity: 1_000_000}, "1000000 per month"
			p.Window = months(t, "Europe/Rome", 15)
			p.Tiers, p.TierText = map[string]limit.Budget{"gold": {Capacity: 1e12}}, map[string]string{"gold": "1000000000000 per month"}
		},
		quota("week"): func(p *Policy) {
			p.Algorithm, p.Budget, p.RateText = limit.FixedWindow, limit.Budget{Capacity: 1_000_000}, "1000000 per week"
			p.Window = limit.Weeks(time.UTC, time.Monday)
		},
		quota("week", "anchor: sun"): func(p *Policy) {
			p.Algorithm, p.Budget, p.RateText = limit.FixedWindow, limit.Budget{Capacity: 1_000_000}, "1000000 per week"
			p.Window = limit.Weeks(time.UTC, time.Sunday)
		},
		quota("day", "limit: 0"): func(p *Policy) {
			p.Algorithm, p.RateText, p.Window = limit.FixedWindow, "0 per day", limit.Days(time.UTC)
		},
		regional("algorithm: sliding_window_log", "limit: 10000", "window: 90s", "ban: {denials: 10, within: 1m, for: 10m}"): func(p *Policy) {
			p.Algorithm, p.Budget, p.RateText = limit.SlidingWindowLog, limit.Budget{Capacity: 10_000}, "10000 per 90 seconds"
			p.Window, p.Ban = every(t, 90*time.Second), Ban{Denials: 10, Within: time.Minute, For: 10 * time.Minute}
		},
		regional("algorithm: sliding_window_counter", "limit: 5", "window: 60m"): func(p *Policy) {
			p.Algorithm, p.Budget, p.RateText = limit.SlidingWindowCounter, limit.Budget{Capacity: 5}, "5 per hour"
			p.Window = every(t, time.Hour)
		},
		regional("algorithm: concurrency", "limit: 20"): func(p *Policy) {
			p.Algorithm, p.Budget, p.RateText = limit.Concurrency, limit.Budget{Capacity: 20}, "20 at the same time"
		},
		regional("algorithm: token_bucket", "rate: 5/s", "max_delay: 2s", "cost: {default: 2, actual: x-cost, refund: [504, 502]}"): func(p *Policy) {
			p.Budget, p.RateText, p.MaxDelay = limit.Budget{Capacity: 5, Rate: 5 * limit.MicroPerToken}, "5 per second", 2*time.Second
			p.Cost = Cost{Default: 2, Actual: "X-Cost", Refund: []int{502, 504}}
		},
	} {
		want := base
		change(&want)
		if diff := cmp.Diff(&want, mustParse(t, source).Policies[0]); diff != "" {
			t.Errorf("Parse of\n%s(-want +got):\n%s", source, diff)
		}
	}
}

func TestParseRefusesLimits(t *testing.T) {
	slides := []string{"algorithm: sliding_window_log", "limit: 10"}
	for name, want := range map[string]refusal{
		"fixed_window, no limit":     {regional("algorithm: fixed_window", "window: 1h"), "3:5", "limit is missing", "whole number"},
		"fixed_window, no window":    {regional("algorithm: fixed_window", "limit: 1"), "3:5", "window is missing", "day, week or month"},
		"concurrency, no limit":      {regional("algorithm: concurrency"), "3:5", "limit is missing", "whole number"},
		"fixed_window with a rate":   {quota("1h", "rate: 1/s"), "10:5", "rate is not for fixed_window", "fixed_window takes limit, window, timezone and anchor; or write algorithm: token_bucket"},
		"concurrency with a window":  {regional("algorithm: concurrency", "limit: 1", "window: 1h"), "9:5", "window is not for concurrency", "concurrency takes limit; or write algorithm: fixed_window, sliding_window_log or sliding_window_counter"},
		"concurrency with a burst":   {regional("algorithm: concurrency", "limit: 1", "burst: 1"), "9:5", "burst is not for concurrency", "remove it"},
		"fixed_window that waits":    {quota("1h", "max_delay: 1s"), "10:5", "max_delay is not for fixed_window", "token_bucket"},
		"a log with a zone":          {regional(append(slides, "window: 24h", "timezone: UTC")...), "10:5", "timezone is for calendar windows, and sliding_window_log slides", "fixed_window"},
		"a log of days":              {regional(append(slides, "window: day")...), "9:13", "a day of the calendar has no one length", "write 24h, or algorithm: fixed_window"},
		"a log of months":            {regional(append(slides, "window: month")...), "9:13", "a month of the calendar", "write 720h"},
		"limit negative":             {quota("1h", "limit: -1"), "8:12", "limit -1 is negative", "0 denies all"},
		"limit fraction":             {quota("1h", "limit: 1.5"), "8:12", "no whole number", "decimal digits"},
		"limit huge":                 {quota("1h", "limit: 1000000000001"), "8:12", "limit 1000000000001 is too large", "1000000000000"},
		"log huge":                   {regional("algorithm: sliding_window_log", "limit: 10001", "window: 1h"), "8:12", "limit 10001 is too large", "10000, for a log keeps every admission, or algorithm: sliding_window_counter"},
		"slots huge":                 {regional("algorithm: concurrency", "limit: 1000001"), "8:12", "too large", "1000000"},
		"limit a list":               {quota("1h", "limit: [1]"), "8:12", "limit is a list", "whole number"},
		"window without unit":        {quota("60"), "9:13", "60 is no window", "such as 60s"},
		"window of nothing":          {quota("0s"), "9:13", "0s is out of range", "1ms"},
		"window of 0":                {quota("0"), "9:13", "0 is no window", "1h"},
		"window negative":            {quota("-1h"), "9:13", "-1h is out of range", "1ms"},
		"window of ages":             {quota("9000h"), "9:13", "9000h is out of range", "8784h"},
		"window of half µs":          {quota("1000.5µs"), "9:13", "out of range", "whole microseconds"},
		"window 1d":                  {quota("1d"), "9:13", "1d is no window", "write day for the calendar's, or 24h"},
		"window 7d":                  {quota("7d"), "9:13", "7d is no window", "write 168h"},
		"window hour":                {quota("hour"), "9:13", "hour is no window", "write 1h"},
		"window minute":              {quota("minute"), "9:13", "minute is no window", "write 1m"},
		"window 30 days":             {quota("30 days"), "9:13", "is no window", "write 720h"},
		"window weekly":              {quota("weekly"), "9:13", "weekly is no window", "write week"},
		"window year":                {quota("year"), "9:13", "year is no window", "write month"},
		"window nonsense":            {quota("fortnight"), "9:13", "fortnight is no window", "day, week or month"},
		"window a list":              {quota("[1h]"), "9:13", "window is a list", "1h"},
		"zone of a length":           {quota("1h", "timezone: UTC"), "10:5", "timezone is for windows of the calendar", "day, week or month"},
		"anchor of a length":         {quota("1h", "anchor: 1"), "10:5", "anchor is for windows of the calendar", "day, week or month"},
		"anchor of a day":            {quota("day", "anchor: 1"), "10:5", "anchor is for weeks and months", "midnight"},
		"anchor 29":                  {quota("month", "anchor: 29"), "10:13", "29 is not in 1 to 28", "every month has"},
		"anchor 0":                   {quota("month", "anchor: 0"), "10:13", "0 is not in 1 to 28", "every month has"},
		"anchor -1":                  {quota("month", "anchor: -1"), "10:13", "-1 is not in 1 to 28", "every month has"},
		"anchor 01":                  {quota("month", "anchor: 01"), "10:13", "01 is no day", "1 to 28"},
		"anchor last":                {quota("month", "anchor: last"), "10:13", "last is no day", "1 to 28"},
		"anchor mon of a month":      {quota("month", "anchor: mon"), "10:13", "day of the week, mon", "window: week"},
		"anchor of a week, a number": {quota("week", "anchor: 1"), "10:13", "anchor cannot be 1", "sun, mon, tue, wed, thu, fri or sat"},
		"anchor of a week, misspelt": {quota("week", "anchor: sum"), "10:13", "anchor cannot be sum", "did you mean sun?"},
		"anchor a list":              {quota("week", "anchor: [mon]"), "10:13", "anchor is a list", "1 to 28"},
		"zone unknown":               {quota("day", "timezone: Europe/Roma"), "10:15", "Europe/Roma is no time zone", "Europe/Rome"},
		"zone of the host":           {quota("day", "timezone: Local"), "10:15", "Local is no time zone", "Europe/Rome"},
		"zone with leap seconds":     {quota("day", "timezone: right/Europe/Rome"), "10:15", "no time zone", "Europe/Rome"},
		"zone a path":                {quota("day", "timezone: ../../etc/passwd"), "10:15", "no time zone", "Europe/Rome"},
		"zone an absolute path":      {quota("day", "timezone: /etc/passwd"), "10:15", "no time zone", "Europe/Rome"},
		"zone an offset":             {quota("day", "timezone: \"+02:00\""), "10:15", "no time zone", "Europe/Rome"},
		"zone empty":                 {quota("day", "timezone: ''"), "10:15", "no time zone", "Europe/Rome"},
		"zone with a zero byte":      {quota("day", "timezone: \"UTC\\0\""), "10:15", "no time zone", "Europe/Rome"},
	} {
		t.Run(name, func(t *testing.T) { want.check(t); want.alone(t) })
	}
}

func TestParseRefusesWhatGoesWithLimits(t *testing.T) {
	for name, want := range map[string]refusal{
		"tier with a rate":            {quota("1h", "tiers: {a: {limit: 1, rate: 1/s}}"), "10:27", "rate is not for fixed_window", "remove it"},
		"tier without limit":          {quota("1h", "tiers: {a: {}}"), "10:16", "limit is missing", "whole number"},
		"tier of another window":      {quota("1h", "tiers: {a: {limit: 1, window: 2h}}"), "10:27", "unknown field window", "rate, burst, limit"},
		"tier a number":               {quota("1h", "tiers: {a: 5}"), "10:16", "a is a single value", "{limit: 1000}"},
		"override without limit":      {quota("1h", "overrides: [{key: {user: a}}]"), "10:17", "limit is missing", "whole number"},
		"override with a rate":        {quota("1h", "overrides: [{key: {user: a}, limit: 1, rate: 1/s}]"), "10:44", "rate is not for fixed_window", "remove it"},
		"bucket's override, a limit":  {policyWith("overrides: [{key: {user: a}, rate: 1/s, limit: 1}]"), "9:45", "limit is not for token_bucket", "remove it"},
		"cost above limit":            {quota("1h", "limit: 5", "cost: 6"), "10:11", "above the capacity, 5", "raise limit to 6"},
		"actual of slots":             {regional("algorithm: concurrency", "limit: 1", "cost: {actual: X-Cost}"), "9:12", "actual is not for concurrency", "free again"},
		"refund of slots":             {regional("algorithm: concurrency", "limit: 1", "cost: {refund: [502]}"), "9:12", "refund is not for concurrency", "free again"},
		"actual, no header":           {quota("1h", "cost: {actual: \"a b\"}"), "10:20", "is no header's name", "X-Plan"},
		"refund a number":             {quota("1h", "cost: {refund: 502}"), "10:20", "refund is a single value", "[502, 503, 504]"},
		"refund of what clients do":   {quota("1h", "cost: {refund: [404]}"), "10:21", "can cause 404 at will", "502"},
		"refund of no status":         {quota("1h", "cost: {refund: [600]}"), "10:21", "600 is no status", "502"},
		"refund twice":                {quota("1h", "cost: {refund: [502, 502]}"), "10:26", "502 stands twice", "remove one"},
		"max_delay long":              {regional("algorithm: token_bucket", "rate: 1/s", "max_delay: 61s"), "9:16", "61s is too long", "0s to 1m0s"},
		"max_delay negative":          {regional("algorithm: token_bucket", "rate: 1/s", "max_delay: -1s"), "9:16", "negative", "0s to 1m0s"},
		"max_delay a list":            {regional("algorithm: token_bucket", "rate: 1/s", "max_delay: [1s]"), "9:16", "max_delay is a list", "5s"},
		"fixed_window, global":        {quota("1h", "scope: global"), "5:12", "fixed_window in scope global is not supported by this version yet", "write scope: region"},
		"concurrency, global":         {regional("algorithm: concurrency", "limit: 1", "scope: global"), "5:12", "concurrency in scope global", "write scope: region"},
		"ban a number":                {quota("1h", "ban: 5"), "10:10", "ban is a single value", "{denials: 10"},
		"ban without end":             {quota("1h", "ban: {denials: 5, within: 1m}"), "10:10", "for is missing", "how long the ban lasts"},
		"ban of everybody":            {quota("1h", "ban: {denials: 0, within: 1m, for: 1m}"), "10:20", "after 0 denials", "1 or more"},
		"ban too patient":             {quota("1h", "ban: {denials: 10001, within: 1m, for: 1m}"), "10:20", "denials: 10001 is too large", "1 to 10000"},
		"ban within nothing":          {quota("1h", "ban: {denials: 1, within: 0s, for: 1m}"), "10:31", "within: 0s is no duration in range", "1s to 24h"},
		"ban within ages":             {quota("1h", "ban: {denials: 1, within: 25h, for: 1m}"), "10:31", "within: 25h", "1s to 24h"},
		"ban for ever":                {quota("1h", "ban: {denials: 1, within: 1m, for: 9000h}"), "10:40", "for: 9000h", "8784h"},
		"ban misspelt":                {quota("1h", "ban: {denails: 1, within: 1m, for: 1m}"), "10:11", "unknown field denails", "did you mean denials?"},
		"candidate of nobody":         {candidate("candidate_of: nobody"), "15:19", "there is no policy nobody", "of this document"},
		"candidate misspelt":          {strings.ReplaceAll(candidate("candidate_of: api-usr"), "name: p", "name: api-user"), "15:19", "there is no policy api-usr", "did you mean api-user?"},
		"candidate of itself":         {candidate("candidate_of: q"), "15:19", "a candidate of itself", "may replace"},
		"candidate of a candidate":    {candidate("candidate_of: p\n    burst: 5") + strings.Replace(strings.TrimPrefix(policyWith("burst: 6\n    candidate_of: q"), "schema: 1\npolicies:\n"), "name: p", "name: r", 1), "24:19", "q is a candidate itself", "candidate_of: p"},
		"candidate that is enforced":  {candidate("candidate_of: p\n    enforce: 10%\n    burst: 5"), "16:14", "a candidate only reports", "once the candidate is to deny"},
		"candidate of no name":        {candidate("candidate_of: A B"), "15:19", "has the character", "1 to 64"},
		"algorithm meant, its tiers":  {quota("1h", "algorithm: fixed_windw", "tiers: {a: {limit: 1}}"), "7:16", "algorithm cannot be fixed_windw", "did you mean fixed_window?"},
		"unknown algorithm, all else": {regional("algorithm: leaky_bucket", "limit: 1", "window: 1h"), "7:16", "algorithm cannot be leaky_bucket", "token_bucket, fixed_window, sliding_window_log, sliding_window_counter or concurrency"},
	} {
		t.Run(name, func(t *testing.T) { want.check(t); want.alone(t) })
	}
}

func TestParseWarnsOfLimits(t *testing.T) {
	for source, want := range map[string]string{
		quota("month", "timezone: Europe/Rome"):                              "",
		regional("algorithm: token_bucket", "rate: 1/min", "max_delay: 30s"): "9:16: warning: a token takes longer to come than max_delay, so that hardly anybody waits for one; raise it to 1m0.002s or more, or remove it",
		regional("algorithm: token_bucket", "rate: 5/s", "max_delay: 1s"):    "",
		quota("1h", "key: [all]", "ban: {denials: 1, within: 1m, for: 1m}"):  "10:10: warning: all clients share one key, and are banned together; write a key that tells clients apart, or remove ban",
		quota("1h", "enforce: 0%", "ban: {denials: 1, within: 1m, for: 1m}"): "11:10: warning: a policy in shadow denies nobody, so that it bans nobody either; remove it, or enforce the policy",
		quota("1h", "lease_wait: 1s"):                                        "10:17: warning: lease_wait does nothing in scope region, which leases no tokens; remove it, or write scope: global",
		quota("1h", "overrides: [{key: {}, limit: 5}]"):                      "10:23: warning: an override of everyone for ever leaves the policy's own numbers and tiers idle; write its limit as the policy's own",
		quota("1h") + "  - {name: q, key: [user], algorithm: fixed_window, limit: 2000000, window: 60m, scope: region, on_failure: closed}\n":                                        "10:12: warning: the policy never denies: p, on line 3, counts the same and allows no more; remove it, or raise the other's limit",
		quota("1h") + "  - {name: q, key: [user], algorithm: fixed_window, limit: 2000000, window: 61m, scope: region, on_failure: closed}\n":                                        "",
		quota("1h") + "  - {name: q, key: [user], algorithm: fixed_window, limit: 2000000, window: 1h, scope: region, on_failure: closed, ban: {denials: 1, within: 1m, for: 1m}}\n": "",
		candidate("candidate_of: p"):               "15:19: warning: the candidate decides as p does; change what the candidate is to try",
		candidate("candidate_of: p\n    burst: 5"): "", candidate("candidate_of: p\n    burst: 5\n    enforce: 0%"): "",
		candidate("candidate_of: p\n    overrides: [{key: {user: a}, rate: 1/s}]"): "",
	} {
		lines := slices.DeleteFunc(strings.Split(said(t, source, CheckOptions{}), "\n"), func(line string) bool { return strings.Contains(line, ": note: ") })
		if got := strings.Join(lines, "\n"); got != want {
			t.Errorf("Parse of\n%ssays\n%s\nwant\n%s", source, got, want)
		}
	}
}

func TestCheckNotesWhereWindowsEnd(t *testing.T) {
	now := CheckOptions{Now: time.Date(2026, 3, 29, 12, 0, 0, 0, time.UTC)}
	for source, want := range map[string]string{
		quota("1h"):                           "8:12: note: policy p: twice its limit may pass within a moment, around the edge of two windows; choose sliding_window_counter or sliding_window_log if no more may ever pass in that time",
		quota("1h", "limit: 0"):               "",
		quota("day", "timezone: Europe/Rome"): "8:12: note: policy p: the present day began 2026-03-28T23:00:00Z and ends 2026-03-29T22:00:00Z, when all of the limit is there again; change timezone or anchor to move it",
		quota("month", "anchor: 28", "timezone: Asia/Kolkata"):              "8:12: note: policy p: the present month began 2026-03-27T18:30:00Z and ends 2026-04-27T18:30:00Z, when all of the limit is there again; change timezone or anchor to move it",
		regional("algorithm: sliding_window_log", "limit: 1", "window: 1h"): "",
		regional("algorithm: concurrency", "limit: 1"):                      "",
	} {
		if got := said(t, source, now); got != want {
			t.Errorf("Check of\n%ssays\n%s\nwant\n%s", source, got, want)
		}
	}
	if got := said(t, quota("day"), CheckOptions{}); got != "" {
		t.Errorf("Check at no time says %s", got)
	}
}

// FuzzWindow: whatever stands in window, timezone and anchor is refused with a remedy, or divides time: an instant is in its
// window, and written again it is the same.
func FuzzWindow(f *testing.F) {
	for _, seed := range [][3]string{
		{"1h", "", ""}, {"month", "Europe/Rome", "28"}, {"month", "Asia/Kolkata", "29"}, {"week", "Pacific/Apia", "sun"}, {"day", "Local", ""}, {"day", "../UTC", ""},
		{"week", "UTC", "1"}, {"1d", "", ""}, {"8784h", "", ""}, {"8784h1µs", "", ""}, {"-1s", "", ""}, {"1e9h", "", ""}, {"9999999999w", "", "-0"}, {"month", "Etc/GMT+12", "+1"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, window, zone, anchor string) {
		fields := map[string]any{
			"name": "p", "key": []string{"user"}, "algorithm": "fixed_window", "limit": 5, "scope": "region", "on_failure": "closed", "window": window,
		}
		if zone != "" {
			fields["timezone"] = zone
		}
		if anchor != "" {
			fields["anchor"] = anchor
		}
		source, err := json.Marshal(map[string]any{"schema": 1, "policies": []any{fields}})
		if err != nil {
			t.Fatal(err)
		}
		d, problems := Parse(source)
		for _, p := range problems {
			if p.Message == "" || p.Remedy == "" || strings.ContainsAny(p.String(), "\n\r") {
				t.Errorf("problem %q", p)
			}
		}
		if d == nil {
			return
		}
		w := d.Policies[0].Window
		if again := mustParse(t, string(source)).Policies[0].Window; !w.Equal(again) || w.String() != again.String() || w.IsZero() {
			t.Errorf("%s is %s, then %s", source, w, again)
		}
		for _, at := range []time.Time{time.Unix(0, 0), time.Date(2011, 12, 30, 10, 0, 0, 0, time.UTC), time.Date(2026, 10, 25, 1, 30, 0, 0, time.UTC)} {
			start, next := w.Start(at), w.Next(at)
			if start.After(at) || !next.After(at) || limit.Micros(next.Sub(start).Microseconds()) > w.Longest() || w.Seconds(at) < 1 {
				t.Errorf("%s: %s is in %s to %s of %s", source, at, start, next, w)
			}
		}
	})
}

// TestA3_AnotherAlgorithmOrWindowIsAnotherBucket, and token buckets have the key that they had before there were others.
func TestA3_AnotherAlgorithmOrWindowIsAnotherBucket(t *testing.T) {
	seen := map[string]string{}
	for _, source := range []string{
		regional("algorithm: token_bucket", "rate: 1/s"), quota("1h"), quota("2h"), quota("day"), quota("day", "timezone: Europe/Rome"), quota("week"), quota("week", "anchor: sun"),
		quota("month"), quota("month", "anchor: 2"), quota("month", "timezone: Asia/Kolkata"), regional("algorithm: concurrency", "limit: 5"),
		regional("algorithm: sliding_window_log", "limit: 5", "window: 1h"), regional("algorithm: sliding_window_counter", "limit: 5", "window: 1h"),
	} {
		fields, display, err := mustParse(t, source).Policies[0].FieldsFor(&Request{Identity: Identity{User: "acme"}})
		if err != nil || display != "user=acme" || len(fields) != 4 {
			t.Fatalf("FieldsFor = %q, %q, %v", fields, display, err)
		}
		if other, taken := seen[fields[1]]; taken {
			t.Errorf("both count in %q:\n%s%s", fields, other, source)
		}
		seen[fields[1]] = source
	}
	if seen["token_bucket"] == "" {
		t.Errorf("the keys of token buckets changed: %q", seen)
	}
	same := func(a, b string) {
		one, _, _ := mustParse(t, a).Policies[0].FieldsFor(&Request{Identity: Identity{User: "acme"}})
		other, _, _ := mustParse(t, b).Policies[0].FieldsFor(&Request{Identity: Identity{User: "acme"}})
		if diff := cmp.Diff(one, other); diff != "" {
			t.Errorf("another bucket (-before +after) though only numbers changed, or how they are written:\n%s", diff)
		}
	}
	same(quota("1h"), quota("60m", "limit: 5"))
	same(quota("month"), quota("month", "anchor: 1", "timezone: UTC"))
	same(regional("algorithm: token_bucket", "rate: 1/s"), regional("algorithm: token_bucket", "rate: 2/s", "max_delay: 5s"))
}

func TestActualCost(t *testing.T) {
	p := mustParse(t, quota("1h", "cost: {default: 5, actual: X-Actual-Cost, refund: [502, 503]}")).Policies[0]
	for name, row := range map[string]struct {
		values []string
		cost   limit.Tokens
		said   bool
		wrong  bool
	}{
		"nothing said": {}, "a number": {values: []string{"7"}, cost: 7, said: true}, "0": {values: []string{"0"}, said: true},
		"more than the limit": {values: []string{"1000000000000"}, cost: 1e12, said: true}, "twice": {values: []string{"1", "1"}, wrong: true},
		"negative": {values: []string{"-1"}, wrong: true}, "NaN": {values: []string{"NaN"}, wrong: true}, "huge": {values: []string{"1000000000001"}, wrong: true},
		"a fraction": {values: []string{"1.5"}, wrong: true}, "empty": {values: []string{""}, wrong: true}, "a list": {values: []string{"1, 2"}, wrong: true},
	} {
		cost, said, err := p.ActualCost(row.values)
		if cost != row.cost || said != row.said || (err != nil) != row.wrong {
			t.Errorf("%s: ActualCost(%q) = %d, %t, %v", name, row.values, cost, said, err)
		}
	}
	costs := mustParse(t, quota("1h", "cost: {header: X-Cost, max: 9, actual: X-Actual-Cost}")).CostHeaders()
	if !slices.Equal(costs, []string{"X-Actual-Cost", "X-Cost"}) {
		t.Errorf("a client may send %v to upstreams, want none of both", costs)
	}
	if !p.Cost.Refunds(503) || p.Cost.Refunds(500) || (&Cost{}).Refunds(502) {
		t.Error("Refunds is not what the document says")
	}
}
