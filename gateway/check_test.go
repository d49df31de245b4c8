package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/policy"
)

// post asks the admin port.
func (r *running) post(t *testing.T, path, body string, header ...string) answered {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.AdminAddr().String()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for pair := range slices.Chunk(header, 2) {
		req.Header.Set(pair[0], pair[1])
	}
	return r.do(t, req)
}

// checked reads a 200 of /v1/check.
func (a answered) checked(t *testing.T) CheckAnswer {
	t.Helper()
	var c CheckAnswer
	if err := json.Unmarshal(a.body, &c); err != nil || a.StatusCode != http.StatusOK || a.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("status %d: %s (%v)", a.StatusCode, a.body, err)
	}
	return c
}

const checkPolicies = `schema: 1
policies:
  - {name: broad, key: [all], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: closed}
  - {name: user, match: {methods: [GET], paths: ["/v1/*"]}, key: [user], algorithm: token_bucket, rate: 3/min, scope: region, on_failure: closed}
  - {name: trial, key: [user], algorithm: token_bucket, rate: 1/min, scope: region, on_failure: closed, enforce: 0%}
  - {name: key, match: {paths: [/key]}, key: [api_key], algorithm: token_bucket, rate: 1/min, scope: region, on_failure: closed}
  - {name: ip, match: {paths: [/ip]}, key: [ip], algorithm: token_bucket, rate: 1/min, scope: region, on_failure: closed}
  - {name: strict, match: {paths: [/strict]}, key: [user], missing: deny, algorithm: token_bucket, rate: 1/min, scope: region, on_failure: closed}
`

func checkGateway(t *testing.T, more ...func(*Config)) *running {
	t.Helper()
	server, _ := region(t)
	cfg := testConfig(t, checkPolicies, upstream(t).URL)
	for _, change := range more {
		change(&cfg)
	}
	return run(t, cfg, openStore(t, server))
}

// A request that is asked about and one that is proxied spend from the same buckets, all or none.
func TestCheckSpendsFromTheBucketsOfProxiedRequests(t *testing.T) {
	g := checkGateway(t)
	const alice = `{"identity": {"user": "alice"}, "request": {"method": "GET", "path": "/v1//x/../items?q=1"}}`
	c := g.post(t, "/v1/check", alice).checked(t)
	if !c.Allowed || len(c.Decisions) != 3 {
		t.Fatalf("check = %+v, want allowed by broad, user and trial", c)
	}
	user := c.Decisions[1]
	if user.Policy != "user" || !user.Allowed || !user.Enforced || user.Limit != 3 || user.Remaining != 2 || user.RetryAfter != nil || user.Reset < 19 || user.Reset > 21 {
		t.Errorf("decision = %+v, want 2 of 3 left and 20 s until full", user)
	}
	if left := time.Until(user.ResetAt); left < 18*time.Second || left > 22*time.Second || user.ResetAt.Location() != time.UTC {
		t.Errorf("reset_at = %s, want in about 20 s, UTC", user.ResetAt)
	}
	if trial := c.Decisions[2]; trial.Policy != "trial" || trial.Enforced || !trial.Allowed {
		t.Errorf("shadow's decision = %+v, want not enforced", trial)
	}
	if a := g.get(t, "/v1/x", "X-API-Key", "key-alice"); a.Header.Get("X-Ratelimit-Remaining") != "1" {
		t.Errorf("proxied: remaining %s, want 1", a.Header.Get("X-Ratelimit-Remaining"))
	}
	if c = g.post(t, "/v1/check", alice).checked(t); !c.Allowed || c.Decisions[2].Allowed || c.Decisions[2].RetryAfter == nil {
		t.Errorf("third = %+v, want allowed, though the shadow would not", c)
	}
	a := g.post(t, "/v1/check", alice)
	if c = a.checked(t); c.Allowed || c.Decisions[1].Allowed || !c.Decisions[0].Allowed || c.Decisions[0].Remaining != 7 {
		t.Errorf("fourth = %s, want denied by user only, at no cost to broad", a.body)
	}
	if retry := c.Decisions[1].RetryAfter; retry == nil || *retry < 18 || *retry > 20 || c.Decisions[1].Reset != *retry {
		t.Errorf("fourth = %s, want a retry within 20 s", a.body)
	}
	if a := g.get(t, "/v1/x", "X-API-Key", "key-alice"); a.StatusCode != http.StatusTooManyRequests {
		t.Errorf("proxied: %d, want 429", a.StatusCode)
	}
}

