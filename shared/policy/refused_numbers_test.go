package policy

import (
	"strings"
	"testing"
)

func TestParseRefusesNumbers(t *testing.T) {
	for name, want := range map[string]refusal{
		"rate without time":       {policyWith("rate: 100"), "6:11", "100 names no time", "100/min"},
		"rate negative":           {policyWith("rate: -5/s"), "6:11", "-5 is negative", "0 denies all"},
		"rate fraction":           {policyWith("rate: 1.5/s"), "6:11", "1.5 is no whole number", "decimal digits"},
		"rate with exponent":      {policyWith("rate: 1e3/s"), "6:11", "1e3 is no whole number", "decimal digits"},
		"rate octal":              {policyWith("rate: 010/s"), "6:11", "010 is no whole number", "decimal digits"},
		"rate empty":              {policyWith("rate: /s"), "6:11", "no whole number", "decimal digits"},
		"rate huge":               {policyWith("rate: 1000000001/day"), "6:11", "1000000001 is too large", "1000000000"},
		"rate beyond numbers":     {policyWith("rate: 99999999999999999999/s"), "6:11", "too large", "1000000000"},
		"rate too fast":           {policyWith("rate: 1000000000/1ms"), "6:11", "more than 1000000000 tokens a second", "at most 1000000000/s"},
		"rate too slow":           {policyWith("rate: 1/300h"), "6:11", "less than a millionth", "lowest"},
		"rate per m":              {policyWith("rate: 10/m"), "6:11", "m is no time", "write /min"},
		"rate per d":              {policyWith("rate: 10/d"), "6:11", "d is no time", "write /day"},
		"rate per week":           {policyWith("rate: 10/week"), "6:11", "week is no time", "100/min"},
		"rate per nothing":        {policyWith("rate: 10/0s"), "6:11", "0s is out of range", "1ms to 366 days"},
		"rate per past":           {policyWith("rate: 10/-5s"), "6:11", "the time -5s is out of range", "1ms to 366 days"},
		"rate per ages":           {policyWith("rate: 10000000/9000h"), "6:11", "9000h is out of range", "366 days"},
		"burst negative":          {policyWith("burst: -1"), "9:12", "burst -1 is negative", "0 denies all"},
		"burst fraction":          {policyWith("burst: 1.0"), "9:12", "burst 1.0 is no whole number", "decimal digits"},
		"burst hexadecimal":       {policyWith("burst: 0x10"), "9:12", "0x10 is no whole number", "decimal digits"},
		"burst with underline":    {policyWith("burst: 1_000"), "9:12", "no whole number", "decimal digits"},
		"burst huge":              {policyWith("burst: 1000000001"), "9:12", "too large", "1000000000"},
		"burst infinite":          {policyWith("burst: .inf"), "9:12", "no whole number", "decimal digits"},
		"burst a list":            {policyWith("burst: [1]"), "9:12", "burst is a list", "whole number"},
		"burst beside rate 0":     {strings.Replace(policyWith("burst: 5"), "100/min", "0/min", 1), "9:12", "rate 0 denies all, but burst is 5", "burst: 0"},
		"tiers a list":            {policyWith("tiers: [premium]"), "9:12", "tiers is a list", "{rate: 1000/min"},
		"tier a rate":             {policyWith("tiers: {premium: 10/s}"), "9:22", "premium is a single value", "{rate:"},
		"tier without rate":       {policyWith("tiers: {premium: {burst: 5}}"), "9:22", "rate is missing", "100/min"},
		"tier name":               {policyWith("tiers: {\"pre mium\": {rate: 1/s}}"), "9:13", "character ' '", "1 to 64"},
		"tier twice":              {policyWith("tiers: {a: {rate: 1/s}, a: {rate: 2/s}}"), "9:29", "the tier a stands twice", "remove one"},
		"tier field":              {policyWith("tiers: {a: {rate: 1/s, bust: 1}}"), "9:28", "unknown field bust", "burst"},
		"tier burst beside 0":     {policyWith("tiers: {a: {rate: 0/s, burst: 1}}"), "9:35", "denies all", "burst: 0"},
		"too many tiers":          {policyWith("tiers: {" + strings.Repeat("a: {rate: 1/s},", 65) + "}"), "9:12", "65 tiers", "fewer"},
		"key a word":              {policyWith("key: user"), "4:10", "key is a single value", "[user]"},
		"key empty":               {policyWith("key: []"), "4:10", "no parts", "[all]"},
		"key part unknown":        {policyWith("key: [usr]"), "4:11", "key[0] cannot be usr", "did you mean user?"},
		"key part twice":          {policyWith("key: [ip, ip]"), "4:15", "ip stands twice", "remove one"},
		"key all and more":        {policyWith("key: [all, user]"), "4:10", "goes with no other", "[all]"},
		"match a word":            {policyWith("match: GET"), "9:12", "match is a single value", "{methods:"},
		"match misspelt":          {policyWith("match: {path: [/a]}"), "9:13", "unknown field path", "did you mean paths?"},
		"methods a word":          {policyWith("match: {methods: GET}"), "9:22", "methods is a single value", "[GET, POST]"},
		"method in small letters": {policyWith("match: {methods: [get]}"), "9:23", "never matches", "write GET"},
		"method of nonsense":      {policyWith("match: {methods: [\"G T\"]}"), "9:23", "is no method", "GET"},
		"method twice":            {policyWith("match: {methods: [GET, GET]}"), "9:28", "GET stands twice in methods", "remove one"},
		"path relative":           {policyWith("match: {paths: [v1/a]}"), "9:21", "does not begin with a slash", "/v1/*"},
		"path star":               {policyWith("match: {paths: [\"*\"]}"), "9:21", "does not begin with a slash", "/* for every path"},
		"path star within":        {policyWith("match: {paths: [\"/v1/*/a\"]}"), "9:21", "elsewhere than at the end", "/v1/*"},
		"path star of a word":     {policyWith("match: {paths: [\"/v1*\"]}"), "9:21", "elsewhere than at the end", "/v1/*"},
		"path with query":         {policyWith("match: {paths: [\"/v1?a=b\"]}"), "9:21", "never matches", "before the ?"},
		"path with dots":          {policyWith("match: {paths: [\"/v1/../a\"]}"), "9:21", "never matches", "without . and .."},
		"path with two slashes":   {policyWith("match: {paths: [\"/v1//a\"]}"), "9:21", "never matches", "single slashes"},
		"path with control":       {policyWith("match: {paths: [\"/v1\\n\"]}"), "9:21", "control character", "/health"},
		"path too long":           {policyWith("match: {paths: [/" + strings.Repeat("a", 1024) + "]}"), "9:21", "longer than 1024", "/v1/*"},
		"too many paths":          {policyWith("match: {paths: [" + strings.Repeat("/a, ", 101) + "]}"), "9:20", "101 entries", "split"},
	} {
		t.Run(name, func(t *testing.T) { want.check(t); want.alone(t) })
	}
}

