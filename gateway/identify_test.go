package gateway

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

const perAddress = `schema: 1
policies:
  - {name: per-address, key: [ip], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: closed, missing: skip}
`

// charged remembers whose buckets were charged.
type charged struct {
	mu   sync.Mutex
	keys map[limit.Key]int
}

func (c *charged) take(r bucket.Request) (bucket.Verdict, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, charge := range r.Charges {
		c.keys[charge.Key]++
	}
	return admitAll(r)
}

func (c *charged) buckets() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.keys)
}

func addressed(t *testing.T, cfg identity.AddressConfig) (*running, *charged) {
	t.Helper()
	c := &charged{keys: map[limit.Key]int{}}
	config := testConfig(t, perAddress, upstream(t).URL)
	config.ClientAddress = cfg
	return run(t, config, &fakeStore{take: c.take}), c
}

func TestCase12_ForgedAddressesOfAnUntrustedPeerShareOneBucket(t *testing.T) {
	g, c := addressed(t, identity.AddressConfig{TrustedProxies: []string{"10.0.0.0/8"}})
	for i := range 50 {
		e := g.get(t, "/", "X-Forwarded-For", fmt.Sprintf("192.0.2.%d", i), "X-Real-IP", "192.0.2.1", "Forwarded", "for=192.0.2.2").echoed(t)
		if e.Header.Get("X-Forwarded-For") != "127.0.0.1" || e.Header.Get("X-Real-Ip") != "" || e.Header.Get("Forwarded") != "" {
			t.Fatalf("the upstream was told %v", e.Header)
		}
	}
	if n := c.buckets(); n != 1 {
		t.Errorf("50 forged addresses were %d clients, want 1", n)
	}
}

func TestCase12_BehindATrustedProxyTheLastAddressCounts(t *testing.T) {
	g, c := addressed(t, identity.AddressConfig{TrustedProxies: []string{"127.0.0.0/8"}})
	for i := range 50 {
		e := g.get(t, "/", "X-Forwarded-For", fmt.Sprintf("192.0.2.%d, junk, 198.51.100.7", i), "X-Forwarded-Proto", "https").echoed(t)
		if e.Header.Get("X-Forwarded-For") != "198.51.100.7, 127.0.0.1" || e.Header.Get("X-Forwarded-Proto") != "https" {
			t.Fatalf("the upstream was told %v", e.Header)
		}
	}
	if n := c.buckets(); n != 1 {
		t.Errorf("50 forged addresses before the client's were %d clients, want 1", n)
	}
	for i := range 3 {
		g.get(t, "/", "X-Forwarded-For", fmt.Sprintf("192.0.2.9, junk%d, 127.0.0.9", i))
		g.get(t, "/", "X-Forwarded-For", fmt.Sprintf("198.51.100.%d", 100+i))
	}
	if n := c.buckets(); n != 1+1+3 {
		t.Errorf("%d clients, want one more for the proxy before the garbage, and three", n)
	}
}

func TestAHundredAddressesOfANetworkShareOneBucket(t *testing.T) {
	g, c := addressed(t, identity.AddressConfig{TrustedProxies: []string{"127.0.0.1"}, Prefix: identity.Prefix{V4: 32, V6: 64}})
	for i := range 100 {
		g.get(t, "/", "X-Forwarded-For", fmt.Sprintf("2001:db8::%x:1", i))
	}
	if n := c.buckets(); n != 1 {
		t.Errorf("100 addresses of a /64 were %d clients, want 1", n)
	}
}

func TestPROXYProtocolOfTrustedPeersOnly(t *testing.T) {
	for trusted, want := range map[string]string{"127.0.0.0/8": "203.0.113.7", "10.0.0.0/8": ""} {
		g, _ := addressed(t, identity.AddressConfig{TrustedProxies: []string{trusted}, ProxyProtocol: "v1v2"})
		a := raw(t, g.Addr().String(), "PROXY TCP4 203.0.113.7 127.0.0.1 4711 80\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if want == "" {
			if a.StatusCode != http.StatusBadRequest {
				t.Errorf("a PROXY header of a stranger: status %d, want 400", a.StatusCode)
			}
			continue
		}
		if e := a.echoed(t); e.Header.Get("X-Forwarded-For") != want {
			t.Errorf("the client of a PROXY header is %q, want %s", e.Header.Get("X-Forwarded-For"), want)
		}
		if e := g.get(t, "/").echoed(t); e.Header.Get("X-Forwarded-For") != "127.0.0.1" {
			t.Errorf("without a PROXY header the client is %q", e.Header.Get("X-Forwarded-For"))
		}
	}
}

// The connection of a proxy that sends no header at all does not hold the others up.
func TestAPeerThatSendsNothingHoldsNobodyUp(t *testing.T) {
	g, _ := addressed(t, identity.AddressConfig{TrustedProxies: []string{"127.0.0.0/8"}, ProxyProtocol: "v1v2"})
	for range 5 {
		silent, err := new(net.Dialer).DialContext(t.Context(), "tcp", g.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer silent.Close()
	}
	start := time.Now()
	g.get(t, "/").echoed(t)
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("a request took %v beside silent connections", took)
	}
}