func TestCheckPeekAndCostAndPolicy(t *testing.T) {
	g := checkGateway(t)
	ask := func(more string) CheckAnswer {
		t.Helper()
		return g.post(t, "/v1/check", `{"identity": {"user": "bob"}, "request": {"path": "/v1/items"}`+more+`}`).checked(t)
	}
	for range 5 {
		if c := ask(`, "peek": true, "cost": 3, "policy": "user"`); !c.Allowed || len(c.Decisions) != 1 || c.Decisions[0].Remaining != 3 {
			t.Fatalf("peek = %+v, want allowed at no cost", c)
		}
	}
	if c := ask(`, "peek": true, "cost": 4`); c.Allowed || c.Decisions[1].Allowed || *c.Decisions[1].RetryAfter != longest || !c.Decisions[0].Allowed {
		t.Errorf("peek beyond the capacity = %+v, want never", c)
	}
	if c := ask(`, "cost": 2, "policy": "user"`); !c.Allowed || len(c.Decisions) != 1 || c.Decisions[0].Remaining != 1 {
		t.Errorf("cost 2 = %+v, want 1 left", c)
	}
	if c := ask(`, "cost": 2`); c.Allowed || c.Decisions[0].Remaining != 10 {
		t.Errorf("cost 2 again = %+v, want denied, broad untouched", c)
	}
	if c := ask(`, "cost": 1`); !c.Allowed || c.Decisions[0].Remaining != 9 {
		t.Errorf("cost 1 = %+v, want allowed, though 2 were just denied", c)
	}
	if c := ask(`, "peek": true`); c.Allowed || *c.Decisions[1].RetryAfter < 15 || *c.Decisions[1].RetryAfter > 20 {
		t.Errorf("peek when spent = %+v, want denied for 20 s", c)
	}
	if c := ask(`, "policy": "key"`); !c.Allowed || len(c.Decisions) != 0 {
		t.Errorf("a policy that does not match = %+v, want allowed without decisions", c)
	}
}

// An API key may be given by its hash or raw, an address in any of its forms: one client is one bucket, the proxied one's.
func TestCheckIdentityHasOneForm(t *testing.T) {
	g := checkGateway(t)
	allowed := func(body string) bool { return g.post(t, "/v1/check", body).checked(t).Allowed }
	if g.get(t, "/key", "X-API-Key", "key-carol").StatusCode != http.StatusOK {
		t.Fatal("the first request is not admitted")
	}
	sum := identity.Hash("key-carol")
	for _, key := range []string{"key-carol", sum, strings.ToUpper(sum)} {
		if allowed(`{"identity": {"api_key": "` + key + `"}, "request": {"path": "/key"}}`) {
			t.Errorf("%s is another client than the proxied one", key)
		}
	}
	if !allowed(`{"identity": {"ip": "192.0.2.9"}, "request": {"path": "/ip"}}`) || allowed(`{"identity": {"ip": "::ffff:192.0.2.9"}, "request": {"path": "/ip"}}`) {
		t.Error("one address in two forms is not one client")
	}
	if strings.Contains(g.log.String(), "key-carol") {
		t.Error("a raw key is in the log")
	}
}

