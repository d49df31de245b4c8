package admin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/allocator/admin"
)

// Every route under /admin/v1, known or not, is 401 without a credential, on loopback too.
func TestEveryRouteNeedsACredential(t *testing.T) {
	b := newBench(t)
	paths := []string{
		"/admin/v1", "/admin/v1/", "/admin/v1/policies", "/admin/v1/policies/", "/admin/v1/policies/validate", "/admin/v1/policies/history",
		"/admin/v1/regions", "/admin/v1/leases", "/admin/v1/usage", "/admin/v1/nothing", "/admin/v1/policies/nothing", "/%61dmin/v1/policies",
		"/admin%2Fv1/policies", "//admin/v1/policies", "/ADMIN/v1/policies", "/admin", "/nothing", "/admin/v1/policies?access_token=" + operatorToken,
	}
	for _, path := range paths {
		for _, method := range []string{"GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "HEAD"} {
			w := b.call("", method, path, document, "If-Match", `"7"`, "Content-Type", "application/yaml")
			if w.Code != http.StatusUnauthorized {
				t.Errorf("%s %s without credential: %d, want 401", method, path, w.Code)
			}
			if !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("%s %s: no WWW-Authenticate: Bearer", method, path)
			}
		}
	}
	if len(b.docs.kept) != 1 {
		t.Error("a request without credential changed the policies")
	}
}

func TestACredentialIsABearerTokenInTheHeader(t *testing.T) {
	for name, header := range map[string]string{
		"another scheme": "Basic " + viewerToken,
		"no scheme":      viewerToken,
		"empty token":    "Bearer ",
		"wrong token":    "Bearer " + viewerToken + "x",
		"the hash":       "Bearer " + admin.NewCredential("x", admin.Viewer, viewerToken).SHA256,
	} {
		t.Run(name, func(t *testing.T) {
			wantProblem(t, newBench(t).call("", "GET", "/admin/v1/regions", "", "Authorization", header), http.StatusUnauthorized)
		})
	}
	if w := newBench(t).call("", "GET", "/admin/v1/regions", "", "Authorization", "bearer "+viewerToken); w.Code != http.StatusOK {
		t.Errorf("scheme in lower case: %d, want 200", w.Code)
	}
}

func TestUnknownRoutesWithACredential(t *testing.T) {
	b := newBench(t)
	wantProblem(t, b.call(viewerToken, "GET", "/admin/v1/nothing", ""), http.StatusNotFound)
	wantProblem(t, b.call(viewerToken, "GET", "/nothing", ""), http.StatusNotFound)
	wantProblem(t, b.call(operatorToken, "DELETE", "/admin/v1/policies", ""), http.StatusMethodNotAllowed)
}

func TestPublicRoutesNeedNone(t *testing.T) {
	b := newBench(t)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		if w := b.call("", "GET", path, ""); w.Code != http.StatusOK || w.Body.String() != "probe" {
			t.Errorf("GET %s: %d %q, want the probes' answer", path, w.Code, w.Body)
		}
	}
	w := b.call("", "GET", "/", "")
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "/admin/v1/usage") || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		t.Errorf("GET /: %d %q, want a plain page that names the paths", w.Code, w.Body)
	}
}

func TestRoles(t *testing.T) {
	requests := map[string]struct {
		method, path, body string
		headers            []string
		viewer, operator   int
	}{
		"read":     {"GET", "/admin/v1/policies", "", nil, 200, 200},
		"write":    {"PUT", "/admin/v1/policies", document, []string{"If-Match", `"7"`, "Content-Type", "application/yaml"}, 403, 200},
		"validate": {"POST", "/admin/v1/policies/validate", document, []string{"Content-Type", "application/yaml"}, 200, 200},
		"usage":    {"POST", "/admin/v1/usage", `{"policy": "api-per-user", "identity": {"user": "u"}}`, []string{"Content-Type", "application/json"}, 200, 200},
	}
	for name, r := range requests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			for _, step := range []struct {
				token string
				want  int
			}{{viewerToken, r.viewer}, {supportToken, r.viewer}, {operatorToken, r.operator}} {
				w := b.call(step.token, r.method, r.path, r.body, r.headers...)
				if w.Code != step.want {
					t.Errorf("%s: %d, want %d: %s", step.token, w.Code, step.want, w.Body)
				}
				if w.Code == http.StatusForbidden && len(b.docs.kept) != 1 {
					t.Error("a forbidden request changed the policies")
				}
			}
		})
	}
}