func TestTooManyWrongCredentialsAre429(t *testing.T) {
	cfg := testConfig(t, perUser, upstream(t).URL)
	g := run(t, cfg, &fakeStore{take: admitAll})
	g.get(t, "/", "X-API-Key", "key-alice").echoed(t)
	var a answered
	for i := range 51 {
		if a = g.get(t, "/", "X-API-Key", fmt.Sprint("guess-", i)); (a.StatusCode == http.StatusUnauthorized) != (i < 50) {
			t.Fatalf("guess %d: status %d", i, a.StatusCode)
		}
	}
	p := a.problem(t)
	if a.StatusCode != http.StatusTooManyRequests || p.Type != typeAbuse || p.RetryAfter < 1 || p.RetryAfter > 60 || a.Header.Get("Retry-After") != fmt.Sprint(p.RetryAfter) {
		t.Errorf("status %d, Retry-After %q: %s", a.StatusCode, a.Header.Get("Retry-After"), a.body)
	}
	g.get(t, "/", "X-API-Key", "key-alice").echoed(t)
	if e := g.get(t, "/").echoed(t); e.Header.Get("X-User-Id") != "" {
		t.Errorf("a client without credential: %v", e.Header)
	}
	if strings.Contains(g.log.String(), "guess-1") {
		t.Error("a credential is in the log")
	}
}

