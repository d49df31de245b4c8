package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// cores are the packages that only compute: the same input gives the same output, in production, replay and simulation.
// Generated messages (leasepb, factpb) stand apart: their library brings locks of its own.
var cores = []string{"shared/limit", "shared/lease", "allocator/ledger", "region/refill"}

// pureImports is all that a core may import besides other cores and their messages. There is no clock among them (time only
// lends its Duration), no lock, no file, no network, no chance and no driver.
var pureImports = []string{
	"bytes", "cmp", "container/heap", "crypto/aes", "crypto/cipher", "crypto/hmac", "crypto/sha256", "encoding/binary", "encoding/hex",
	"errors", "fmt", "iter", "maps", "math", "math/bits", "slices", "sort", "strconv", "strings", "time", "unicode/utf8",
	"google.golang.org/protobuf/proto",
	module + "shared/limit", module + "shared/lease", module + "shared/lease/leasepb", module + "allocator/ledger/factpb",
}

// pureTime is what a core may use of package time: lengths, instants that somebody else read, and the calendar of a zone that
// somebody else loaded.
var pureTime = []string{
	"Duration", "Time", "Nanosecond", "Microsecond", "Millisecond", "Second", "Minute", "Hour", "UnixMicro", "UnixMilli", "Unix",
	"Date", "Location", "Month", "Weekday", "UTC",
}

func TestCoresImportNothingThatActs(t *testing.T) {
	t.Parallel()
	for name, file := range coreFiles(t) {
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(pureImports, imported) {
				t.Errorf("%s imports %s, which is not on the list of a core", name, imported)
			}
			if spec.Name != nil && (spec.Name.Name == "." || imported == "time") {
				t.Errorf("%s imports %s under another name, which hides what it uses", name, imported)
			}
		}
	}
}

func TestCoresHaveNoClockGoroutineOrChannel(t *testing.T) {
	t.Parallel()
	for name, file := range coreFiles(t) {
		ast.Inspect(file, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine", name)
			case *ast.ChanType, *ast.SendStmt, *ast.SelectStmt:
				t.Errorf("%s uses a channel", name)
			case *ast.UnaryExpr:
				if n.Op == token.ARROW {
					t.Errorf("%s uses a channel", name)
				}
			case *ast.SelectorExpr:
				if of, ok := n.X.(*ast.Ident); ok && of.Name == "time" && !slices.Contains(pureTime, n.Sel.Name) {
					t.Errorf("%s uses time.%s; take the time as an argument", name, n.Sel.Name)
				}
			}
			return true
		})
	}
}

// coreFiles returns the parsed files of the cores, tests left out: those may use a clock to be random.
func coreFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	for _, core := range cores {
		seen := len(files)
		for _, name := range goFiles(t, core) {
			dir := path.Dir(name)
			if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(dir, "pb") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = parsed
		}
		if len(files) == seen {
			t.Errorf("%s has no file: the list of cores is wrong", core)
		}
	}
	return files
}