func TestWrongTokensAreLimitedByAddress(t *testing.T) {
	b := newBench(t)
	from := func(addr, token string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/admin/v1/regions", nil)
		r.RemoteAddr = addr
		r.Header.Set("Authorization", "Bearer "+token)
		r.Header.Set("X-Forwarded-For", "203.0.113.7") // anybody can write it, so it does not count
		w := httptest.NewRecorder()
		b.ServeHTTP(w, r)
		return w
	}
	for i := range 10 {
		r := fmt.Sprintf("[2001:db8::%d]:1000", i+1) // one client owns its /64
		wantProblem(t, from(r, "guess"), http.StatusUnauthorized)
	}
	w := from("[2001:db8::ffff]:1", "guess")
	wantProblem(t, w, http.StatusTooManyRequests)
	if got := w.Header().Get("Retry-After"); got != "60" {
		t.Errorf("Retry-After %q, want 60", got)
	}
	if w := from("[2001:db8::1]:2", viewerToken); w.Code != http.StatusOK {
		t.Errorf("a right token beside a guesser: %d, want 200", w.Code)
	}
	if w := from("192.0.2.1:1", viewerToken); w.Code != http.StatusOK {
		t.Errorf("another address: %d, want 200", w.Code)
	}
	b.now = b.now.Add(time.Minute)
	if w := from("[2001:db8::1]:3", viewerToken); w.Code != http.StatusOK {
		t.Errorf("after the window: %d, want 200", w.Code)
	}
	for range 10 {
		wantProblem(t, from("[2001:db8::1]:4", "guess"), http.StatusUnauthorized)
	}
	wantProblem(t, from("[2001:db8::1]:4", "guess"), http.StatusTooManyRequests) // a new window, counted anew
	for range 100 {
		if w := from("192.0.2.1:1", viewerToken); w.Code != http.StatusOK {
			t.Fatalf("right tokens are not limited: %d", w.Code)
		}
	}
}

func TestReloadReplacesCredentials(t *testing.T) {
	b := newBench(t)
	b.Reload([]admin.Credential{admin.NewCredential("new", admin.Viewer, "another-token")})
	wantProblem(t, b.call(viewerToken, "GET", "/admin/v1/regions", ""), http.StatusUnauthorized)
	if w := b.call("another-token", "GET", "/admin/v1/regions", ""); w.Code != http.StatusOK {
		t.Errorf("new credential: %d, want 200", w.Code)
	}
}

func TestNoTokenAndNoIdentityInTheLog(t *testing.T) {
	b := newBench(t)
	b.lessor.fail = errBroken
	const usage = `{"policy": "api-per-user", "identity": {"user": "secret-user"}}`
	for _, token := range []string{"guessed-token", viewerToken, operatorToken} {
		b.call(token, "GET", "/admin/v1/nothing?token="+token, "")
		b.call(token, "POST", "/admin/v1/usage", usage, "Content-Type", "application/json")
		b.call(token, "POST", "/admin/v1/usage", `{"policy": "x", "identity": {"ip": "secret-user"}}`, "Content-Type", "application/json")
		b.call(token, "PUT", "/admin/v1/policies", document, "If-Match", `"7"`, "Content-Type", "application/yaml")
	}
	for _, secret := range []string{"guessed-token", viewerToken, operatorToken, "secret-user"} {
		if strings.Contains(b.log.String(), secret) {
			t.Errorf("the log has %q:\n%s", secret, b.log)
		}
	}
	if !strings.Contains(b.log.String(), `"by":"olga"`) || !strings.Contains(b.log.String(), `"revision":10`) {
		t.Errorf("the log does not say who changed the policies:\n%s", b.log)
	}
}

func TestParseCredentials(t *testing.T) {
	sum := admin.NewCredential("x", admin.Viewer, "t").SHA256
	good, err := admin.ParseCredentials([]byte("- {name: n, role: operator, sha256: " + sum + "}\n"))
	if err != nil || len(good) != 1 || good[0].Role != admin.Operator {
		t.Fatalf("ParseCredentials = %v, %v", good, err)
	}
	for name, source := range map[string]string{
		"empty":         "",
		"not a list":    "name: n",
		"unknown field": "- {name: n, role: viewer, sha256: " + sum + ", token: hunter2}",
		"unknown role":  "- {name: n, role: admin, sha256: " + sum + "}",
		"no name":       "- {role: viewer, sha256: " + sum + "}",
		"raw token":     "- {name: n, role: viewer, sha256: hunter2}",
		"name twice":    "- {name: n, role: viewer, sha256: " + sum + "}\n- {name: n, role: viewer, sha256: " + strings.Repeat("ab", 32) + "}",
		"token twice":   "- {name: n, role: viewer, sha256: " + sum + "}\n- {name: m, role: viewer, sha256: " + strings.ToUpper(sum) + "}",
		"empty token":   "- {name: n, role: viewer, sha256: " + admin.NewCredential("", "", "").SHA256 + "}",
		"bad YAML":      "- {name: hunter2",
	} {
		_, err := admin.ParseCredentials([]byte(source))
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error quotes what may be a token: %v", name, err)
		}
	}
}
