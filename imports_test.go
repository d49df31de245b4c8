package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/annona-gateway/annona/"

// arrows says what the files below a directory may import of this module: roles only themselves and shared, shared only
// itself; the end-to-end tests and the wiring of deployments everything. main.go joins them all and is not listed.
var arrows = map[string][]string{
	"gateway":     {"gateway", "shared"},
	"region":      {"region", "shared"},
	"allocator":   {"allocator", "shared"},
	"shared":      {"shared"},
	"deployments": {"gateway", "region", "allocator", "shared", "deployments"},
	"e2e":         {"gateway", "region", "allocator", "shared", "deployments", "e2e"},
}

// exceptions are arrows that point the other way, each with its reason.
var exceptions = map[[2]string]string{
	{"shared/bus/bustest", "deployments/embedded"}: "a helper of tests: it starts the NATS server that the demo embeds",
}

// apart are packages of one role that must not know each other.
var apart = map[[2]string]string{
	{"allocator/journal", "allocator/ledger"}: "the journal stores bytes, and will outlive what they mean today",
}

// homes says which directories may know a library; a driver that leaked is a seam that is gone. A home that ends in /... counts
// with all below it. Tests start servers wherever they need one.
var homes = map[string]struct {
	dirs     []string
	reason   string
	testsMay bool
}{
	"github.com/labstack/echo": {
		[]string{"gateway", "allocator/admin/..."}, "the HTTP framework stays at the edge", false,
	},
	"github.com/redis/go-redis": {
		[]string{"shared/bucket/...", "deployments/...", "e2e/..."}, "scripts and their replies are the business of one package", false,
	},
	"github.com/nats-io/nats.go": {
		[]string{"shared/bus/...", "allocator/...", "region/...", "deployments/...", "e2e/..."},
		"inside a region Redis is the only interface: a gateway has no NATS", false,
	},
	"github.com/nats-io/nats-server": {
		[]string{"deployments/...", "shared/bus/bustest", "e2e/..."}, "a role embeds no server; the demo does", true,
	},
	"github.com/alicebob/miniredis": {
		[]string{"shared/bucket/...", "deployments/...", "e2e/..."}, "a role embeds no store; the demo does", true,
	},
}

// topLevel is what the root of the tree may hold, besides names that begin with a dot.
var topLevel = []string{
	"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", "SECURITY.md", "docker-compose.yml", "docs", "go.mod", "go.sum",
	"main.go", "imports_test.go", "purity_test.go", "allocator", "deployments", "e2e", "gateway", "region", "shared",
	"bin", "data", // made by the build and the demo, not committed
}

func TestImportsFollowTheArrows(t *testing.T) {
	t.Parallel()
	files := 0
	for dir, imports := range importsBelow(t) {
		from, _, _ := strings.Cut(dir, "/")
		for _, imported := range imports {
			files++
			own, isOwn := strings.CutPrefix(imported.path, module)
			if !isOwn || dir == "." || exceptions[[2]string{dir, own}] != "" {
				continue
			}
			if to, _, _ := strings.Cut(own, "/"); !slices.Contains(arrows[from], to) {
				t.Errorf("%s imports %s; below %s only %v may be imported", imported.file, own, from, arrows[from])
			}
			for pair, reason := range apart {
				if within(dir, pair[0]+"/...") && within(own, pair[1]+"/...") {
					t.Errorf("%s imports %s: %s", imported.file, own, reason)
				}
			}
		}
	}
	if files < 100 {
		t.Errorf("only %d imports were seen: the walk is broken", files)
	}
}

func TestLibrariesStayAtHome(t *testing.T) {
	t.Parallel()
	for dir, imports := range importsBelow(t) {
		for _, imported := range imports {
			for library, home := range homes {
				if !within(imported.path, library+"/...") || home.testsMay && strings.HasSuffix(imported.file, "_test.go") {
					continue
				}
				if !slices.ContainsFunc(home.dirs, func(h string) bool { return within(dir, h) }) {
					t.Errorf("%s imports %s: %s", imported.file, imported.path, home.reason)
				}
			}
		}
	}
}

func TestTheRootHoldsTheFixedLayout(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if name := entry.Name(); !strings.HasPrefix(name, ".") && !slices.Contains(topLevel, name) {
			t.Errorf("%s stands at the root: move it beside the package that it is about", name)
		}
	}
}

// within reports whether a path is dir, or below it where dir ends in /...
func within(name, dir string) bool {
	if above, deep := strings.CutSuffix(dir, "/..."); deep {
		return name == above || strings.HasPrefix(name, above+"/")
	}
	return name == dir
}

type importSpec struct{ file, path string }

// importsBelow returns the imports of every Go file by its directory. It parses files itself: the test cache sees the files
// that a test opens, not those that a command opens for it, and would stay green on a broken tree.
func importsBelow(t *testing.T) map[string][]importSpec {
	t.Helper()
	found := map[string][]importSpec{}
	for _, name := range goFiles(t, ".") {
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, spec := range parsed.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			dir := path.Dir(name)
			found[dir] = append(found[dir], importSpec{name, imported})
		}
	}
	return found
}

// goFiles lists the Go files below dir.
func goFiles(t *testing.T, dir string) []string {
	t.Helper()
	var files []string
	err := fs.WalkDir(os.DirFS("."), dir, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(name, ".go"):
			files = append(files, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