// All problems come at once and in document order, and those of one policy do not hide another's.
func TestParseSaysEverythingAtOnce(t *testing.T) {
	_, problems := Parse([]byte("schema: 2\npolicies:\n- nam: x\n  key: [usr]\n  algorithm: token_bucket\n  rate: 1/20h\n  burst: -1\n" +
		"  scope: global\n  on_failure: {}\n- name: y\nextra: 1\n"))
	want := []string{
		"1:9 schema error", "3:3 policies[0].nam error", "4:9 policies[0].key[0] error", "6:9 policies[0].rate warning",
		"7:10 policies[0].burst error", "9:15 policies[0].on_failure.redis error", "9:15 policies[0].on_failure.allocator error",
		"10:3 policies[1].key error", "10:3 policies[1].algorithm error", "10:3 policies[1].rate error", "10:3 policies[1].scope error",
		"10:3 policies[1].on_failure error", "11:1 extra error",
	}
	for i, p := range problems {
		got := strings.Join([]string{place{p.Line, p.Column}.String(), p.Path, string(p.Severity)}, " ")
		if i >= len(want) || got != want[i] {
			t.Errorf("problem %d is %q (%s), want %q", i, got, p.Message, want[min(i, len(want)-1)])
		}
	}
	if len(problems) != len(want) {
		t.Errorf("Parse says %d things, want %d", len(problems), len(want))
	}
}
