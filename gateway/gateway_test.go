package gateway

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

func TestAdmittedRequestReachesTheUpstreamWithItsLimits(t *testing.T) {
	g := run(t, testConfig(t, perUser, upstream(t).URL), &fakeStore{take: admitAll})
	a := g.get(t, "/v1//x/../y?a=1;b&c", "X-API-Key", "key-alice", "X-User-Id", "mallory", "Annona-Degraded", "redis", "Traceparent", "00-1-2-01")
	e := a.echoed(t)
	if e.Target != "/v1/y?a=1;b&c" || e.Header.Get("X-User-Id") != "alice" || e.Header.Get("Annona-Degraded") != "" {
		t.Errorf("the upstream got %+v", e)
	}
	if parent := e.Header.Get("Traceparent"); len(parent) != 55 {
		t.Errorf("the upstream got traceparent %q, want ours", parent)
	}
	for field, want := range map[string]string{
		"RateLimit": `"per-user";r=7;t=19`, "RateLimit-Policy": `"per-user";q=10;w=60`,
		"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "19", "Annona-Degraded": "",
	} {
		if got := a.Header.Get(field); got != want || len(a.Header.Values(field)) > 1 {
			t.Errorf("%s: %q, want %q once", field, a.Header.Values(field), want)
		}
	}
	if a.Header.Get(echo.HeaderXRequestID) == "" || a.Header.Get(echo.HeaderXRequestID) != e.Header.Get(echo.HeaderXRequestID) {
		t.Error("client and upstream heard of different request ids")
	}
}

func TestUpstreamStricterLimitStays(t *testing.T) {
	g := run(t, testConfig(t, perUser, upstream(t).URL), &fakeStore{take: admitAll})
	if got := g.get(t, "/", "X-API-Key", "key-a", "X-Echo-Remaining", "3").Header.Values("X-Ratelimit-Remaining"); len(got) != 1 || got[0] != "3" {
		t.Errorf("X-RateLimit-Remaining = %q, want the upstream's 3", got)
	}
}

func TestDeniedIs429(t *testing.T) {
	g := run(t, testConfig(t, perUser, upstream(t).URL), &fakeStore{take: func(bucket.Request) (bucket.Verdict, error) {
		return bucket.Verdict{Outcome: bucket.Denied, States: []bucket.State{{Lacking: true, PoolAge: -1, RetryIn: 11_500_000}}}, nil
	}})
	a := g.get(t, "/", "X-API-Key", "key-alice")
	p := a.problem(t)
	if a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "12" {
		t.Errorf("status %d, Retry-After %q, want 429 and 12", a.StatusCode, a.Header.Get("Retry-After"))
	}
	if p.Type != typeQuota || p.Detail != "Limit per-user: 10 per minute. Try again in 12 seconds." || len(p.Violated) != 1 || p.Violated[0] != "per-user" ||
		p.Limit == nil || *p.Limit != 10 || p.Remaining == nil || *p.Remaining != 0 || p.RetryAfter != 12 || len(p.TraceID) != 32 {
		t.Errorf("problem = %s", a.body)
	}
	if a.Header.Get("Ratelimit") != `"per-user";r=0;t=12` || a.Header.Get("X-Ratelimit-Remaining") != "0" {
		t.Errorf("headers = %v", a.Header)
	}
	eventually(t, "the request is in the access log", func() bool { return strings.Contains(g.log.String(), `"status":429`) })
	if log := g.log.String(); !strings.Contains(log, p.TraceID) || strings.Contains(log, "alice") {
		t.Errorf("access log must name the trace and no client: %s", log)
	}
}

