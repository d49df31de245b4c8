package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

// Role says what a credential may do; each includes the ones before it.
type Role string

// The roles: a viewer reads, support also blocks and grants, an operator changes everything.
const (
	Viewer   Role = "viewer"
	Support  Role = "support"
	Operator Role = "operator"
)

// Allows reports whether r includes what needed may do.
func (r Role) Allows(needed Role) bool { return r.rank() > 0 && r.rank() >= needed.rank() }

// rank orders the roles; what is none has 0.
func (r Role) rank() int { return 1 + slices.Index([]Role{Viewer, Support, Operator}, r) }

// MaxCredentials bounds the work of checking one token, which is compared with every credential.
const MaxCredentials = 1000

const maxCredentialName = 64

// Credential is a bearer token that may use the API, known by its SHA-256 only.
type Credential struct {
	Name   string `yaml:"name"`
	Role   Role   `yaml:"role"`
	SHA256 string `yaml:"sha256"`
}

// NewCredential returns the credential of a token.
func NewCredential(name string, role Role, token string) Credential {
	sum := sha256.Sum256([]byte(token))
	return Credential{Name: name, Role: role, SHA256: hex.EncodeToString(sum[:])}
}

// ParseCredentials reads a credentials file, a YAML list of {name, role, sha256}, and checks it.
func ParseCredentials(source []byte) ([]Credential, error) {
	var credentials []Credential
	if err := yaml.UnmarshalWithOptions(source, &credentials, yaml.Strict()); err != nil {
		// The library would quote the lines around the error, and with them what may be a token.
		if at, ok := errors.AsType[yaml.Error](err); ok {
			line := at.GetToken().Position.Line
			return nil, fmt.Errorf("line %d: %s; write a list of {name, role, sha256}", line, firstLine(at.GetMessage()))
		}
		return nil, errors.New("not YAML; write a list of {name, role, sha256}")
	}
	return credentials, CheckCredentials(credentials)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// CheckCredentials says everything that is wrong with credentials at once, nil if nothing. It never quotes a sha256: it may be
// a token that somebody pasted there.
func CheckCredentials(credentials []Credential) error {
	var problems []error
	if len(credentials) == 0 || len(credentials) > MaxCredentials {
		problems = append(problems, fmt.Errorf("%d credentials; give 1 to %d", len(credentials), MaxCredentials))
	}
	names, sums := map[string]bool{}, map[string]bool{}
	for i, c := range credentials {
		at := fmt.Sprintf("credential %d (%q)", i+1, c.Name)
		if c.Name == "" || len(c.Name) > maxCredentialName {
			problems = append(problems, fmt.Errorf("credential %d: give it a name of 1 to %d bytes", i+1, maxCredentialName))
		}
		if c.Role.rank() == 0 {
			problems = append(problems, fmt.Errorf("%s: role %q; give viewer, support or operator", at, c.Role))
		}
		if sum, err := hex.DecodeString(c.SHA256); err != nil || len(sum) != sha256.Size {
			problems = append(problems, fmt.Errorf("%s: sha256 must be the 64 hexadecimal digits of the token's SHA-256", at))
		} else if [sha256.Size]byte(sum) == sha256.Sum256(nil) {
			problems = append(problems, fmt.Errorf("%s: sha256 is that of an empty token; choose a random token", at))
		}
		if names[c.Name] || sums[strings.ToLower(c.SHA256)] {
			problems = append(problems, fmt.Errorf("%s: its name or sha256 stands twice; remove one", at))
		}
		names[c.Name], sums[strings.ToLower(c.SHA256)] = true, true
	}
	return errors.Join(problems...)
}

// find returns the credential of token. It takes the same time whichever matches, and whether one does.
func find(credentials []Credential, token string) (found Credential, ok bool) {
	sum := sha256.Sum256([]byte(token))
	for _, c := range credentials {
		want, err := hex.DecodeString(c.SHA256)
		if err == nil && subtle.ConstantTimeCompare(sum[:], want) == 1 {
			found, ok = c, true
		}
	}
	return found, ok
}
