package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// fuzzGateway is a gateway that serves nobody: its handler is called.
func fuzzGateway(f *testing.F) *Gateway {
	f.Helper()
	cfg := Defaults()
	cfg.Region, cfg.Listen, cfg.Admin = "eu", "127.0.0.1:0", "127.0.0.1:0"
	cfg.Redis = bucket.Config{Addrs: []string{"127.0.0.1:1"}}
	cfg.Routes = []proxy.Route{{Name: "api", Upstreams: []string{"http://127.0.0.1:1"}}}
	cfg.Secret = []byte("sixteen bytes at least")
	cfg.Policies = filepath.Join(f.TempDir(), "policies.yaml")
	if err := os.WriteFile(cfg.Policies, []byte(checkPolicies), 0o600); err != nil {
		f.Fatal(err)
	}
	tel, err := telemetry.Start(f.Context(), telemetry.Config{Role: "gateway", Region: "eu", Log: io.Discard})
	if err != nil {
		f.Fatal(err)
	}
	g, err := open(f.Context(), cfg, tel, &fakeStore{take: admitAll})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = g.Close() })
	return g
}

// Whatever stands in a body, the answer is one of the API's, never a 5xx and never a panic.
func FuzzCheckBody(f *testing.F) {
	for _, body := range []string{
		`{}`, `{"identity": {"user": "a", "ip": "::1", "api_key": "k", "claims": {"org": "o"}}, "request": {"method": "GET", "path": "/v1/a%2fb", "host": "h:1", "headers": {"A": "b"}}}`,
		`{"policy": "user", "cost": 3, "peek": true, "identity": {"user": "b"}}`, `{"cost": 1e9}`, `[]`, `{"request": {"path": "/\u0000"}}`, `{"policy": "x"}`,
	} {
		f.Add([]byte(body))
	}
	g := fuzzGateway(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/check", "/v1/usage"} {
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body))
			r.Header.Set("Content-Type", "application/json")
			g.adminServer.Handler.ServeHTTP(w, r)
			switch w.Code {
			case http.StatusOK, http.StatusBadRequest, http.StatusNotFound, http.StatusRequestEntityTooLarge:
			default:
				t.Errorf("%s %q: status %d %s", path, body, w.Code, w.Body)
			}
			if !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s %q: the answer is not JSON: %s", path, body, w.Body)
			}
		}
	})
}
