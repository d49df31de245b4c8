package gateway

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goccy/go-yaml"
	"golang.org/x/time/rate"

	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// CheckConfig is gateway.yaml's `check` section.
type CheckConfig struct {
	// Credentials is a file with a list of {name, sha256}: who may ask /v1/check and /v1/usage. Without it they are served on
	// loopback only.
	Credentials string `yaml:"credentials"`
}

// maxCheckCredentials bounds the work of checking one token, which is compared with every credential.
const maxCheckCredentials = 1000

// toldEvery is how often what every call may meet is logged at most.
const toldEvery = 10 * time.Second

// checkCredential is a bearer token, known by its SHA-256 only.
type checkCredential struct {
	Name   string `yaml:"name"`
	SHA256 string `yaml:"sha256"`

	sum [sha256.Size]byte
}

// parseCheckCredentials reads a credentials file and says everything that is wrong with it at once. It never quotes the file:
// somebody may have pasted a token.
func parseCheckCredentials(source []byte) ([]checkCredential, error) {
	var list []checkCredential
	if err := yaml.UnmarshalWithOptions(source, &list, yaml.Strict()); err != nil {
		if at, ok := errors.AsType[yaml.Error](err); ok && at.GetToken() != nil {
			return nil, fmt.Errorf("line %d: want a list of {name, sha256}", at.GetToken().Position.Line)
		}
		return nil, errors.New("want a YAML list of {name, sha256}")
	}
	var problems []error
	wrong := func(i int, what string) { problems = append(problems, fmt.Errorf("credential %d: %s", i+1, what)) }
	if len(list) == 0 || len(list) > maxCheckCredentials {
		problems = append(problems, fmt.Errorf("%d credentials; give 1 to %d", len(list), maxCheckCredentials))
	}
	names, sums := map[string]bool{}, map[[sha256.Size]byte]bool{}
	for i := range list {
		c := &list[i]
		if c.Name == "" || len(c.Name) > 64 {
			wrong(i, "give it a name of 1 to 64 bytes")
		}
		sum, err := hex.DecodeString(c.SHA256)
		if err != nil || len(sum) != sha256.Size {
			wrong(i, "sha256 must be the 64 hexadecimal digits of the token's SHA-256; make them with sha256sum")
			continue
		}
		c.sum = [sha256.Size]byte(sum)
		if c.sum == sha256.Sum256(nil) {
			wrong(i, "sha256 is that of an empty token; choose a random token")
		}
		if names[c.Name] || sums[c.sum] {
			wrong(i, "its name or sha256 stands twice; remove one")
		}
		names[c.Name], sums[c.sum] = true, true
	}
	return list, errors.Join(problems...)
}

// checkers are the credentials in use; nil where none are configured. The last good ones stay while the file is wrong.
type checkers struct {
	file string
	log  *telemetry.Telemetry
	list atomic.Pointer[[]checkCredential]

	failures *identity.Failures
	told     rate.Sometimes // the log, of wrong ones

	mu struct {
		sync.Mutex

		read []byte // the file as it was last looked at
	}
}

func openCheckers(cfg CheckConfig, tel *telemetry.Telemetry) (*checkers, error) {
	if cfg.Credentials == "" {
		return nil, nil //nolint:nilnil // none are configured
	}
	source, err := os.ReadFile(cfg.Credentials)
	if err != nil {
		return nil, fmt.Errorf("%w: check.credentials: %w", config.ErrUsage, err)
	}
	list, err := parseCheckCredentials(source)
	if err != nil {
		return nil, fmt.Errorf("%w: check.credentials in %s:\n%w", config.ErrUsage, cfg.Credentials, err)
	}
	c := &checkers{
		file: cfg.Credentials, log: tel, failures: identity.NewFailures(), told: rate.Sometimes{Interval: toldEvery},
	}
	c.mu.read = source
	c.list.Store(&list)
	return c, nil
}

// reload takes over a changed file. One that cannot be used changes nothing, and is told once.
func (c *checkers) reload(ctx context.Context) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	source, err := os.ReadFile(c.file)
	if err != nil {
		source = []byte(err.Error())
	}
	if bytes.Equal(source, c.mu.read) {
		return
	}
	c.mu.read = source
	var list []checkCredential
	if err == nil {
		list, err = parseCheckCredentials(source)
	}
	if err != nil {
		c.log.Log.ErrorContext(ctx, "check.credentials cannot be used; the last good ones stay", "error", err)
		return
	}
	c.list.Store(&list)
	c.log.Log.InfoContext(ctx, "check.credentials changed", "credentials", len(list))
}

// allow tells whether r, which came from the network peer, shows a known bearer token; without credentials everybody may ask. It
// takes the same time whichever matches, and whether one does. Where too many wrong ones came from there, none is looked at but
// those that were right lately.
func (c *checkers) allow(r *http.Request, peer netip.Addr) error {
	if c == nil {
		return nil
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); token == "" {
		return errCheckCredential // no guess
	}
	sum, found, now := sha256.Sum256([]byte(token)), 0, time.Now()
	if wait := c.failures.Wait(peer, sum, now); wait > 0 {
		return &identity.TooManyFailuresError{Wait: wait}
	}
	for _, known := range *c.list.Load() {
		found |= subtle.ConstantTimeCompare(sum[:], known.sum[:])
	}
	if found == 1 && strings.EqualFold(scheme, "bearer") {
		c.failures.Right(sum)
		return nil
	}
	c.failures.Wrong(peer, sum, now)
	c.told.Do(func() {
		c.log.Log.WarnContext(r.Context(), "a wrong credential at the check API; see check.credentials, and who asks")
	})
	return errCheckCredential
}

// peerOf is the network that r's connection comes from; nobody's word counts here.
func (g *Gateway) peerOf(r *http.Request) netip.Addr {
	at, _ := netip.ParseAddrPort(r.RemoteAddr)
	return g.addresses.Network(at.Addr().Unmap().WithZone(""))
}