func TestCheckRefusals(t *testing.T) {
	g := checkGateway(t)
	for name, row := range map[string]struct {
		path, body string
		status     int
		detail     string
	}{
		"not JSON":         {"/v1/check", `{"identity"`, 400, "not JSON"},
		"empty":            {"/v1/check", ``, 400, "one JSON object"},
		"null":             {"/v1/check", `null`, 400, "one JSON object"},
		"a list":           {"/v1/check", `[]`, 400, "one JSON object"},
		"two":              {"/v1/check", `{}{}`, 400, "nothing more"},
		"unknown field":    {"/v1/check", `{"identity": {"name": "secret-name"}}`, 400, "unknown field"},
		"cost 0":           {"/v1/check", `{"cost": 0}`, 400, "peek"},
		"cost negative":    {"/v1/check", `{"cost": -5}`, 400, "1 to 1000000000"},
		"cost huge":        {"/v1/check", `{"cost": 1000000001}`, 400, "1 to 1000000000"},
		"cost beyond 2^63": {"/v1/check", `{"cost": 99999999999999999999}`, 400, "cost"},
		"cost fraction":    {"/v1/check", `{"cost": 1.5}`, 400, "cost"},
		"cost NaN":         {"/v1/check", `{"cost": NaN}`, 400, "not JSON"},
		"cost text":        {"/v1/check", `{"cost": "1"}`, 400, "cost"},
		"bad address":      {"/v1/check", `{"identity": {"ip": "secret-name"}}`, 400, "identity.ip"},
		"long user":        {"/v1/check", `{"identity": {"user": "` + strings.Repeat("u", 300) + `"}}`, 400, "identity.user"},
		"bad path":         {"/v1/check", `{"request": {"path": "/../x"}}`, 400, "path"},
		"path with host":   {"/v1/check", `{"request": {"path": "http://h/x"}}`, 400, "request.path"},
		"path with #":      {"/v1/check", `{"request": {"path": "/a#b"}}`, 400, ""},
		"bad method":       {"/v1/check", `{"request": {"method": "GET /"}}`, 400, "request.method"},
		"missing identity": {"/v1/check", `{"request": {"path": "/strict"}}`, 400, "strict"},
		"unknown policy":   {"/v1/check", `{"policy": "nope"}`, 404, "no such policy"},
		"too large":        {"/v1/check", `{"policy": "` + strings.Repeat("p", 1<<20) + `"}`, 413, "larger"},
		"usage, none":      {"/v1/usage", `{}`, 400, "policy is missing"},
		"usage, unknown":   {"/v1/usage", `{"policy": "nope"}`, 404, "no such policy"},
		"usage, no key":    {"/v1/usage", `{"policy": "user"}`, 400, "user"},
		"usage, request":   {"/v1/usage", `{"policy": "user", "request": {}}`, 400, "unknown field"},
		"no such path":     {"/v1/nope", `{}`, 404, "no such path"},
	} {
		a := g.post(t, row.path, row.body)
		p := a.problem(t)
		if p.Status != row.status || !strings.Contains(p.Detail, row.detail) || p.TraceID == "" {
			t.Errorf("%s: %d %s, want %d that says %q", name, a.StatusCode, a.body, row.status, row.detail)
		}
		if bytes.Contains(a.body, []byte("secret-name")) {
			t.Errorf("%s: the answer quotes the body: %s", name, a.body)
		}
	}
	if a := g.post(t, "/v1/check", `{}`, "Content-Type", "text/plain"); a.problem(t).Status != http.StatusBadRequest {
		t.Errorf("text/plain: %d, want 400", a.StatusCode)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+g.AdminAddr().String()+"/v1/check", nil)
	if a := g.do(t, req); a.StatusCode != http.StatusMethodNotAllowed || a.Header.Get("Allow") != http.MethodPost {
		t.Errorf("GET: %d, Allow %q; want 405", a.StatusCode, a.Header.Get("Allow"))
	}
}

func TestUsageIsThisRegionsView(t *testing.T) {
	g := checkGateway(t)
	userGets(t, "dave", 2, g)
	for range 3 {
		var u UsageAnswer
		a := g.post(t, "/v1/usage", `{"policy": "broad", "identity": {"user": "dave"}}`)
		if err := json.Unmarshal(a.body, &u); err != nil || a.StatusCode != http.StatusOK {
			t.Fatalf("%d: %s", a.StatusCode, a.body)
		}
		if u.Region != "eu" || u.Scope != policy.RegionOnly || u.Limit != 10 || u.Remaining != 8 || u.Allotment != 10 || u.Left != 8 ||
			u.Lease != 0 || u.PoolLevel != nil || u.Reset < 10 || u.Reset > 12 || len(u.KeyID) != 32 {
			t.Errorf("usage = %s, want 8 of 10 left and nothing charged", a.body)
		}
	}
}

// Could not ask is 503, never a denial; a failure mode that admits is told.
func TestCheckWhileRedisIsOut(t *testing.T) {
	out := func(bucket.Request) (bucket.Verdict, error) { return bucket.Verdict{}, bucket.ErrCouldNotAsk }
	const open = `schema: 1
policies:
  - {name: open, match: {paths: [/open]}, key: [all], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: {redis: open}}
  - {name: shut, match: {paths: [/shut]}, key: [all], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: closed}
`
	g := run(t, testConfig(t, open, upstream(t).URL), &fakeStore{take: out, ping: errors.New("out")})
	a := g.post(t, "/v1/check", `{"request": {"path": "/open"}}`)
	if c := a.checked(t); !c.Allowed || a.Header.Get(headerDegraded) != "redis" {
		t.Errorf("open: %s, degraded %q; want allowed and marked", a.body, a.Header.Get(headerDegraded))
	}
	for path, body := range map[string]string{
		"/v1/check": `{"request": {"path": "/shut"}}`, "/v1/usage": `{"policy": "shut"}`,
		"/v1/check?": `{"request": {"path": "/open"}, "peek": true}`,
	} {
		if a := g.post(t, path, body); a.problem(t).Type != typeCapacity || a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d %s, want 503 with Retry-After", path, a.StatusCode, a.body)
		}
	}
}

