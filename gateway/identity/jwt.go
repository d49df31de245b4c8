package identity

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// JWT is gateway.yaml's `identity.jwt` section: whose tokens are accepted, and what they say.
type JWT struct {
	// JWKS is a file with a JSON Web Key Set, or the http or https URL of one.
	JWKS string `yaml:"jwks"`
	// Issuer and Audience, where given, must be the token's.
	Issuer   string `yaml:"issuer"`
	Audience string `yaml:"audience"`
	// UserClaim names the user (default sub), who must be there; TierClaim (default tier) the tier, which may be absent.
	UserClaim string `yaml:"user_claim"`
	TierClaim string `yaml:"tier_claim"`
}

func (j JWT) validate() error {
	switch u, err := url.Parse(j.JWKS); {
	case j.JWKS == "":
		return errors.New("identity.jwt.jwks: name the file with the key set of the issuer, or its URL")
	case !j.isRemote():
		return nil
	case err != nil || u.Host == "":
		// Not quoted: it may hold a credential.
		return errors.New("identity.jwt.jwks is not a URL; write for example https://id.example.com/.well-known/jwks.json")
	case u.User != nil:
		return errors.New("identity.jwt.jwks holds a credential, which would show in logs; remove it")
	}
	return nil
}

func (j JWT) isRemote() bool {
	return strings.HasPrefix(j.JWKS, "http://") || strings.HasPrefix(j.JWKS, "https://")
}

const (
	// leeway is how much the issuer's clock may differ from ours.
	leeway = 30 * time.Second
	// maxToken bounds what is decoded; a request's header has no room for much more.
	maxToken = 16 << 10
	// readyAfter is how long a gateway is not ready for lack of keys.
	readyAfter = 10 * time.Second
)

// tokens verifies bearer tokens.
type tokens struct {
	config JWT
	parser *jwt.Parser
	keys   atomic.Pointer[keySet] // nil until the first load
	remote *remote                // nil where the key set is a file
	log    *slog.Logger
	start  time.Time
}

func newTokens(cfg JWT, log *slog.Logger) *tokens {
	if cfg.UserClaim == "" {
		cfg.UserClaim = "sub"
	}
	if cfg.TierClaim == "" {
		cfg.TierClaim = "tier"
	}
	options := []jwt.ParserOption{
		jwt.WithValidMethods(algorithms()), jwt.WithExpirationRequired(), jwt.WithLeeway(leeway), jwt.WithJSONNumber(), jwt.WithStrictDecoding(),
	}
	if cfg.Issuer != "" {
		options = append(options, jwt.WithIssuer(cfg.Issuer))
	}
	if cfg.Audience != "" {
		options = append(options, jwt.WithAudience(cfg.Audience))
	}
	t := &tokens{config: cfg, parser: jwt.NewParser(options...), log: log, start: time.Now()}
	if cfg.isRemote() {
		t.remote = newRemote(cfg.JWKS, t.use, log)
	}
	if cfg.Issuer == "" || cfg.Audience == "" {
		log.Warn("identity.jwt has no issuer or no audience: a token that was made for another service is accepted")
	}
	if strings.HasPrefix(cfg.JWKS, "http:") {
		log.Warn("identity.jwt.jwks is fetched without TLS: whoever can change the answer on its way can make tokens")
	}
	return t
}

// use takes over a key set, or says what is wrong with it.
func (t *tokens) use(source []byte) error {
	set, skipped, err := parseKeySet(source, t.remote == nil)
	if err != nil {
		return err
	}
	for _, why := range skipped {
		t.log.Warn("a key of the key set is not used", "reason", why)
	}
	t.keys.Store(set)
	return nil
}

var (
	errNoKeys     = errors.New("there is no key set yet")
	errUnknownKey = errors.New("the key set has no such key for that algorithm")
)

// verify returns what a token says of its holder. Where its key is unknown and the key set comes from a URL, a fetch may bring
// it; the request waits for that a moment, if one is due.
func (t *tokens) verify(ctx context.Context, raw string) (policy.Identity, error) {
	if len(raw) > maxToken {
		return policy.Identity{}, fmt.Errorf("%w: a token of %d bytes", ErrWrongCredential, len(raw))
	}
	claims, err := t.parse(raw)
	if t.remote != nil && (errors.Is(err, errUnknownKey) || errors.Is(err, errNoKeys)) && t.remote.await(ctx) {
		claims, err = t.parse(raw)
	}
	switch {
	case errors.Is(err, errNoKeys):
		return policy.Identity{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case err != nil:
		return policy.Identity{}, fmt.Errorf("%w: %w", ErrWrongCredential, err)
	}
	return t.identity(claims)
}

func (t *tokens) parse(raw string) (jwt.MapClaims, error) {
	claims := jwt.MapClaims{}
	_, err := t.parser.ParseWithClaims(raw, claims, t.keyOf)
	return claims, err //nolint:wrapcheck // verify does
}

// keyOf returns the keys that may have signed a token: those of its id and of its very algorithm. That a key names the one
// algorithm it is for is what keeps a public key from being used as a secret.
func (t *tokens) keyOf(token *jwt.Token) (any, error) {
	if _, critical := token.Header["crit"]; critical {
		return nil, errors.New("it needs an extension (crit) that is not known here")
	}
	kid, isText := token.Header["kid"].(string)
	if _, given := token.Header["kid"]; given && !isText {
		return nil, errors.New("its key id (kid) is not a text")
	}
	set := t.keys.Load()
	if set == nil {
		return nil, errNoKeys
	}
	candidates := set.find(kid, token.Method.Alg())
	if len(candidates) == 0 {
		return nil, errUnknownKey
	}
	return jwt.VerificationKeySet{Keys: candidates}, nil
}

// identity reads verified claims.
func (t *tokens) identity(claims jwt.MapClaims) (policy.Identity, error) {
	rendered, _ := scalars(claims)
	id := policy.Identity{User: rendered[t.config.UserClaim], Tier: rendered[t.config.TierClaim], Claims: rendered}
	if id.User == "" || !printable(id.User) {
		return policy.Identity{}, fmt.Errorf("%w: the token's claim %s names no user", ErrWrongCredential, t.config.UserClaim)
	}
	if _, given := claims[t.config.TierClaim]; !printable(id.Tier) || (given && id.Tier == "") {
		return policy.Identity{}, fmt.Errorf("%w: the token's claim %s names no tier", ErrWrongCredential, t.config.TierClaim)
	}
	return id, nil
}

func (t *tokens) ready() telemetry.Check {
	check := telemetry.Check{Name: "jwks", OK: t.keys.Load() != nil}
	if !check.OK {
		check.Required = time.Since(t.start) < readyAfter
		check.Detail = "the key set was not read yet: tokens cannot be checked"
	}
	if t.remote != nil {
		if why := t.remote.failed.Load(); why != nil {
			check.Detail = "the key set cannot be fetched: " + *why
		}
	}
	return check
}
