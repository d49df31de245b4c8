package gateway

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/shared/bucket"
)

// Whoever guesses tokens of the check API is stopped after 50 a minute, whichever path it asks; who was right lately goes on, and
// the log tells once, without the token.
func TestCheckStopsGuessing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "check.yaml")
	if err := os.WriteFile(file, []byte("- {name: a, sha256: "+identity.Hash("one")+"}\n- {name: b, sha256: "+identity.Hash("two")+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := checkGateway(t, func(c *Config) { c.Check.Credentials = file })
	ask := func(token string) answered { return g.post(t, "/v1/check", `{}`, "Authorization", "Bearer "+token) }
	if got := ask("one").StatusCode; got != http.StatusOK {
		t.Fatalf("a known token: %d", got)
	}
	for i := range 50 {
		path := []string{"/v1/check", "/v1/usage", "/v1/nope"}[i%3]
		if a := g.post(t, path, `{}`, "Authorization", "Bearer guess-"+strconv.Itoa(i)); a.StatusCode != http.StatusUnauthorized {
			t.Fatalf("guess %d: %d, want 401", i, a.StatusCode)
		}
	}
	for _, token := range []string{"guess-50", "two"} { // a lucky guess is not looked at
		a := ask(token)
		if wait, err := strconv.Atoi(a.Header.Get("Retry-After")); a.StatusCode != http.StatusTooManyRequests ||
			a.problem(t).Type != typeAbuse || err != nil || wait < 1 || wait > 60 {
			t.Errorf("after 50 guesses: %d, Retry-After %q, %s; want 429", a.StatusCode, a.Header.Get("Retry-After"), a.body)
		}
	}
	if got := ask("one").StatusCode; got != http.StatusOK {
		t.Errorf("who was right before: %d, want 200", got)
	}
	if a := g.post(t, "/v1/check", `{}`); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %d, want 401, for that is no guess", a.StatusCode)
	}
	if log := g.log.String(); strings.Count(log, "a wrong credential at the check API") != 1 || strings.Contains(log, "guess-") {
		t.Errorf("log: %s\nwant it told once, without token", log)
	}
}

// An outage is not told of at each check.
func TestUnansweredChecksAreToldOnce(t *testing.T) {
	g := run(t, testConfig(t, perUser, upstream(t).URL), &fakeStore{take: func(bucket.Request) (bucket.Verdict, error) {
		return bucket.Verdict{}, bucket.ErrCouldNotAsk
	}})
	for range 20 {
		if a := g.post(t, "/v1/check", `{"identity": {"user": "alice"}}`); a.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%d %s, want 503", a.StatusCode, a.body)
		}
	}
	if n := strings.Count(g.log.String(), "a check could not be answered"); n != 1 {
		t.Errorf("told %d times, want once", n)
	}
}
