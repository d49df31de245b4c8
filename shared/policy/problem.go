package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Severity of a Problem.
type Severity string

// A document with an error is refused; a warning is suspicious; a note informs.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
	SeverityNote    Severity = "note"
)

// Problem is one thing that is wrong, or suspicious, at a place of the document.
type Problem struct {
	Severity Severity `json:"severity"`
	Line     int      `json:"line"`
	Column   int      `json:"column"`
	Path     string   `json:"path"` // policies[0].rate
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy"`
}

// String writes p as a compiler would: "12:5: error: MESSAGE; REMEDY".
func (p Problem) String() string {
	return fmt.Sprintf("%d:%d: %s: %s; %s", p.Line, p.Column, p.Severity, p.Message, p.Remedy)
}

// Problems are all of a document, in its order.
type Problems []Problem

// Count returns how many of the problems have severity.
func (p Problems) Count(severity Severity) int {
	count := 0
	for _, problem := range p {
		if problem.Severity == severity {
			count++
		}
	}
	return count
}

// Refused tells whether one of the problems is an error.
func (p Problems) Refused() bool { return p.Count(SeverityError) > 0 }

// Err returns the errors among the problems as one error, a line each; nil if there is none.
func (p Problems) Err() error {
	if !p.Refused() {
		return nil
	}
	lines := make([]string, 0, len(p))
	for _, problem := range p {
		if problem.Severity == SeverityError {
			lines = append(lines, problem.String())
		}
	}
	return fmt.Errorf("policy document refused:\n%s", strings.Join(lines, "\n"))
}

// With returns p and more in document order.
func (p Problems) With(more Problems) Problems { return slices.Concat(p, more).sorted() }

// maxProblems bounds what one document can make Parse say; nobody reads more.
const maxProblems = 1_000

// sorted returns the problems in document order, the first maxProblems of them. Errors go before the rest where they would
// not all fit, so that a flood of warnings hides none.
func (p Problems) sorted() Problems {
	if len(p) > maxProblems {
		slices.SortStableFunc(p, func(a, b Problem) int { return cmp.Compare(a.Severity, b.Severity) })
		p = p[:maxProblems]
	}
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return p
}

// fault is what a value is wrong in, before anyone knows where it stands.
type fault struct{ message, remedy string }

func faultf(remedy, format string, args ...any) *fault {
	return &fault{message: fmt.Sprintf(format, args...), remedy: remedy}
}
