// Package identity tells who makes a request, from its credential and its peer's address. A credential is never kept, logged
// or compared in clear: it is looked up by its SHA-256.
package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/annona-gateway/annona/shared/policy"
)

// Lookup finds whose credential key is. It is called for every request with a credential, by many goroutines at once, and must
// not wait for anything.
type Lookup func(key string) (policy.Identity, bool)

// What a client without credential gets.
const (
	UnknownAnonymous = "anonymous"
	UnknownDeny      = "deny"
)

// DefaultHeader carries an API key where the configuration names no other.
const DefaultHeader = "X-API-Key"

// Config is gateway.yaml's `identity` section.
type Config struct {
	APIKeys APIKeys `yaml:"api_keys"`
	// Unknown decides about requests without credential: anonymous (the default) or deny.
	Unknown string `yaml:"unknown"`
	// HashSecretFile holds the secret that all roles share; white space around it is ignored.
	HashSecretFile string `yaml:"hash_secret_file"`
	// JWT is known and refused: this version has API keys only.
	JWT map[string]any `yaml:"jwt"`
}

// APIKeys says which header carries an API key, and which file lists the known ones.
type APIKeys struct {
	Header string `yaml:"header"`
	File   string `yaml:"file"`
}

// Validate returns everything that is wrong with c, nil if nothing.
func (c Config) Validate() error {
	var problems []error
	if c.JWT != nil {
		problems = append(problems, errors.New("identity.jwt is not supported by this version yet; remove it"))
	}
	if c.Unknown != "" && c.Unknown != UnknownAnonymous && c.Unknown != UnknownDeny {
		problems = append(problems, fmt.Errorf("identity.unknown %q: write anonymous or deny", c.Unknown))
	}
	if strings.ContainsAny(c.APIKeys.Header, " \t\r\n:") {
		problems = append(problems,
			fmt.Errorf("identity.api_keys.header %q is not a header name; write for example %s", c.APIKeys.Header, DefaultHeader))
	}
	return errors.Join(problems...)
}

// The two ways in which a request has no identity. Both are answered 401.
var (
	ErrWrongCredential = errors.New("the credential is not known; check the API key")
	ErrNoCredential    = errors.New("a credential is required; send an API key")
)

// Reader reads the identity of requests.
type Reader struct {
	header string
	deny   bool
	lookup Lookup
}

// NewReader returns a Reader as cfg says; lookup, if not nil, replaces the file of API keys.
func NewReader(cfg Config, lookup Lookup) (*Reader, error) {
	r := &Reader{header: cfg.APIKeys.Header, deny: cfg.Unknown == UnknownDeny, lookup: lookup}
	if r.header == "" {
		r.header = DefaultHeader
	}
	if r.lookup != nil {
		return r, nil
	}
	r.lookup = func(string) (policy.Identity, bool) { return policy.Identity{}, false }
	if cfg.APIKeys.File == "" {
		return r, nil
	}
	var err error
	r.lookup, err = Load(cfg.APIKeys.File)
	return r, err
}

// Header is the name of the header that carries the credential, for the challenge of a 401.
func (r *Reader) Header() string { return r.header }

// Identify returns who makes req. A credential that is present and not known is always wrong, also where none is needed: a
// client that believes to be known must hear that it is not, instead of being limited as a stranger.
func (r *Reader) Identify(req *http.Request) (policy.Identity, error) {
	peer := Peer(req.RemoteAddr)
	keys := req.Header.Values(r.header)
	switch {
	case len(keys) == 0 && r.deny:
		return policy.Identity{}, ErrNoCredential
	case len(keys) == 0:
		return policy.Identity{Tier: policy.Anonymous, IP: peer}, nil
	case len(keys) > 1 || keys[0] == "":
		return policy.Identity{}, ErrWrongCredential
	}
	id, ok := r.lookup(keys[0])
	if !ok {
		return policy.Identity{}, ErrWrongCredential
	}
	if id.APIKey == "" {
		id.APIKey = Hash(keys[0])
	}
	id.IP = peer
	return id, nil
}

// Hash is the name under which a credential is known: its SHA-256 in hexadecimal.
func Hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Peer returns the address of the connection's other end, the zero address where remote names none. An IPv4 address that came
// over an IPv6 socket is the same client as over an IPv4 one, and a zone names one of our interfaces, not the client.
func Peer(remote string) netip.Addr {
	if at, err := netip.ParseAddrPort(remote); err == nil {
		return at.Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
