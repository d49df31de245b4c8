package policy

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// A document of the largest size must not cost its reader more than moments or the stack, whatever is in it. Each of these
// took the YAML parser minutes, or all memory, before a scanner looked at the tokens first. Those of half maxTokens show that
// their own bound works.
func TestParseIsQuickOnAnything(t *testing.T) {
	const patience = 5 * time.Second // on loaded machines too: a fraction of a second is usual
	const half = maxTokens / 2
	for name, source := range map[string]string{
		"open brackets":           strings.Repeat("[", MaxSource),
		"lists in lists":          strings.Repeat("- ", half),
		"empty items":             strings.Repeat("-\n", maxTokens-1),
		"one wide mapping":        strings.Repeat("a: 1\n", half/2),
		"names on one line":       strings.Repeat("a: b: ", half/4),
		"names without values":    "{" + strings.Repeat("a, ", half-2) + "}",
		"empty values":            strings.Repeat("- a:\n", maxTokens/3-1),
		"tabs in quotes":          `a: "` + strings.Repeat("\t", MaxSource-5) + `"`,
		"announced names":         strings.Repeat("? ", half),
		"tags":                    strings.Repeat("!a ", half),
		"deeper and deeper":       deeper(1_200),
		"as many policies as fit": "schema: 1\npolicies:\n" + strings.Repeat("- a: 1\n", half/3),
		"cost rules nearly alike": nearlyAlike(),
		"overrides nearly alike":  strings.Replace(crowdOf("overrides: [", "{key: {user: a@}, rate: 1/s}, ", 95), "schema: 1", "schema: 2", 1),
		"exemptions nearly alike": "schema: 2\nexempt: [" + counting("{user: a@, tier: b, ip: 10.0.0.0/8}, ", 256) + "]\npolicies: []\n",
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			_, problems := Parse([]byte(source))
			if took := time.Since(start); took > patience {
				t.Errorf("Parse took %s", took)
			}
			if !problems.Refused() {
				t.Errorf("Parse accepts it")
			}
		})
	}
}

// counting repeats text, with a number for each @.
func counting(text string, n int) string {
	var all strings.Builder
	for i := range n {
		all.WriteString(strings.ReplaceAll(text, "@", strconv.Itoa(i)))
	}
	return all.String()
}

// crowdOf is as many policies as fit with a list of n entries each.
func crowdOf(field, entry string, n int) string {
	list := field + counting(entry, n) + "]"
	source := "schema: 1\npolicies:\n"
	for i := 0; len(source) < MaxSource-len(list)-200; i++ {
		source += "- {name: p" + strconv.Itoa(i) + ", key: [user], algorithm: token_bucket, rate: 1000/s, scope: region, on_failure: open, " + list + "}\n"
	}
	return source
}

// nearlyAlike are cost rules of which none includes another, which shows only at the last of their paths.
func nearlyAlike() string {
	rule := "{paths: [" + strings.ReplaceAll(counting("/@, ", 98), "@", "") + "/x@], cost: 2}, "
	return strings.ReplaceAll(strings.Replace(crowdOf("cost: {rules: [", rule, 90), "schema: 1", "schema: 2", 1), "]}\n", "]}}\n")
}

// deeper nests mappings by indentation.
func deeper(levels int) string {
	var text strings.Builder
	for i := range levels {
		text.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return text.String()
}

func TestParseBoundsWhatItSays(t *testing.T) {
	_, problems := Parse([]byte("schema: 1\npolicies: [" + strings.Repeat("{name: A}, ", MaxPolicies) + "]"))
	if len(problems) != maxProblems || problems.Count(SeverityError) != maxProblems {
		t.Errorf("Parse returns %d problems, want %d errors", len(problems), maxProblems)
	}
	last := place{}
	for _, p := range problems {
		at := place{p.Line, p.Column}
		if at.line < last.line || (at.line == last.line && at.column < last.column) {
			t.Fatalf("problem at %v after one at %v", at, last)
		}
		last = at
	}
	for _, p := range problems {
		if len(p.Message) > 400 || len(p.Path) > 200 {
			t.Fatalf("problem is too long: %v", p)
		}
	}
}

func TestParseOfTooMuch(t *testing.T) {
	_, problems := Parse([]byte(strings.Repeat("#", MaxSource+1)))
	if len(problems) != 1 || problems[0].Line != 1 || !strings.Contains(problems[0].Message, "more than 786432") {
		t.Errorf("Parse = %v, want one error about the size", problems)
	}
	longName := "schema: 1\npolicies:\n- " + strings.Repeat("n", 10_000) + ": 1\n"
	_, problems = Parse([]byte(longName))
	for _, p := range problems {
		if len(p.String()) > 600 {
			t.Errorf("a long name makes a problem of %d bytes", len(p.String()))
		}
	}
}
