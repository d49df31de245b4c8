package gateway

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

const byMode = `schema: 1
policies:
  - {name: opened, match: {paths: [/open]}, key: [user], algorithm: token_bucket, rate: 10/s, burst: 20, scope: region, on_failure: {redis: open}}
  - {name: shut, match: {paths: [/closed]}, key: [user], algorithm: token_bucket, rate: 10/s, burst: 20, scope: region, on_failure: closed}
  - {name: own, match: {paths: [/local]}, key: [user], algorithm: token_bucket, rate: 10/s, burst: 20, scope: region, on_failure: {redis: local}}
`

// Case 8: Redis stopped × open, closed, local: 200 and marked; 503 problem+json with Retry-After; this gateway's own part.
// Never a 500, ready throughout, and back without a restart.
func TestCase08_RedisStopped(t *testing.T) {
	server := buckettest.StartRedis(t)
	store, err := bucket.Open(bucket.Config{Addrs: []string{server.Addr}, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	g := run(t, testConfig(t, byMode, upstream(t).URL), store)
	get := func(path string) answered {
		t.Helper()
		a := g.get(t, path, "X-API-Key", "key-alice")
		if a.StatusCode == http.StatusInternalServerError {
			t.Fatalf("%s: 500 %s", path, a.body)
		}
		return a
	}
	degraded := func(a answered) string { return a.Header.Get(headerDegraded) }
	eventually(t, "the gateway is counted", func() bool {
		list, err := store.Gateways(t.Context())
		return err == nil && len(list) == 1 && get("/local").StatusCode == http.StatusOK
	})
	g.admitter.SetGateways(1) // what the loop reads a moment later
	server.Kill()

	if a := get("/open"); a.StatusCode != http.StatusOK || degraded(a) != "redis" || a.Header.Get("X-RateLimit-Remaining") != "20" {
		t.Errorf("open: %d, degraded %q, remaining %q; want 200, marked", a.StatusCode, degraded(a), a.Header.Get("X-RateLimit-Remaining"))
	}
	a := get("/closed")
	if p := a.problem(t); a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || p.Type != typeCapacity {
		t.Errorf("closed: %d %s, want 503 with Retry-After", a.StatusCode, a.body)
	}
	start, admitted, refused := time.Now(), 0, 0
	eventually(t, "a dozen locally admitted requests", func() bool {
		a := get("/local")
		switch {
		case a.StatusCode == http.StatusServiceUnavailable && refused < 5:
			refused++ // it was on its way when the connection broke, so that nobody knows whether it was charged
		case degraded(a) != "redis":
			t.Fatalf("local: %d is not marked", a.StatusCode)
		case a.StatusCode == http.StatusOK:
			admitted++
		case a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "":
			t.Fatalf("local: %d %s, want 429 with Retry-After", a.StatusCode, a.body)
		}
		return admitted == 12
	})
	if took := time.Since(start); took < time.Second {
		t.Errorf("12 admitted in %s, but the part begins empty and fills with 10/s", took)
	}
	if status, body := g.ready(t); status != http.StatusOK || !strings.Contains(body, `"name":"redis","ok":false`) {
		t.Errorf("readyz = %d %s, want 200 that names redis", status, body)
	}

	server.Restart()
	for _, path := range []string{"/open", "/closed", "/local"} {
		eventually(t, path+" is asked again", func() bool {
			a := get(path)
			return a.StatusCode == http.StatusOK && degraded(a) == ""
		})
	}
}
