package admin

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/policy"
)

// sentinels parses a package and returns the names of its package-level errors.
func sentinels(t *testing.T, dir string) []string {
	t.Helper()
	packages, err := parser.ParseDir(token.NewFileSet(), dir, nil, 0) //nolint:staticcheck // no types are needed
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name, pkg := range packages {
		if strings.HasSuffix(name, "_test") {
			continue
		}
		for path, file := range pkg.Files {
			if !strings.HasSuffix(path, "_test.go") {
				names = append(names, errorsOf(file)...)
			}
		}
	}
	return names
}

func errorsOf(file *ast.File) []string {
	var names []string
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.VAR {
			continue
		}
		for _, spec := range group.Specs {
			value, ok := spec.(*ast.ValueSpec)
			if !ok {
				continue
			}
			for _, name := range value.Names {
				if strings.HasPrefix(strings.ToLower(name.Name), "err") {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

// Every error that a handler can meet has its status here; a new one in these packages fails the test until it has one.
func TestEveryErrorHasItsStatus(t *testing.T) {
	want := map[string]struct {
		err    error
		status int
	}{
		"errUnauthenticated":   {errUnauthenticated, 401},
		"errForbidden":         {errForbidden, 403},
		"errTooManyFailures":   {&tooManyFailuresError{}, 429},
		"errNoPrecondition":    {errNoPrecondition, 428},
		"errMediaType":         {unsupported(mediaJSON), 415},
		"errTooLarge":          {errTooLarge, 413},
		"errBadRequest":        {badRequest("no"), 400},
		"errUnknownPolicy":     {errUnknownPolicy, 404},
		"errInvalid":           {&invalidError{}, 422},
		"errOutcomeUnknown":    {because(errOutcomeUnknown, echo.ErrBadGateway), 503},
		"errStoreOut":          {because(errStoreOut, fmt.Errorf("nats: %w", errBadRequest)), 503},
		"errLessorOut":         {errLessorOut, 503},
		"errPanic":             {errPanic, 500},
		"ErrNotReady":          {because(errStoreOut, ErrNotReady), 503},
		"bus.ErrNoDocument":    {because(errStoreOut, bus.ErrNoDocument), 404},
		"bus.ErrStale":         {because(errOutcomeUnknown, bus.ErrStale), 412},
		"policy.ErrMissing":    {policy.ErrMissing, 422},
		"policy.ErrCost":       {policy.ErrCost, 422},
		"an error of no table": {errors.New("secret cause"), 500},
	}
	for name, row := range want {
		got := describe(fmt.Errorf("handler: %w", row.err))
		if got.Status != row.status || got.Title != http.StatusText(row.status) {
			t.Errorf("%s: %+v, want status %d", name, got, row.status)
		}
		if strings.Contains(got.Detail, "nats") || strings.Contains(got.Detail, "secret cause") || strings.Contains(got.Detail, "handler") {
			t.Errorf("%s: the client reads the cause: %q", name, got.Detail)
		}
	}
	for prefix, dir := range map[string]string{"": ".", "bus.": "../../shared/bus", "policy.": "../../shared/policy"} {
		for _, name := range sentinels(t, dir) {
			if _, ok := want[prefix+name]; !ok {
				t.Errorf("%s has no row in this test: give it a status in the table, too", prefix+name)
			}
		}
	}
}
