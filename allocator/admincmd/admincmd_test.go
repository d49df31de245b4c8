package admincmd_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/allocator/admincmd"
	"github.com/annona-gateway/annona/shared/config"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

const token = "cli-token-0123456789"

// api answers like the admin API and remembers what it was asked.
type api struct {
	*httptest.Server

	asked  []string // METHOD path?query
	header http.Header
	body   string
	answer map[string]func(http.ResponseWriter)
}

func newAPI(t *testing.T, answers map[string]func(http.ResponseWriter)) *api {
	t.Helper()
	a := &api{answer: answers}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		a.asked, a.header, a.body = append(a.asked, r.Method+" "+r.URL.RequestURI()), r.Header, string(body)
		path, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/admin/v1"), "?")
		answer := a.answer[r.Method+" "+path]
		switch {
		case r.Header.Get("Authorization") != "Bearer "+token:
			problem(401, "send the header Authorization")(w)
		case answer == nil:
			problem(404, "Not Found")(w)
		default:
			answer(w)
		}
	}))
	t.Cleanup(a.Close)
	t.Setenv("ANNONA_ADMIN_TOKEN", token)
	return a
}

func ok(v any, headers ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i+1 < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		if text, plain := v.(string); plain {
			_, _ = io.WriteString(w, text)
			return
		}
		_ = json.NewEncoder(w).Encode(v)
	}
}

func problem(status int, detail string, problems ...policy.Problem) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(admin.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Errors: problems})
	}
}

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := admincmd.Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestPolicyGetPrintsItAsWritten(t *testing.T) {
	a := newAPI(t, map[string]func(http.ResponseWriter){"GET /policies": ok("# mine\nschema: 1\n")})
	out, err := run(t, "policy", "get", "--server", a.URL)
	if err != nil || out != "# mine\nschema: 1\n" {
		t.Errorf("policy get = %q, %v", out, err)
	}
}

func TestPolicyApplyReplacesWhatItRead(t *testing.T) {
	warning := policy.Problem{Severity: policy.SeverityWarning, Line: 3, Column: 5, Message: "odd", Remedy: "look"}
	a := newAPI(t, map[string]func(http.ResponseWriter){
		"GET /policies": ok("old", "ETag", `"7"`),
		"PUT /policies": ok(admin.PoliciesChanged{Revision: 8, Warnings: policy.Problems{warning}}),
	})
	path := file(t, "p.yaml", "schema: 1\n")
	out, err := run(t, "policy", "apply", path, "--server", a.URL+"/")
	if want := path + ":3:5: warning: odd; look\n" + path + " is in force: revision 8\n"; err != nil || out != want {
		t.Errorf("apply = %q, %v, want %q", out, err, want)
	}
	if a.header.Get("If-Match") != `"7"` || a.header.Get("Content-Type") != "application/yaml" || a.body != "schema: 1\n" {
		t.Errorf("PUT with %v and %q", a.header, a.body)
	}
	if _, err := run(t, "policy", "apply", file(t, "p.json", "{}"), "--server", a.URL); err != nil || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("a .json file was sent as %q, %v", a.header.Get("Content-Type"), err)
	}
	delete(a.answer, "GET /policies")
	if _, err := run(t, "policy", "apply", path, "--server", a.URL); err != nil || a.header.Get("If-None-Match") != "*" {
		t.Errorf("the first document was sent with %v, %v", a.header, err)
	}
}

func TestPolicyApplyRefused(t *testing.T) {
	bad := []policy.Problem{
		{Severity: policy.SeverityError, Line: 2, Column: 1, Message: "unknown field \x1b[2Jx", Remedy: "remove it"},
		{Severity: policy.SeverityError, Line: 9, Column: 4, Message: "burst is negative", Remedy: "give 0 or more"},
	}
	a := newAPI(t, map[string]func(http.ResponseWriter){
		"GET /policies": ok("old", "ETag", `"7"`), "PUT /policies": problem(422, "the policy document has errors", bad...),
	})
	path := file(t, "p.yaml", "x")
	out, err := run(t, "policy", "apply", path, "--server", a.URL)
	want := path + ":2:1: error: unknown field ?[2Jx; remove it\n" + path + ":9:4: error: burst is negative; give 0 or more\n"
	if out != want || err == nil || errors.Is(err, config.ErrUsage) || !strings.Contains(err.Error(), "422") {
		t.Errorf("apply = %q, %v, want %q and a refusal", out, err, want)
	}
	out, err = run(t, "policy", "apply", path, "--server", a.URL, "--json")
	var p admin.Problem
	if json.Unmarshal([]byte(out), &p) != nil || len(p.Errors) != 2 || err == nil {
		t.Errorf("apply --json = %q, %v, want the problem and a refusal", out, err)
	}
	a.answer["PUT /policies"] = problem(412, "the document has another revision by now; read it again")
	if _, err := run(t, "policy", "apply", path, "--server", a.URL); err == nil || !strings.Contains(err.Error(), "another revision") {
		t.Errorf("stale: %v", err)
	}
}