// tokensOf makes a key set with one key, and a function that signs with it.
func tokensOf(t *testing.T, kid string) (set string, sign func(jwt.MapClaims) string) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(map[string]any{"keys": []any{map[string]any{
		"kty": "OKP", "crv": "Ed25519", "kid": kid, "x": base64.RawURLEncoding.EncodeToString(public),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded), func(c jwt.MapClaims) string {
		token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c)
		token.Header["kid"] = kid
		signed, err := token.SignedString(private)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
}

// What a token verifiably says reaches the upstream, in the headers of the route; what a client says in those does not.
func TestTheVerifiedIdentityIsForwarded(t *testing.T) {
	set, sign := tokensOf(t, "one")
	cfg := testConfig(t, perUser, upstream(t).URL)
	cfg.Identity.JWT = &identity.JWT{JWKS: filepath.Join(t.TempDir(), "jwks.json"), Issuer: "i", Audience: "a"}
	if err := os.WriteFile(cfg.Identity.JWT.JWKS, []byte(set), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Routes[0].Forward = proxy.Forward{User: "X-User-Id", Tier: "X-Tier", Claims: map[string]string{"org": "X-Org", "note": "X-Note", "team": "X-Team"}}
	g := run(t, cfg, &fakeStore{take: admitAll})
	forged := []string{
		"X-User-Id", "mallory", "X_User_Id", "mallory", "X-Tier", "mallory", "X-Org", "mallory", "X-Note", "mallory", "x-team", "mallory",
		"X_TEAM", "mallory", "Connection", "X-User-Id",
	}
	claims := jwt.MapClaims{
		"iss": "i", "aud": "a", "exp": time.Now().Add(time.Hour).Unix(), "sub": "alice", "tier": "gold", "org": "acme", "note": "two\r\nlines",
	}
	e := g.get(t, "/", append(forged, "Authorization", "Bearer "+sign(claims))...).echoed(t)
	for name, want := range map[string]string{"X-User-Id": "alice", "X-Tier": "gold", "X-Org": "acme", "X-Note": "", "X-Team": ""} {
		if got := e.Header.Get(name); got != want {
			t.Errorf("the upstream got %s: %q, want %q", name, got, want)
		}
	}
	anonymous := g.get(t, "/", forged...).echoed(t)
	for _, e := range []echoed{e, anonymous} {
		for name, values := range e.Header {
			if strings.Contains(strings.Join(values, " "), "mallory") {
				t.Errorf("the upstream got the client's %s: %v", name, values)
			}
		}
	}
	if anonymous.Header.Get("X-Tier") != "anonymous" {
		t.Errorf("the upstream got tier %q of a client without credential", anonymous.Header.Get("X-Tier"))
	}
	claims["aud"] = "b"
	a := g.get(t, "/", "Authorization", "Bearer "+sign(claims))
	a.problem(t)
	challenges := a.Header.Values("WWW-Authenticate")
	if a.StatusCode != http.StatusUnauthorized || len(challenges) != 2 || challenges[1] != `Bearer realm="annona", error="invalid_token"` {
		t.Errorf("status %d, challenges %q", a.StatusCode, challenges)
	}
}

// A key server that is out is told by /readyz, and what cannot be checked is refused, not denied.
func TestTokensThatCannotBeCheckedAre503(t *testing.T) {
	cfg := testConfig(t, perUser, upstream(t).URL)
	cfg.Identity.JWT = &identity.JWT{JWKS: "http://127.0.0.1:1/jwks", Issuer: "i", Audience: "a"}
	g := run(t, cfg, &fakeStore{take: admitAll})
	_, sign := tokensOf(t, "one")
	a := g.get(t, "/", "Authorization", "Bearer "+sign(jwt.MapClaims{"sub": "alice"}))
	if p := a.problem(t); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || p.Type != typeCapacity {
		t.Errorf("status %d: %s", a.StatusCode, a.body)
	}
	if status, body := g.ready(t); status != http.StatusServiceUnavailable || !strings.Contains(body, `"jwks"`) {
		t.Errorf("/readyz = %d %s, want 503 in the first ten seconds", status, body)
	}
}

func TestHangupReloadsKeys(t *testing.T) {
	cfg := testConfig(t, perUser, upstream(t).URL)
	file := filepath.Join(t.TempDir(), "keys.yaml")
	cfg.Keys, cfg.Identity.APIKeys.File = nil, file
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("- {sha256: " + identity.Hash("old") + ", user: alice}")
	g := run(t, cfg, &fakeStore{take: admitAll})
	signals, stop := make(chan os.Signal), make(chan struct{})
	defer close(stop)
	go g.reloadOn(t.Context(), signals, stop)
	status := func(key string) int { return g.get(t, "/", "X-API-Key", key).StatusCode }
	write("- {sha256: " + identity.Hash("new") + ", user: alice}")
	signals <- syscall.SIGHUP
	eventually(t, "the new key is known", func() bool { return status("new") == http.StatusOK })
	if s := status("old"); s != http.StatusUnauthorized {
		t.Errorf("the old key: status %d", s)
	}
	write("nonsense")
	signals <- syscall.SIGHUP
	eventually(t, "a bad file is told", func() bool { return strings.Contains(g.log.String(), "what cannot be used changes nothing") })
	if s := status("new"); s != http.StatusOK {
		t.Errorf("a bad file changed something: status %d", s)
	}
}

// The trace of a trusted proxy goes on, with its decision about sampling; a stranger's does not.
func TestTheTraceOfATrustedPeerGoesOn(t *testing.T) {
	const id = "11111111111111111111111111111111"
	for _, trusted := range []bool{true, false} {
		cfg := testConfig(t, perUser, upstream(t).URL)
		cfg.Telemetry.Exporter = tracetest.NewInMemoryExporter()
		if trusted {
			cfg.ClientAddress.TrustedProxies = []string{"127.0.0.1"}
		}
		g := run(t, cfg, &fakeStore{take: admitAll})
		e := g.get(t, "/", "Traceparent", "00-"+id+"-2222222222222222-00", "Tracestate", "v=1").echoed(t)
		parent := e.Header.Get("Traceparent")
		if goesOn := strings.HasPrefix(parent, "00-"+id+"-"); goesOn != trusted || strings.Contains(parent, "2222222222222222") {
			t.Errorf("trusted %v: the upstream got traceparent %s", trusted, parent)
		}
		if state := e.Header.Get("Tracestate"); (state != "") != trusted {
			t.Errorf("trusted %v: the upstream got tracestate %q", trusted, state)
		}
		if strings.HasSuffix(parent, "-00") != trusted {
			t.Errorf("trusted %v: traceparent %s, want the decision of a trusted peer only", trusted, parent)
		}
	}
}

func TestConfigNamesWhatIsWrongWithAddressesAndTokens(t *testing.T) {
	cfg := testConfig(t, perUser, "http://127.0.0.1:1")
	cfg.ClientAddress = identity.AddressConfig{TrustedProxies: []string{"lan"}, TrustedHops: -1}
	cfg.Identity.JWT = &identity.JWT{}
	cfg.Routes[0].Forward = proxy.Forward{User: "X User", Tier: "Host", Claims: map[string]string{"a": "X-A", "b": "x_a"}}
	err := cfg.Validate()
	for _, want := range []string{`"lan" is not a network`, "trusted_hops", "identity.jwt.jwks", `forward.user: "X User"`, "forward.tier: Host", "forward.claims.b: x_a carries .claims.a already"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want %q in it", err, want)
		}
	}
}

// An API key ends at the gateway, however its header is spelled; a token goes on to upstreams that verify it themselves.
func TestAPIKeysEndHere(t *testing.T) {
	for header, forward := range map[string]bool{"X-API-Key": false, "X-Client-Secret": false, "X-Legacy-Key": true} {
		cfg := testConfig(t, perUser, upstream(t).URL)
		cfg.Identity.APIKeys.Header, cfg.Identity.APIKeys.Forward = header, forward
		g := run(t, cfg, &fakeStore{take: admitAll})
		seen := g.get(t, "/", header, "key-a", strings.ReplaceAll(header, "-", "_"), "key-a", "Authorization", "Bearer for-upstream").echoed(t).Header
		if got := seen.Get(header); (got == "key-a") != forward {
			t.Errorf("%s, forward %v: the upstream got %q", header, forward, got)
		}
		if seen.Get("Authorization") != "Bearer for-upstream" || seen.Get("X-User-Id") != "a" {
			t.Errorf("the upstream got %v, want the token and the identity", seen)
		}
		for name := range seen {
			if strings.Contains(name, "_") && !forward {
				t.Errorf("the upstream got %s", name)
			}
		}
	}
}
