package gateway

import (
	"fmt"
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

// Case 5: a Redis that is there and refuses is an outage like any other: each policy's failure mode, a line in the log with what
// to do, /readyz that names it, and back without a restart. The local mode goes on denying, for it is known that nothing was charged.
func TestCase05_RedisThatRefuses(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		says        string
		refuse, end func(do func(...any))
	}{
		"out of memory": {"OOM", redisDoes("CONFIG", "SET", "maxmemory", "1"), redisDoes("CONFIG", "SET", "maxmemory", "0")},
		"no permission": {
			"NOPERM", redisDoes("ACL", "SETUSER", "default", "-evalsha", "-eval"),
			redisDoes("ACL", "SETUSER", "default", "resetkeys", "resetchannels", "~annona:1:*", "&annona:1:*", "+@all", "-@dangerous", "+info"),
		},
		"another type": {"WRONGTYPE", func(do func(...any)) {
			for shard := range 32 {
				do("SET", fmt.Sprintf("annona:1:{s%02d}:shard", shard), "x")
			}
		}, redisDoes("FLUSHALL")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := buckettest.StartRedis(t)
			do := func(command ...any) {
				t.Helper()
				if err := server.Client().Do(t.Context(), command...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			store, err := bucket.Open(bucket.Config{Addrs: []string{server.Addr}, Timeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			g := run(t, testConfig(t, byMode, upstream(t).URL), store)
			status := func(path string) int { return g.get(t, path, "X-API-Key", "key-alice").StatusCode }
			eventually(t, "the gateway is counted", func() bool {
				list, err := store.Gateways(t.Context())
				return err == nil && len(list) == 1 && status("/local") == http.StatusOK
			})
			g.admitter.SetGateways(1) // what the loop reads a moment later
			row.refuse(do)
			want := map[string]int{"/open": http.StatusOK, "/closed": http.StatusServiceUnavailable, "/local": http.StatusTooManyRequests}
			for path, status := range want {
				a := g.get(t, path, "X-API-Key", "key-alice")
				if degraded := a.Header.Get(headerDegraded); a.StatusCode != status || (status < 500 && degraded != "redis") {
					t.Errorf("%s: %d, degraded %q; want %d, marked", path, a.StatusCode, degraded, status)
				}
			}
			eventually(t, "local admits from its own part", func() bool { return status("/local") == http.StatusOK })
			if code, body := g.ready(t); code != http.StatusOK || !strings.Contains(body, `"name":"redis","ok":false`) || !strings.Contains(body, row.says) {
				t.Errorf("readyz = %d %s, want 200 that names redis and %s", code, body, row.says)
			}
			if log := g.log.String(); strings.Count(log, `"reason":"`+row.says+`"`) != 1 || !strings.Contains(log, `"remedy":"`) {
				t.Errorf("log %s\nwant one warning with a remedy", log)
			}
			row.end(do)
			for path := range want {
				eventually(t, path+" is asked again", func() bool {
					a := g.get(t, path, "X-API-Key", "key-alice")
					return a.StatusCode == http.StatusOK && a.Header.Get(headerDegraded) == ""
				})
			}
		})
	}
}

// redisDoes is one command.
func redisDoes(command ...any) func(do func(...any)) { return func(do func(...any)) { do(command...) } }