func TestTables(t *testing.T) {
	heard := time.Now().Add(-2 * time.Second)
	eight, left := int64(8), limit.Tokens(80)
	a := newAPI(t, map[string]func(http.ResponseWriter){
		"GET /regions": ok(admin.Regions{List: admin.List[admin.Region]{Items: []admin.Region{
			{Name: "eu", Weight: 1, Share: 1.0 / 3, State: "live", Agents: []string{"a", "b"}, TokensLeased: 30, LastHeard: &heard},
			{Name: "us", Weight: 2, Share: 2.0 / 3, State: "silent", SecretMismatch: true},
		}}}),
		"GET /leases": ok(admin.List[admin.Lease]{Next: "abc", Items: []admin.Lease{{
			Policy: "p", Variant: "tier:premium", KeyID: "0900", Identity: "user=\x1b[1mx", PoolLevel: 50,
			Regions: []admin.Holding{{Region: "eu", Outstanding: 30, ExpiresIn: 8}},
		}}}),
		"POST /usage": ok(admin.Usage{
			Policy: "p", KeyID: "0900", Identity: "user=acme", Limit: 200, Remaining: &left, Reset: &eight,
			Regions: []admin.RegionUsage{{Region: "eu", Allotment: 5, Lease: 30, Expires: &eight, Spent: 12, Denied: 3, HeardAt: &heard}},
			Denials: []admin.Denial{{At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Region: "eu", Cost: 1, TraceID: "4bf9"}},
		}),
	})
	for command, want := range map[string]string{
		"regions": "REGION  STATE                 WEIGHT  SHARE  LEASED  HEARD   AGENTS\n" +
			"eu      live                  1       33.3%  30      2s ago  a,b\n" +
			"us      silent, WRONG SECRET  2       66.7%  0       never   \n",
		"leases": "POLICY            CLIENT      POOL  REGION  HOLDS  EXPIRES  KEY ID\n" +
			"p (tier:premium)  user=?[1mx  50    eu      30     in 8s    0900\nThere are more: --cursor abc\n",
		"usage --policy p --user acme": "policy     p\nclient     user=acme\nkey id     0900\nremaining  80 of 200, full again in 8s\n" +
			"\nREGION  ALLOTMENT  LEASE  EXPIRES  SPENT  DENIED  HEARD\neu      5          30     in 8s    12     3       2s ago\n" +
			"\nDENIED AT             REGION  COST  TRACE ID\n2026-01-02T03:04:05Z  eu      1     4bf9\n",
	} {
		out, err := run(t, append(strings.Fields(command), "--server", a.URL)...)
		if err != nil || out != want {
			t.Errorf("%s: %v\n%s\nwant:\n%s", command, err, out, want)
		}
		out, err = run(t, append(strings.Fields(command), "--server", a.URL, "--json")...)
		if err != nil || !json.Valid([]byte(out)) {
			t.Errorf("%s --json: %v\n%s", command, err, out)
		}
	}
}

