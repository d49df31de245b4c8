// Package policycmd is `annona policy`: it checks and tries a policy document on the command line. It prints what shared/policy says
// and decides nothing itself.
package policycmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/annona-gateway/annona/shared/policy"
)

// The exit codes of `annona policy`.
const (
	codeRefused = 1
	codeUsage   = 2
)

// ExitError ends the program with a code of its own.
type ExitError struct {
	// Code is what the process exits with.
	Code int
	// Err is what to print, nil where the command has said all there is.
	Err error
}

// Error returns what to print, "" where that was done.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// ExitCode returns the exit code.
func (e *ExitError) ExitCode() int { return e.Code }

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Err }

// usage makes err a complaint about how the command was called.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &ExitError{Code: codeUsage, Err: err}
}

// Command returns `annona policy`.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check and try a policy document before it is applied",
		Args:  func(cmd *cobra.Command, args []string) error { return usage(cobra.NoArgs(cmd, args)) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage(errors.Join(cmd.Help(), errors.New("say what to do, such as `annona policy check FILE`")))
		},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	cmd.AddCommand(checkCommand(), testCommand(time.Now), schemaCommand())
	return cmd
}

// check is one call of `annona policy check`.
type check struct {
	strict  bool
	rtt     time.Duration
	format  string
	regions string
	ask     question

	file    string
	weights map[string]uint64
	now     time.Time
	request *policy.Request // nil: not asked about
	target  string
}

func checkCommand() *cobra.Command {
	var c check
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Say everything that is wrong, or suspicious, in a policy document",
		Long: `Say everything that is wrong, or suspicious, in a policy document, one line each:

  FILE:LINE:COLUMN: error|warning|note: MESSAGE; REMEDY

With --request it also says which policies of a good document match a request, with key, limit and cost.

Exit code 0: the document is good; 1: it is refused (with --strict also if it is warned about);
2: bad usage, or the file cannot be read.`,
		Example: "  annona policy check policies.yaml --strict --rtt 150ms --regions eu=1,us=2\n" +
			"  annona policy check policies.yaml --request 'POST /v1/x' --user acme --header 'X-Plan: free'",
		Args: func(cmd *cobra.Command, args []string) error { return usage(cobra.ExactArgs(1)(cmd, args)) },
		RunE: func(cmd *cobra.Command, args []string) error {
			c.file = args[0]
			return c.run(cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&c.strict, "strict", false, "refuse a document that is warned about too")
	flags.DurationVar(&c.rtt, "rtt", 0, "round trip between a region and the allocator; warns of pools too small for it")
	flags.StringVar(&c.format, "format", "text", "text, json, or github (annotations of a workflow run)")
	flags.StringVar(&c.regions, "regions", "", "weights such as eu=1,us=2; notes what each region serves while the allocator is out")
	c.ask.flags(cmd)
	return cmd
}

func (c *check) run(out io.Writer) error {
	write, ok := formats[c.format]
	if !ok {
		return usage(fmt.Errorf("--format %q: give text, json or github", c.format))
	}
	if c.rtt < 0 {
		return usage(fmt.Errorf("--rtt %s is negative", c.rtt))
	}
	var err error
	if c.weights, err = parseWeights(c.regions); err != nil {
		return usage(err)
	}
	c.now = time.Now()
	if c.request, c.target, err = c.ask.request(c.now); err != nil {
		return usage(err)
	}
	source, err := readFile(c.file)
	if err != nil {
		return usage(err)
	}
	result := c.result(source)
	text, err := write(result)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, text); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	if !result.Good {
		return &ExitError{Code: codeRefused}
	}
	return nil
}

// result parses and checks source.
func (c *check) result(source []byte) result {
	document, problems := policy.Parse(source)
	r := result{File: c.file, Problems: problems}
	if document != nil {
		r.Policies = len(document.Policies)
		r.Problems = problems.With(policy.Check(document, policy.CheckOptions{RTT: c.rtt, Weights: c.weights, Now: c.now}))
		if c.request != nil {
			asked := ask(document, c.request, c.target)
			r.Asked = &asked
		}
	}
	r.Good = !problems.Refused() && (!c.strict || r.Problems.Count(policy.SeverityWarning) == 0)
	return r
}

// readFile reads at most one byte more than a document may have: enough to see that it is too large.
func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	source, err := io.ReadAll(io.LimitReader(file, policy.MaxSource+1))
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	return source, nil
}

// parseWeights reads "eu=1,us=2"; nothing is no weights.
func parseWeights(text string) (map[string]uint64, error) {
	if text == "" {
		return map[string]uint64{}, nil
	}
	regions := policy.Regions{Shards: policy.DefaultShards, Times: policy.DefaultTimes()}
	for pair := range strings.SplitSeq(text, ",") {
		name, number, _ := strings.Cut(pair, "=")
		weight, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("--regions %q: write NAME=WEIGHT with a whole weight, such as eu=1,us=2", pair)
		}
		regions.Regions = append(regions.Regions, policy.Region{Name: name, Weight: weight})
	}
	if err := regions.Check(); err != nil {
		return nil, fmt.Errorf("--regions: %w", err)
	}
	return regions.Weights(), nil
}
