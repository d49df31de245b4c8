package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/annona-gateway/annona/shared/policy"
)

// entry is one line of the file of API keys. Claims are read, so that files for later versions load; no policy of this version
// can match them.
type entry struct {
	SHA256 string         `yaml:"sha256"`
	User   string         `yaml:"user"`
	Tier   string         `yaml:"tier"`
	Claims map[string]any `yaml:"claims"`
}

// maxName bounds users' and tiers' names, which become part of keys and of the header forwarded to an upstream.
const maxName = 256

// Load reads the file of API keys at path: a YAML list of {sha256, user, tier, claims}.
func Load(path string) (Lookup, error) {
	source, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("api keys: %w", err)
	}
	lookup, err := Parse(source)
	if err != nil {
		return nil, fmt.Errorf("api keys in %s: %w", path, err)
	}
	return lookup, nil
}

// Parse reads the text of a file of API keys and returns everything that is wrong with it at once.
func Parse(source []byte) (Lookup, error) {
	file, err := parser.ParseBytes(source, 0)
	if err != nil {
		return nil, errors.New(yaml.FormatError(err, false, false))
	}
	known := make(map[[sha256.Size]byte]policy.Identity)
	var problems []error
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		list, ok := doc.Body.(*ast.SequenceNode)
		if !ok {
			problems = append(problems, fmt.Errorf("line %d: want a list of {sha256, user, tier}", lineOf(doc.Body)))
			continue
		}
		for _, node := range list.Values {
			if err := add(known, node); err != nil {
				problems = append(problems, fmt.Errorf("line %d: %w", lineOf(node), err))
			}
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return func(key string) (policy.Identity, bool) {
		// A lookup by the whole hash needs no constant-time comparison: its timing tells about the hash, not about the key.
		id, ok := known[sha256.Sum256([]byte(key))]
		return id, ok
	}, nil
}

func add(known map[[sha256.Size]byte]policy.Identity, node ast.Node) error {
	var e entry
	if err := yaml.NodeToValue(node, &e, yaml.Strict()); err != nil {
		// Only the reason: the excerpt that comes with it could show what stands in the file.
		return errors.New(reason(err))
	}
	raw, err := hex.DecodeString(e.SHA256)
	var sum [sha256.Size]byte
	switch {
	case err != nil || len(raw) != len(sum):
		return errors.New("sha256 must be the 64 hexadecimal digits of a key's SHA-256; make them with sha256sum")
	case e.User == "":
		return errors.New("user is missing; name whose key it is")
	case !printable(e.User) || !printable(e.Tier):
		return fmt.Errorf("user and tier must be printable and at most %d bytes", maxName)
	}
	copy(sum[:], raw)
	if _, twice := known[sum]; twice {
		return errors.New("the same sha256 stands twice; remove one")
	}
	known[sum] = policy.Identity{User: e.User, APIKey: hex.EncodeToString(raw), Tier: e.Tier}
	return nil
}

// reason is the first line of a YAML error, without the excerpt below it.
func reason(err error) string {
	text := yaml.FormatError(err, false, false)
	first, _, _ := strings.Cut(text, "\n")
	if _, after, ok := strings.Cut(first, "] "); ok {
		return after
	}
	return first
}

func printable(name string) bool {
	return len(name) <= maxName && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

func lineOf(node ast.Node) int {
	if token := node.GetToken(); token != nil && token.Position != nil {
		return token.Position.Line
	}
	return 0
}