func TestWhatIsAsked(t *testing.T) {
	a := newAPI(t, map[string]func(http.ResponseWriter){"GET /leases": ok(`{"items": [], "next": ""}`), "POST /usage": ok(`{}`)})
	if _, err := run(t, "leases", "--server", a.URL, "--policy", "a&b", "--region", "eu", "--key-id", "09", "--cursor", "c"); err != nil {
		t.Fatal(err)
	}
	if want := "GET /admin/v1/leases?cursor=c&key_id=09&policy=a%26b&region=eu"; a.asked[0] != want {
		t.Errorf("asked %s, want %s", a.asked[0], want)
	}
	// printf %s demo-anna | sha256sum
	const sum = "96f5f4d1d0f9d4c2ac4e0b1f6e9d1bb2a5ee8bd6f7f9d8ddf7ad5d4c6f1a5c11"
	for key, want := range map[string]string{sum: sum, strings.ToUpper(sum): sum, "demo-anna": ""} {
		if _, err := run(t, "usage", "--server", a.URL, "--policy", "p", "--api-key", key, "--ip", "192.0.2.1", "--tier", "free"); err != nil {
			t.Fatal(err)
		}
		var r admin.UsageRequest
		if err := json.Unmarshal([]byte(a.body), &r); err != nil || r.Policy != "p" || r.Identity.Tier != "free" || r.Identity.IP.String() != "192.0.2.1" {
			t.Errorf("asked %s", a.body)
		}
		if len(r.Identity.APIKey) != 64 || want != "" && r.Identity.APIKey != want || strings.Contains(a.body, "demo-anna") {
			t.Errorf("key %s was sent as %s", key, r.Identity.APIKey)
		}
	}
	if strings.Contains(a.asked[len(a.asked)-1], "?") {
		t.Errorf("an identity in the URL: %s", a.asked)
	}
}

// Exit code 2 comes from errors that wrap config.ErrUsage, 1 from any other.
func TestErrors(t *testing.T) {
	a := newAPI(t, map[string]func(http.ResponseWriter){
		"GET /regions": ok("<html>"), "GET /leases": func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
		"GET /policies": func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusFound)
		},
	})
	a.Config.SetKeepAlivesEnabled(false)
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, row := range map[string]struct {
		args  []string
		usage bool
		want  string
	}{
		"no policy":           {[]string{"usage"}, true, "--policy"},
		"bad address":         {[]string{"usage", "--policy", "p", "--ip", "1.2.3"}, true, "--ip"},
		"bad server":          {[]string{"regions", "--server", "127.0.0.1:7070"}, true, "--server"},
		"password in server":  {[]string{"regions", "--server", "http://u:p@h/"}, true, "--server"},
		"no such file":        {[]string{"policy", "apply", "/nonexistent.yaml"}, true, "nonexistent"},
		"a directory":         {[]string{"policy", "apply", t.TempDir()}, true, "directory"},
		"no such token file":  {[]string{"regions", "--token-file", "/nonexistent"}, true, "--token-file"},
		"wrong token":         {[]string{"regions", "--token-file", file(t, "t", "wrong\n")}, false, "401"},
		"not the API":         {[]string{"regions"}, false, "--server"},
		"a bad gateway":       {[]string{"leases"}, false, "502"},
		"a redirect":          {[]string{"policy", "get"}, false, "302"},
		"nobody there":        {[]string{"regions", "--server", gone.URL}, false, "is the allocator there?"},
		"too large, in bytes": {[]string{"policy", "apply", file(t, "p.yaml", strings.Repeat("#", admin.MaxDocumentBytes+1))}, true, "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, append([]string{"--server", a.URL}, row.args...)...)
			if err == nil || errors.Is(err, config.ErrUsage) != row.usage || !strings.Contains(err.Error(), row.want) {
				t.Errorf("error %v, want one about %s, bad usage: %v", err, row.want, row.usage)
			}
			if err != nil && strings.Contains(err.Error(), token) {
				t.Errorf("the error has the token: %v", err)
			}
		})
	}
	t.Setenv("ANNONA_ADMIN_TOKEN", "")
	if _, err := run(t, "regions", "--server", a.URL); !errors.Is(err, config.ErrUsage) || !strings.Contains(err.Error(), "ANNONA_ADMIN_TOKEN") {
		t.Errorf("without token: %v", err)
	}
}

func TestUnknownCommandsAreErrors(t *testing.T) {
	for _, args := range [][]string{{"nope"}, {"policy", "nope"}, {"regions", "nope"}, {"regions", "--nope"}, {"policy", "apply"}} {
		if _, err := run(t, args...); err == nil {
			t.Errorf("annona admin %s is no error", strings.Join(args, " "))
		}
	}
	if out, err := run(t, "policy"); err != nil || !strings.Contains(out, "apply") {
		t.Errorf("annona admin policy = %q, %v, want its help", out, err)
	}
}
