// Package identity tells who makes a request: from its credentials, an API key or a token or both, and from the address that
// its trusted proxies name. A credential is never kept, logged or compared in clear: it is looked up by its SHA-256, or its
// signature is verified. Files and key sets are read again when they change; a bad one changes nothing.
package identity

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
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

// authorization carries a token.
const authorization = "Authorization"

// Config is gateway.yaml's `identity` section.
type Config struct {
	APIKeys APIKeys `yaml:"api_keys"`
	// JWT, if there, makes the gateway read bearer tokens. Without it Authorization is the upstream's business.
	JWT *JWT `yaml:"jwt"`
	// Unknown decides about requests without credential: anonymous (the default) or deny.
	Unknown string `yaml:"unknown"`
	// HashSecretFile holds the secret that all roles share; white space around it is ignored.
	HashSecretFile string `yaml:"hash_secret_file"`
}

// APIKeys says which header carries an API key, and which file lists the known ones.
type APIKeys struct {
	Header string `yaml:"header"`
	File   string `yaml:"file"`
	// Forward lets the upstream see the key. It is for upstreams that look it up themselves: whoever reads their logs or memory
	// can then be any client.
	Forward bool `yaml:"forward"`
}

// Secrets are the headers that upstreams do not get. (A token they do: it is meant for more than one reader, and expires.)
func (c Config) Secrets() []string {
	switch {
	case c.APIKeys.Forward:
		return nil
	case c.APIKeys.Header == "":
		return []string{DefaultHeader}
	}
	return []string{c.APIKeys.Header}
}

// Validate returns everything that is wrong with c, nil if nothing.
func (c Config) Validate() error {
	var problems []error
	if c.Unknown != "" && c.Unknown != UnknownAnonymous && c.Unknown != UnknownDeny {
		problems = append(problems, fmt.Errorf("identity.unknown %q: write anonymous or deny", c.Unknown))
	}
	if c.APIKeys.Header != "" && !isHeaderName(c.APIKeys.Header) {
		problems = append(problems,
			fmt.Errorf("identity.api_keys.header %q is not a header name; write for example %s", c.APIKeys.Header, DefaultHeader))
	}
	if c.JWT != nil {
		problems = append(problems, c.JWT.validate())
		if strings.EqualFold(c.APIKeys.Header, authorization) {
			problems = append(problems, errors.New("identity.api_keys.header: Authorization carries tokens where there is identity.jwt; "+
				"give API keys another header"))
		}
	}
	return errors.Join(problems...)
}

// Why a request has no identity. The first two are answered 401; the third is nobody's fault, and 503.
var (
	ErrWrongCredential = errors.New("the credential is not valid; check it, and that it has not expired")
	ErrNoCredential    = errors.New("a credential is required")
	ErrUnavailable     = errors.New("credentials cannot be checked at the moment")
)

// Reader reads the identity of requests.
type Reader struct {
	header   string
	deny     bool
	lookup   Lookup
	tokens   *tokens // nil: none are read
	files    []*file
	failures *Failures
	log      *slog.Logger
}

// NewReader returns a Reader as cfg says; lookup, if not nil, replaces the file of API keys. What the reader notices later, it
// says in log. It serves at once what it was given as files; a key set behind a URL is fetched by [Reader.Run].
func NewReader(cfg Config, lookup Lookup, log *slog.Logger) (*Reader, error) {
	r := &Reader{header: cfg.APIKeys.Header, deny: cfg.Unknown == UnknownDeny, lookup: lookup, failures: NewFailures(), log: log}
	if r.header == "" {
		r.header = DefaultHeader
	}
	if r.lookup == nil {
		keys := &keyFile{}
		r.lookup = keys.lookup
		if cfg.APIKeys.File != "" {
			r.files = append(r.files, &file{what: "api keys", path: cfg.APIKeys.File, use: keys.use, log: log})
		}
	}
	if cfg.JWT != nil {
		r.tokens = newTokens(*cfg.JWT, log)
		if r.tokens.remote == nil {
			r.files = append(r.files, &file{what: "jwks", path: cfg.JWT.JWKS, use: r.tokens.use, log: log})
		}
	}
	var problems []error
	for _, f := range r.files {
		problems = append(problems, f.load())
	}
	return r, errors.Join(problems...)
}

// Run keeps files and key sets as new as they are where they come from, until ctx ends.
func (r *Reader) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, f := range r.files {
		group.Go(func() { f.watch(ctx) })
	}
	if r.tokens != nil && r.tokens.remote != nil {
		group.Go(func() { r.tokens.remote.run(ctx) })
	}
	group.Wait()
}

// Reload reads the files again now, and has a key set behind a URL fetched. A file that is bad changes nothing; what is wrong
// with each is returned.
func (r *Reader) Reload() error {
	var problems []error
	for _, f := range r.files {
		problems = append(problems, f.load())
	}
	if r.tokens != nil && r.tokens.remote != nil {
		poke(r.tokens.remote.force)
	}
	return errors.Join(problems...)
}

