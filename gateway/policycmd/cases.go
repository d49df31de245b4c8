package policycmd

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

func testCommand(now func() time.Time) *cobra.Command {
	return &cobra.Command{
		Use:   "test FILE CASES",
		Short: "Ask a policy document about requests, and compare with what is expected",
		Long: `Ask a policy document about requests, and compare what it makes of them with what is expected.

CASES is a list, YAML or JSON:

  - name: premium clients have more
    request: {method: POST, path: /v1/x?q=1, user: acme, tier: premium}
    expect: {policies: [api-per-user], cost: 5, variant: {api-per-user: "tier:premium"}}

A request has method, path, host, headers, user, api_key (its SHA-256), ip, tier, claims, route, region, trusted_peer and at.
What is expected may be policies (all, in document order), exempt, status (400 or 401), and by policy cost, variant, key,
enforced, limit (what is admitted at once, in a window or at the same time) and resets (when the fixed_window that ` + "`at`" + ` is in
ends); one number as cost is that of every policy that matches.

Exit code 0: all cases pass; 1: a case fails, each with its line; 2: bad usage, or a file cannot be read.`,
		Example: "  annona policy test policies.yaml cases.yaml",
		Args:    func(cmd *cobra.Command, args []string) error { return usage(cobra.ExactArgs(2)(cmd, args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			return runCases(cmd.OutOrStdout(), args[0], args[1], now())
		},
	}
}

func runCases(out io.Writer, file, casesFile string, now time.Time) error {
	source, err := readFile(file)
	if err != nil {
		return usage(err)
	}
	document, problems := policy.Parse(source)
	if document == nil {
		return unreadable(out, file, problems)
	}
	if source, err = readFile(casesFile); err != nil {
		return usage(err)
	}
	cases, problems := policy.ParseCases(source)
	if problems.Refused() {
		return unreadable(out, casesFile, problems)
	}
	var text strings.Builder
	failed := 0
	for i := range cases {
		c := &cases[i]
		if c.Request.At.IsZero() {
			c.Request.At = now
		}
		wrong := compare(c, document)
		for _, what := range wrong {
			fmt.Fprintf(&text, "%s:%d:%d: %s: %s\n", casesFile, c.Line, c.Column, c.Name, what)
		}
		if len(wrong) > 0 {
			failed++
		}
	}
	if failed == 0 {
		fmt.Fprintf(&text, "%s: %s\n", casesFile, counted(len(cases), "case passes", "cases pass"))
	} else {
		fmt.Fprintf(&text, "%s: %d of %s\n", casesFile, failed, counted(len(cases), "case fails", "cases fail"))
	}
	if _, err := io.WriteString(out, text.String()); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	if failed > 0 {
		return &ExitError{Code: codeRefused}
	}
	return nil
}

// unreadable says what is wrong with a file that no case can be tried with.
func unreadable(out io.Writer, file string, problems policy.Problems) error {
	for _, p := range problems {
		if p.Severity != policy.SeverityError {
			continue
		}
		if _, err := fmt.Fprintf(out, "%s:%s\n", file, p); err != nil {
			return fmt.Errorf("write the result: %w", err)
		}
	}
	return &ExitError{Code: codeUsage}
}

// compare returns what is not as the case expects it.
func compare(c *policy.Case, d *policy.Document) []string {
	got := ask(d, &c.Request, c.Target)
	if got.Status != c.Expect.Status {
		switch {
		case got.Status == 0:
			return []string{fmt.Sprintf("want status %d, but no policy refuses the request", c.Expect.Status)}
		case c.Expect.Status == 0:
			return []string{fmt.Sprintf("the request is answered %d, %s", got.Status, got.Why)}
		}
		return []string{fmt.Sprintf("want status %d, got %d, %s", c.Expect.Status, got.Status, got.Why)}
	}
	var wrong []string
	if c.Expect.Exempt != nil && *c.Expect.Exempt != got.Exempt {
		wrong = append(wrong, fmt.Sprintf("want exempt %t, got %t", *c.Expect.Exempt, got.Exempt))
	}
	names := make([]string, 0, len(got.Matches))
	for _, m := range got.Matches {
		names = append(names, m.Policy)
	}
	if c.Expect.Policies != nil && !slices.Equal(c.Expect.Policies, names) {
		wrong = append(wrong, fmt.Sprintf("want policies [%s], got [%s]", strings.Join(c.Expect.Policies, ", "), strings.Join(names, ", ")))
	}
	costs := maps.Clone(c.Expect.Cost)
	if all, ok := costs[""]; ok {
		delete(costs, "")
		for _, name := range names {
			costs[name] = all
		}
	}
	wrong = append(wrong, differ("cost", costs, got.Matches, func(m match) limit.Tokens { return m.Cost })...)
	wrong = append(wrong, differ("variant", c.Expect.Variant, got.Matches, func(m match) string { return m.Variant })...)
	wrong = append(wrong, differ("key", c.Expect.Key, got.Matches, func(m match) string { return m.Key })...)
	wrong = append(wrong, differ("enforced", c.Expect.Enforced, got.Matches, func(m match) bool { return m.Enforced })...)
	wrong = append(wrong, differ("limit", c.Expect.Limit, got.Matches, func(m match) limit.Tokens { return m.Capacity })...)
	resets := make(map[string]string, len(c.Expect.Resets))
	for name, at := range c.Expect.Resets {
		resets[name] = at.Format(time.RFC3339)
	}
	return append(wrong, differ("resets", resets, got.Matches, func(m match) string { return m.Resets })...)
}

// differ compares one thing of the policies that are named in want.
func differ[T comparable](what string, want map[string]T, got []match, of func(match) T) []string {
	var wrong []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		i := slices.IndexFunc(got, func(m match) bool { return m.Policy == name })
		switch {
		case i < 0:
			wrong = append(wrong, fmt.Sprintf("want %s %#v of %s, which does not match", what, want[name], name))
		case of(got[i]) != want[name]:
			wrong = append(wrong, fmt.Sprintf("want %s %#v of %s, got %#v", what, want[name], name, of(got[i])))
		}
	}
	return wrong
}

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the policy document",
		Args:  func(cmd *cobra.Command, args []string) error { return usage(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := cmd.OutOrStdout().Write(policy.Schema()); err != nil {
				return fmt.Errorf("write the schema: %w", err)
			}
			return nil
		},
	}
}
