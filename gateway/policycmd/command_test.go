package policycmd

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/shared/policy"
)

const (
	good = `schema: 1
policies:
  - name: api-per-user
    match: {paths: ["/v1/*"]}
    key: [user]
    algorithm: token_bucket
    rate: 100/s
    burst: 200
    scope: global
    on_failure: closed
`
	bad = `schema: 1
policies:
  - name: api-per-user
    key: [usr]
    algorithm: token_bucket
    rate: 1/20h
    scope: global
    on_failure: closed
`
)

// run executes `annona policy args...`; FILE among args stands for a file that holds source. It returns what was printed,
// with the file's name as FILE again, and the exit code.
func run(t *testing.T, source string, args ...string) (out string, code int, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "FILE", file)
	}
	var text strings.Builder
	cmd := Command()
	cmd.SetOut(&text)
	cmd.SetErr(&text)
	cmd.SetArgs(args)
	err = cmd.Execute()
	var exit interface{ ExitCode() int }
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		t.Fatalf("an error without an exit code: %v", err)
	}
	return strings.ReplaceAll(text.String(), file, "FILE"), code, err
}

func TestCheckPrintsOneLineEach(t *testing.T) {
	small := strings.Replace(good, "200", "20", 1)
	warning := "FILE:7:11: warning: policy api-per-user: its pool of 18 tokens is less than 4 round trips of 150ms at its rate, so demand in one region may not get all of it; raise burst to 67, or lower the rate\n"
	refused := "FILE:4:11: error: key[0] cannot be usr; did you mean user?\n" +
		"FILE:6:11: warning: the refill is kept in whole micro-tokens a second: 13 is 6.4 % less than written; to round up instead write 1/19h50m28s\n"
	note := "FILE:7:11: note: policy api-per-user: while the allocator is out each region serves its share (eu 66 tokens filling at 33.333333/s, us 133 tokens filling at 66.666666/s)" +
		"; change weights to change it, or on_failure.allocator to open to admit what is beyond it\n"
	for name, row := range map[string]struct {
		source string
		args   string
		out    string
		code   int
	}{
		"good":              {good, "check FILE", "FILE: good, 1 policy, 0 warnings, 0 notes\n", 0},
		"good and strict":   {good, "check --strict FILE", "FILE: good, 1 policy, 0 warnings, 0 notes\n", 0},
		"refused":           {bad, "check FILE", refused, 1},
		"empty":             {"", "check FILE", "FILE:1:1: error: the document is empty; start with `schema: 1` and `policies:`\n", 1},
		"warned":            {small, "check FILE --rtt 150ms", warning + "FILE: good, 1 policy, 1 warning, 0 notes\n", 0},
		"warned and strict": {small, "check FILE --rtt 150ms --strict", warning, 1},
		"noted and strict":  {good, "check FILE --regions eu=1,us=2 --strict", note + "FILE: good, 1 policy, 0 warnings, 1 note\n", 0},
		"for GitHub": {
			bad, "check FILE --format github",
			"::error file=FILE,line=4,col=11::key[0] cannot be usr; did you mean user?\n" +
				"::warning file=FILE,line=6,col=11::the refill is kept in whole micro-tokens a second: 13 is 6.4 %25 less than written; to round up instead write 1/19h50m28s\n", 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			out, code, err := run(t, row.source, strings.Fields(row.args)...)
			if out != row.out || code != row.code {
				t.Errorf("annona policy %s prints\n%sand exits with %d, want\n%sand %d", row.args, out, code, row.out, row.code)
			}
			if code == codeRefused && err.Error() != "" {
				t.Errorf("a refused document has been explained, but the error says %q too", err)
			}
		})
	}
}

func TestCheckPrintsJSON(t *testing.T) {
	for source, code := range map[string]int{good: 0, bad: 1} {
		out, got, _ := run(t, source, "check", "FILE", "--format", "json")
		if got != code {
			t.Errorf("exit code %d, want %d", got, code)
		}
		var r struct {
			File     string           `json:"file"`
			Good     bool             `json:"good"`
			Policies *int             `json:"policies"`
			Problems []policy.Problem `json:"problems"`
		}
		decoder := json.NewDecoder(strings.NewReader(out))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&r); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		_, want := policy.Parse([]byte(source))
		if r.File != "FILE" || r.Good != (code == 0) || r.Policies == nil || r.Problems == nil || len(r.Problems) != len(want) {
			t.Errorf("annona policy check --format json prints %s", out)
		}
	}
}

func TestUsageExitsWith2(t *testing.T) {
	for args, want := range map[string]string{
		"":                               "say what to do",
		"chek FILE":                      "unknown command",
		"check":                          "accepts 1 arg",
		"check FILE another":             "accepts 1 arg",
		"check FILE.absent":              "no such file",
		"check /":                        "is a directory",
		"check FILE --frobnicate":        "unknown flag",
		"check FILE --rtt soon":          "invalid",
		"check FILE --rtt -1s":           "negative",
		"check FILE --format xml":        "text, json or github",
		"check FILE --regions eu":        "NAME=WEIGHT",
		"check FILE --regions eu=1,eu=1": "stands twice",
		"check FILE --regions eu=0":      "weight 0",
		"check FILE --regions EU=1":      "character",
	} {
		_, code, err := run(t, good, strings.Fields(args)...)
		if code != codeUsage || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("annona policy %s: exit code %d, %v, want %d and %q", args, code, err, codeUsage, want)
		}
	}
}

func TestCheckReadsNoMoreThanItMust(t *testing.T) {
	out, code, _ := run(t, strings.Repeat("#", 2*policy.MaxSource), "check", "FILE")
	if code != codeRefused || !strings.Contains(out, "FILE:1:1: error: the document has more than 786432 bytes; ") {
		t.Errorf("a file that is too large: %d, %s", code, out)
	}
}

func TestGitHubEscapes(t *testing.T) {
	out, err := gitHubOf(result{File: "a,b:c%\n", Problems: policy.Problems{{Severity: policy.SeverityNote, Line: 1, Column: 2, Message: "m%\n", Remedy: "r,:"}}})
	if want := "::notice file=a%2Cb%3Ac%25%0A,line=1,col=2::m%25%0A; r,:\n"; err != nil || out != want {
		t.Errorf("gitHubOf = %q, %v, want %q", out, err, want)
	}
}
