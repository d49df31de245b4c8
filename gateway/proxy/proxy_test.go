package proxy_test

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/policy"
)

func newProxy(t *testing.T, routes ...proxy.Route) *proxy.Proxy {
	t.Helper()
	for _, route := range routes {
		if err := route.Validate(); err != nil {
			t.Fatal(err)
		}
	}
	p, err := proxy.New(routes, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// server answers with what describe says about the request.
func server(t *testing.T, describe func(*http.Request) string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, describe(r)) }))
	t.Cleanup(s.Close)
	return s.URL
}

func TestFirstRouteThatMatchesWins(t *testing.T) {
	up := []string{"http://127.0.0.1:1"}
	p := newProxy(t,
		proxy.Route{Name: "exact", Hosts: []string{"api.example.com"}, Paths: []string{"/health"}, Upstreams: up},
		proxy.Route{Name: "tree", Hosts: []string{"api.example.com"}, Paths: []string{"/v1/*"}, Upstreams: up},
		proxy.Route{Name: "wild", Hosts: []string{"*.example.com"}, Paths: []string{"/*"}, Upstreams: up},
	)
	for _, row := range []struct{ host, path, want string }{
		{"api.example.com", "/health", "exact"},
		{"API.example.com:8081", "/v1", "tree"},
		{"api.example.com.", "/v1/x", "tree"},
		{"api.example.com", "/v10", "wild"},
		{"a.b.example.com", "/health", "wild"},
		{"example.com", "/v1", ""},
		{"notexample.com", "/", ""},
		{".example.com", "/", ""},
		{"[::1]:80", "/", ""},
	} {
		target, err := p.Route(row.host, row.path)
		if row.want == "" {
			if !errors.Is(err, proxy.ErrNoRoute) {
				t.Errorf("Route(%s, %s) = %v, want %v", row.host, row.path, err, proxy.ErrNoRoute)
			}
			continue
		}
		if err != nil || target.Name != row.want {
			t.Errorf("Route(%s, %s) = %v, %v, want %s", row.host, row.path, target, err, row.want)
		}
	}
}

func serve(t *testing.T, p *proxy.Proxy, r *http.Request, path string, id policy.Identity) (*httptest.ResponseRecorder, error) {
	t.Helper()
	target, err := p.Route("host", path)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	return w, target.Serve(w, r, path, id)
}

func TestForwardedPath(t *testing.T) {
	seen := func(r *http.Request) string { return r.RequestURI }
	for name, row := range map[string]struct{ base, strip, path, want string }{
		"as it is":                    {"", "", "/v1/x", "/v1/x?q=1"},
		"decoded once, encoded once":  {"", "", "/a b/%2e/#?", "/a%20b/%252e/%23%3F?q=1"},
		"below the upstream's path":   {"/base/", "", "/v1/x", "/base/v1/x?q=1"},
		"a parameter is text":         {"/b;v=1", "", "/a;b/..;/c", "/b;v=1/a%3Bb/..%3B/c?q=1"},
		"prefix off":                  {"", "/api", "/api/v1", "/v1?q=1"},
		"all of it is prefix":         {"", "/api", "/api", "/?q=1"},
		"prefix is no whole segments": {"", "/api", "/apis/v1", "/apis/v1?q=1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProxy(t, proxy.Route{Name: "r", Upstreams: []string{server(t, seen) + row.base}, StripPrefix: row.strip})
			w, err := serve(t, p, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/other?q=1", nil), row.path, policy.Identity{})
			if err != nil || w.Body.String() != row.want {
				t.Errorf("the upstream got %q, %v, want %q", w.Body, err, row.want)
			}
		})
	}
}

// No client can name its own user, on the route that forwards one and on any other.
func TestIdentityHeadersCannotBeForged(t *testing.T) {
	seen := func(r *http.Request) string {
		return r.Header.Get("X-User-Id") + "|" + r.Header.Get("Annona-Degraded") + "|" + r.Header.Get("Traceparent") + "|" + r.Header.Get("X-Forwarded-For")
	}
	p := newProxy(t,
		proxy.Route{Name: "users", Paths: []string{"/users/*"}, Upstreams: []string{server(t, seen)}, Forward: proxy.Forward{User: "x-user-id"}},
		proxy.Route{Name: "plain", Upstreams: []string{server(t, seen)}},
	)
	for path, want := range map[string]string{"/users/x": "alice|||192.0.2.1", "/plain": "|||192.0.2.1"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header = http.Header{
			"X-User-Id": {"mallory"}, "Annona-Degraded": {"redis"}, "Traceparent": {"00-x"}, "X-Forwarded-For": {"10.0.0.1"}, "Connection": {"X-User-Id"},
		}
		if w, err := serve(t, p, r, path, policy.Identity{User: "alice"}); err != nil || w.Body.String() != want {
			t.Errorf("%s: the upstream got %q, %v, want %q", path, w.Body, err, want)
		}
	}
}

func TestUpstreamsTakeTurns(t *testing.T) {
	p := newProxy(t, proxy.Route{Name: "r", Upstreams: []string{
		server(t, func(*http.Request) string { return "a" }), server(t, func(*http.Request) string { return "b" }),
	}})
	var got strings.Builder
	for range 4 {
		w, err := serve(t, p, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), "/", policy.Identity{})
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString(w.Body.String())
	}
	if got.String() != "abab" {
		t.Errorf("the upstreams answered %s, want abab", got.String())
	}
}

func TestRouteTellsAllErrorsAtOnce(t *testing.T) {
	err := proxy.Route{
		Upstreams: []string{"localhost:9000"}, Paths: []string{"v1"}, Hosts: []string{"a:80"}, StripPrefix: "x/", Forward: proxy.Forward{User: "a b"}, Timeout: -1,
	}.Validate()
	for _, want := range []string{"no name", "upstream is not a URL", `path "v1"`, `host "a:80"`, "strip_prefix", "forward.user", "must not be negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want %q in it", err, want)
		}
	}
}
