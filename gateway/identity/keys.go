package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/annona-gateway/annona/shared/policy"
)

// entry is one line of the file of API keys.
type entry struct {
	SHA256 string         `yaml:"sha256"`
	User   string         `yaml:"user"`
	Tier   string         `yaml:"tier"`
	Claims map[string]any `yaml:"claims"`
}

// maxName bounds users' and tiers' names, which become part of keys and of the header forwarded to an upstream.
const maxName = 256

// keyFile is the file of API keys as it was last good.
type keyFile struct{ known atomic.Pointer[Lookup] }

func (k *keyFile) use(source []byte) error {
	lookup, err := Parse(source)
	if err == nil {
		k.known.Store(&lookup)
	}
	return err
}

func (k *keyFile) lookup(key string) (policy.Identity, bool) {
	if known := k.known.Load(); known != nil {
		return (*known)(key)
	}
	return policy.Identity{}, false
}

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

// Parse reads the text of a file of API keys and returns everything that is wrong with it at once. A file without a list is
// wrong: it is one that somebody is about to write.
func Parse(source []byte) (Lookup, error) {
	file, err := parser.ParseBytes(source, 0)
	if err != nil {
		return nil, errors.New(reason(err))
	}
	known := make(map[[sha256.Size]byte]policy.Identity)
	var problems []error
	lists := 0
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		list, ok := doc.Body.(*ast.SequenceNode)
		if !ok {
			problems = append(problems, fmt.Errorf("line %d: want a list of {sha256, user, tier, claims}", lineOf(doc.Body)))
			continue
		}
		lists++
		for _, node := range list.Values {
			if err := add(known, node); err != nil {
				problems = append(problems, fmt.Errorf("line %d: %w", lineOf(node), err))
			}
		}
	}
	if lists == 0 && len(problems) == 0 {
		problems = append(problems, errors.New("it is empty; write a list of {sha256, user, tier, claims}, or [] for no keys"))
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
	claims, dropped := scalars(e.Claims)
	if len(dropped) > 0 {
		return fmt.Errorf("claims: %s: write a text, a number, true or false", strings.Join(dropped, ", "))
	}
	known[sum] = policy.Identity{User: e.User, APIKey: hex.EncodeToString(raw), Tier: e.Tier, Claims: claims}
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