func TestRefusedIs503(t *testing.T) {
	g := run(t, testConfig(t, perUser, upstream(t).URL), &fakeStore{take: func(bucket.Request) (bucket.Verdict, error) {
		return bucket.Verdict{}, fmt.Errorf("%w: gone", bucket.ErrCouldNotAsk)
	}, ping: errors.New("gone")})
	a := g.get(t, "/", "X-API-Key", "key-alice")
	if p := a.problem(t); a.StatusCode != http.StatusServiceUnavailable || p.Type != typeCapacity || a.Header.Get("Retry-After") != "1" {
		t.Errorf("status %d, Retry-After %q: %s", a.StatusCode, a.Header.Get("Retry-After"), a.body)
	}
	if a.Header.Get("X-Ratelimit-Limit") != "10" || strings.Contains(string(a.body), "gone") {
		t.Errorf("want the limit and not the cause in %v %s", a.Header, a.body)
	}
	if status, body := g.ready(t); status != http.StatusOK || !strings.Contains(body, "gone") {
		t.Errorf("/readyz = %d %s, want 200 that names Redis", status, body)
	}
}

// Every error has its status and is a problem document; nothing of it was charged.
func TestRefusalsBeforeTheTake(t *testing.T) {
	up := upstream(t)
	cfg := testConfig(t, perUser, up.URL)
	cfg.Routes[0].Hosts, cfg.Routes[0].MaxBody = []string{"127.0.0.1"}, 8
	cfg.Identity.Unknown = "deny"
	g := run(t, cfg, &fakeStore{take: func(bucket.Request) (bucket.Verdict, error) {
		t.Error("a request that goes nowhere was charged")
		return bucket.Verdict{}, bucket.ErrCouldNotAsk
	}})
	for name, row := range map[string]struct {
		raw  string
		want int
	}{
		"no credential":    {"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 401},
		"wrong credential": {"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: no\r\n\r\n", 401},
		"path":             {"GET /../x HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: key-a\r\n\r\n", 400},
		"fragment":         {"GET /a#b HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: key-a\r\n\r\n", 400},
		"connect":          {"CONNECT x:1 HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: key-a\r\n\r\n", 400},
		"odd method":       {"BREW /../x HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: key-a\r\n\r\n", 400},
		"no route":         {"GET / HTTP/1.1\r\nHost: elsewhere\r\nX-API-Key: key-a\r\n\r\n", 404},
		"body":             {"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: key-a\r\nContent-Length: 9\r\n\r\n123456789", 413},
	} {
		t.Run(name, func(t *testing.T) {
			a := raw(t, g.Addr().String(), row.raw)
			if a.problem(t); a.StatusCode != row.want {
				t.Errorf("status %d, want %d: %s", a.StatusCode, row.want, a.body)
			}
			if (a.Header.Get("WWW-Authenticate") != "") != (row.want == 401) || a.Header.Get("Ratelimit") != "" {
				t.Errorf("headers = %v", a.Header)
			}
		})
	}
}

func TestMissingIdentityIs401(t *testing.T) {
	g := run(t, testConfig(t, strings.ReplaceAll(perUser, "missing: skip", "missing: deny"), upstream(t).URL), &fakeStore{take: admitAll})
	if a := g.get(t, "/"); a.StatusCode != http.StatusUnauthorized || a.Header.Get("WWW-Authenticate") == "" {
		t.Errorf("status %d, headers %v, want a 401 with a challenge", a.StatusCode, a.Header)
	}
}

// A bug of ours is a 500 that says nothing of itself, and the gateway goes on.
func TestPanicIsAnswered(t *testing.T) {
	g := run(t, testConfig(t, perUser, upstream(t).URL), &fakeStore{take: func(bucket.Request) (bucket.Verdict, error) { panic("out of cheese") }})
	for range 2 {
		a := g.get(t, "/", "X-API-Key", "key-a")
		if p := a.problem(t); a.StatusCode != http.StatusInternalServerError || strings.Contains(string(a.body), "cheese") || p.TraceID == "" {
			t.Errorf("status %d: %s", a.StatusCode, a.body)
		}
	}
	if !strings.Contains(g.log.String(), "out of cheese") {
		t.Error("the cause is not in the log")
	}
}

func TestConfigTellsAllErrorsAtOnce(t *testing.T) {
	cfg := Defaults()
	cfg.Region, cfg.Enforcement, cfg.TLS, cfg.Headers = "EU", "off", &TLS{}, HeaderSets{"x"}
	_, err := Open(t.Context(), cfg, nil)
	if !errors.Is(err, config.ErrUsage) {
		t.Fatalf("Open = %v, want %v", err, config.ErrUsage)
	}
	for _, want := range []string{"region name", "enforcement", "tls: name both files", "redis.addrs", "routes", "hash_secret_file", `headers: "x"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Open = %v, want %q in it", err, want)
		}
	}
}

func TestConfigFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	const source = `
region: eu
redis: {mode: single, addrs: ["127.0.0.1:6379"], timeout: 50ms}
routes: [{name: api, hosts: [], paths: ["/*"], upstreams: ["http://127.0.0.1:9000"], strip_prefix: "", forward: {user: X-User-Id, tier: X-Tier, claims: {org: X-Org}}, timeout: 30s, max_body: 10MiB}]
identity:
  api_keys: {header: X-API-Key}
  jwt: {jwks: "https://id.example.com/jwks", issuer: i, audience: a, user_claim: sub, tier_claim: tier}
  unknown: anonymous
  hash_secret_file: secret
client_address: {trusted_proxies: ["10.0.0.0/8"], trusted_hops: 0, header: X-Forwarded-For, prefix: {v4: 32, v6: 64}, proxy_protocol: off}
headers: draft-06
retry_jitter: 0
enforcement: on
access_log: off
`
	if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Defaults()
	if err := config.Load(file, []string{"ANNONA_HEADERS=ietf,x-ratelimit", "ANNONA_ENFORCEMENT=shadow", "ANNONA_CLIENT_ADDRESS_TRUSTED_PROXIES=10.0.0.0/8,fd00::/8", "ANNONA_IDENTITY_JWT_AUDIENCE=b"}, &cfg); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	if cfg.Enforcement != "shadow" || cfg.RetryJitter != 0 || len(cfg.Headers) != 2 || cfg.Routes[0].MaxBody != 10<<20 || cfg.AccessLog != "off" {
		t.Errorf("config = %+v", cfg)
	}
	if cfg.Identity.JWT.Audience != "b" || len(cfg.ClientAddress.TrustedProxies) != 2 || cfg.Routes[0].Forward.Claims["org"] != "X-Org" {
		t.Errorf("config = %+v, jwt %+v", cfg, cfg.Identity.JWT)
	}
}

func TestSecretFileIsTrimmed(t *testing.T) {
	cfg := testConfig(t, "", "http://127.0.0.1:1")
	want, err := secretOf(cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Identity.HashSecretFile = filepath.Join(t.TempDir(), "secret")
	for text, good := range map[string]bool{" sixteen bytes at least\n": true, "short\n           ": false} {
		if err := os.WriteFile(cfg.Identity.HashSecretFile, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg.Secret = nil
		got, err := secretOf(cfg)
		if (err == nil) != good || (good && got.Fingerprint() != want.Fingerprint()) {
			t.Errorf("secret %q: %v", text, err)
		}
	}
}

func TestPortTakenIsAClearMessage(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, which := range []string{"listen", "admin"} {
		cfg := testConfig(t, perUser, "http://127.0.0.1:1")
		if which == "listen" {
			cfg.Listen = l.Addr().String()
		} else {
			cfg.Admin = l.Addr().String()
		}
		tel, err := telemetry.Start(t.Context(), telemetry.Config{Log: &lockedBuffer{}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open(t.Context(), cfg, tel, &fakeStore{take: admitAll}); err == nil || !strings.Contains(err.Error(), "give another in "+which) {
			t.Errorf("open = %v, want what to do about %s", err, which)
		}
	}
}

// What a policy's numbers say reaches the bucket: the whole way from YAML to a charge.
func TestChargeOfAClient(t *testing.T) {
	got := make(chan bucket.Request, 1)
	g := run(t, testConfig(t, perUser, upstream(t).URL), &fakeStore{take: func(r bucket.Request) (bucket.Verdict, error) {
		got <- r
		return admitAll(r)
	}})
	g.get(t, "/", "X-API-Key", "key-alice")
	c := (<-got).Charges[0]
	if c.Policy != "per-user" || c.Part.Capacity != 10 || c.Cost != 1 || c.Leased || c.Shard != c.Key.Shard(policy.DefaultShards) || c.Key == (limit.Key{}) {
		t.Errorf("charge = %+v", c)
	}
}