func TestCheckCredentials(t *testing.T) {
	file := filepath.Join(t.TempDir(), "check.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	line := func(name, token string) string {
		sum := sha256.Sum256([]byte(token))
		return fmt.Sprintf("- {name: %s, sha256: %s}\n", name, hex.EncodeToString(sum[:]))
	}
	write(line("a", "one") + line("b", "two"))
	g := checkGateway(t, func(c *Config) { c.Check.Credentials = file })
	status := func(header ...string) int {
		t.Helper()
		a := g.post(t, "/v1/check", `{}`, header...)
		if a.StatusCode == http.StatusUnauthorized && !strings.HasPrefix(a.Header.Get("WWW-Authenticate"), "Bearer ") {
			t.Error("a 401 without a challenge")
		}
		return a.StatusCode
	}
	for _, token := range []string{"one", "two"} {
		if got := status("Authorization", "bearer "+token); got != http.StatusOK {
			t.Errorf("a known token: %d", got)
		}
	}
	for _, header := range []string{"Bearer three", "Bearer ", "Basic one", "one", ""} {
		if got := status("Authorization", header); got != http.StatusUnauthorized {
			t.Errorf("Authorization %q: %d, want 401", header, got)
		}
	}
	if a := g.post(t, "/v1/nope", `{}`); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("an unknown path without a token: %d, want 401", a.StatusCode)
	}
	if code, _ := g.ready(t); code != http.StatusOK {
		t.Errorf("/readyz: %d, want 200 without a token", code)
	}
	reload := func(text string) { write(text); g.checkers.reload(t.Context()) }
	reload(line("c", "three"))
	if status("Authorization", "Bearer three") != http.StatusOK || status("Authorization", "Bearer one") != http.StatusUnauthorized {
		t.Error("the changed file is not in use")
	}
	reload("- {name: c, sha256: three-in-clear}\n")
	if status("Authorization", "Bearer three") != http.StatusOK || strings.Contains(g.log.String(), "three-in-clear") {
		t.Error("a bad file is in use, or quoted in the log")
	}
}

func TestCheckCredentialsAreValidated(t *testing.T) {
	for source, want := range map[string]string{
		"":                                       "0 credentials",
		"- {name: a, sha256: 12}":                "64 hexadecimal digits",
		"- {name: a, token: secret-token}":       "want a list",
		"- {sha256: " + identity.Hash("x") + "}": "name",
		"- {name: a, sha256: " + identity.Hash("") + "}":                                                   "empty token",
		"- {name: a, sha256: " + identity.Hash("x") + "}\n- {name: b, sha256: " + identity.Hash("x") + "}": "twice",
	} {
		_, err := parseCheckCredentials([]byte(source))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret-token") {
			t.Errorf("%q: %v, want %q", source, err, want)
		}
	}
	cfg := testConfig(t, perUser, "http://127.0.0.1:1")
	cfg.Check.Credentials = filepath.Join(t.TempDir(), "none.yaml")
	if _, err := Open(t.Context(), cfg, checkGateway(t).telemetry); err == nil || !strings.Contains(err.Error(), "check.credentials") {
		t.Errorf("Open = %v, want the missing file named", err)
	}
}

// Off loopback nobody is served without a credential; the probes are.
func TestCheckIsNotServedOffLoopbackWithoutCredentials(t *testing.T) {
	g := checkGateway(t, func(c *Config) { c.Admin = "0.0.0.0:0" })
	if a := g.post(t, "/v1/check", `{}`); a.StatusCode != http.StatusNotFound {
		t.Errorf("%d %s, want 404", a.StatusCode, a.body)
	}
	if code, _ := g.ready(t); code != http.StatusOK {
		t.Errorf("/readyz: %d, want 200", code)
	}
	file := filepath.Join(t.TempDir(), "check.yaml")
	if err := os.WriteFile(file, []byte("- {name: a, sha256: "+identity.Hash("one")+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g = checkGateway(t, func(c *Config) { c.Admin, c.Check.Credentials = "0.0.0.0:0", file })
	if a := g.post(t, "/v1/check", `{}`, "Authorization", "Bearer one"); a.StatusCode != http.StatusOK {
		t.Errorf("with a credential: %d %s, want 200", a.StatusCode, a.body)
	}
	if a := g.post(t, "/v1/check", `{}`); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("without one: %d, want 401", a.StatusCode)
	}
}
