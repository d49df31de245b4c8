package gateway

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
)

// A browser hides from a script what its origin is not allowed to read. Our own answers are readable where the upstream's last
// answer to that origin was, and nowhere else.
func TestOwnAnswersAreReadableWhereTheUpstreams(t *testing.T) {
	var says atomic.Value
	says.Store("https://app.example")
	g, _ := gatewayTo(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/broken" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		if said, _ := says.Load().(string); said != "" && (said == "*" || r.Header.Get("Origin") == said) {
			w.Header().Set(headerAllowOrigin, said)
			if said != "*" {
				w.Header().Set(headerAllowCredentials, "true")
			}
		}
	}, func(c *Config) { c.Routes[0].MaxBody = 4 })
	ask := func(method, path, key, origin, body string) answered {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+g.Addr().String()+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"X-Api-Key": {key}, "Origin": {origin}}
		return g.do(t, req)
	}
	own := func(origin string) (status int, allowed, credentials string) {
		t.Helper()
		a := ask(http.MethodPost, "/", "key-a", origin, "too large")
		return a.StatusCode, a.Header.Get(headerAllowOrigin), a.Header.Get(headerAllowCredentials)
	}
	const app, foreign = "https://app.example", "https://evil.example"
	if status, allowed, _ := own(app); status != http.StatusRequestEntityTooLarge || allowed != "" {
		t.Errorf("before the upstream's word: %d, allowed %q, want 413 and nobody", status, allowed)
	}
	for _, origin := range []string{app, foreign} {
		ask(http.MethodOptions, "/", "key-a", origin, "") // as a browser does first
	}
	if _, allowed, credentials := own(app); allowed != app || credentials != "true" {
		t.Errorf("the upstream's origin: allowed %q, credentials %q", allowed, credentials)
	}
	if a := ask(http.MethodGet, "/", "wrong", app, ""); a.StatusCode != http.StatusUnauthorized || a.Header.Get(headerAllowOrigin) != app ||
		a.Header.Get("Vary") != "Origin" {
		t.Errorf("a refusal before its route: %d %v", a.StatusCode, a.Header)
	}
	if _, allowed, credentials := own(foreign); allowed != "" || credentials != "" {
		t.Errorf("an origin that the upstream does not allow: %q", allowed)
	}
	ask(http.MethodGet, "/broken", "key-a", app, "")
	if _, allowed, _ := own(app); allowed != app {
		t.Errorf("after an error without fields: %q", allowed)
	}
	says.Store("*")
	ask(http.MethodGet, "/", "key-a", app, "")
	if _, allowed, credentials := own(app); allowed != "*" || credentials != "" {
		t.Errorf("the upstream allows all, without credentials: %q, %q", allowed, credentials)
	}
	says.Store("")
	ask(http.MethodGet, "/", "key-a", app, "")
	if _, allowed, _ := own(app); allowed != "" {
		t.Errorf("the upstream took its word back: %q", allowed)
	}
}

// A 429 with Retry-After that a script can read.
func TestDenialsAreReadableByScripts(t *testing.T) {
	var denies atomic.Bool
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(headerAllowOrigin, r.Header.Get("Origin"))
		_, _ = io.WriteString(w, "ok")
	})
	server := httptest.NewServer(up)
	t.Cleanup(server.Close)
	g := run(t, testConfig(t, perUser, server.URL), &fakeStore{take: func(r bucket.Request) (bucket.Verdict, error) {
		if denies.Load() {
			return bucket.Verdict{Outcome: bucket.Denied, States: []bucket.State{{Lacking: true, PoolAge: -1, RetryIn: limit.MicrosPerSecond}}}, nil
		}
		return admitAll(r)
	}})
	g.get(t, "/", "X-API-Key", "key-a", "Origin", "https://app.example")
	denies.Store(true)
	a := g.get(t, "/", "X-API-Key", "key-a", "Origin", "https://app.example")
	if a.StatusCode != http.StatusTooManyRequests || a.Header.Get(headerAllowOrigin) != "https://app.example" ||
		!strings.Contains(a.Header.Get(headerExpose), "Retry-After") {
		t.Errorf("%d %v, want a 429 that a script can read, Retry-After included", a.StatusCode, a.Header)
	}
}

// Invented origins, and long ones, take bounded memory.
func TestOriginsAreBounded(t *testing.T) {
	o := newOrigins()
	allowed := func(origin string) http.Header { return http.Header{headerAllowOrigin: {origin}} }
	for i := range 3 * maxOrigins {
		origin := "https://" + strconv.Itoa(i)
		o.learn("r", origin, http.StatusOK, allowed(origin))
	}
	long := strings.Repeat("a", maxOrigin+1)
	o.learn("r", long, http.StatusOK, allowed(long))
	if got := o.known.Len(); got != maxOrigins || o.known.Contains("r\n"+long) {
		t.Errorf("%d remembered, want %d and no long one", got, maxOrigins)
	}
	header := http.Header{}
	o.repeat("other", "https://"+strconv.Itoa(3*maxOrigins-1), header)
	if len(header) > 0 {
		t.Errorf("what one route's upstream said counts on another: %v", header)
	}
}