// Ready tells about the keys that tokens are verified with. A gateway is not ready before it has them, but for ten seconds at
// most: after that a key server that is out must not keep every gateway of the region away from clients with API keys.
func (r *Reader) Ready() []telemetry.Check {
	if r.tokens == nil {
		return nil
	}
	return []telemetry.Check{r.tokens.ready()}
}

// Challenges are the values of WWW-Authenticate for a request that ended with err.
func (r *Reader) Challenges(err error) []string {
	challenges := []string{fmt.Sprintf("ApiKey realm=%q, header=%q", "annona", r.header)}
	if r.tokens == nil {
		return challenges
	}
	if errors.Is(err, ErrWrongCredential) {
		return append(challenges, `Bearer realm="annona", error="invalid_token"`)
	}
	return append(challenges, `Bearer realm="annona"`)
}

// Identify returns who makes req, which came from client. A credential that is present and not valid is always wrong, also
// where none is needed and where another one is right: a client that believes to be known must hear that it is not, instead of
// being limited as a stranger. An address that showed too many wrong ones gets [TooManyFailuresError] for any but those that
// were right lately: the clients behind one address with a guesser keep working, and its guesses are not looked at.
func (r *Reader) Identify(req *http.Request, client Client) (policy.Identity, error) {
	shown, err := r.credentials(req)
	if err == nil && !shown.any() {
		if r.deny {
			return policy.Identity{}, ErrNoCredential
		}
		return policy.Identity{Tier: policy.Anonymous, IP: client.Addr, Network: client.Network}, nil
	}
	sum, now := shown.sum(), time.Now()
	if wait := r.failures.Wait(client.Network, sum, now); wait > 0 {
		return policy.Identity{}, &TooManyFailuresError{Wait: wait}
	}
	var id policy.Identity
	if err == nil {
		id, err = r.verify(req.Context(), shown)
	}
	switch {
	case errors.Is(err, ErrWrongCredential):
		r.failures.Wrong(client.Network, sum, now)
		return policy.Identity{}, err
	case err != nil:
		return policy.Identity{}, err
	}
	r.failures.Right(sum)
	id.IP, id.Network = client.Addr, client.Network
	return id, nil
}

// credentials are what a request shows, "" for none.
type credentials struct{ key, token string }

func (c credentials) any() bool { return c.key != "" || c.token != "" }

func (c credentials) sum() [sha256.Size]byte {
	return sha256.Sum256([]byte(c.key + "\n" + c.token)) // neither can hold a line's end
}

// credentials reads what req shows. Two of a kind, or an empty one, are wrong: which of them counts would be a guess.
func (r *Reader) credentials(req *http.Request) (shown credentials, err error) {
	if keys := req.Header.Values(r.header); len(keys) > 0 {
		shown.key = keys[0]
		if len(keys) > 1 || keys[0] == "" {
			err = fmt.Errorf("%w: API keys: %d, or an empty one", ErrWrongCredential, len(keys))
		}
	}
	if r.tokens == nil {
		return shown, err
	}
	values := req.Header.Values(authorization)
	for _, value := range values {
		scheme, token, _ := strings.Cut(value, " ")
		if !strings.EqualFold(scheme, "bearer") {
			continue // meant for the upstream
		}
		shown.token = strings.Trim(token, " ")
		if len(values) > 1 || shown.token == "" {
			err = fmt.Errorf("%w: Authorization fields: %d, or an empty token", ErrWrongCredential, len(values))
		}
	}
	return shown, err
}

// verify returns whose the credentials are. Where there are two, both must be right and the same user's; the token's word on
// tier and claims comes first, for it is the younger.
func (r *Reader) verify(ctx context.Context, shown credentials) (id policy.Identity, err error) {
	if shown.key != "" {
		var known bool
		if id, known = r.lookup(shown.key); !known {
			return policy.Identity{}, fmt.Errorf("%w: unknown API key", ErrWrongCredential)
		}
		if id.APIKey == "" {
			id.APIKey = Hash(shown.key)
		}
	}
	if shown.token == "" {
		return id, nil
	}
	of, err := r.tokens.verify(ctx, shown.token)
	if err != nil {
		return policy.Identity{}, err
	}
	if id.User != "" && id.User != of.User {
		return policy.Identity{}, fmt.Errorf("%w: API key and token are of two users", ErrWrongCredential)
	}
	of.APIKey = id.APIKey
	if of.Tier == "" {
		of.Tier = id.Tier
	}
	if len(id.Claims) > 0 {
		merged := maps.Clone(id.Claims)
		maps.Copy(merged, of.Claims)
		of.Claims = merged
	}
	return of, nil
}

// Hash is the name under which a credential is known: its SHA-256 in hexadecimal.
func Hash(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
