package gateway

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/bucket"
)

// rawUpstream is an upstream that keeps the bytes of every request line it gets, and answers 200 to each.
func rawUpstream(t *testing.T) (string, <-chan string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	lines := make(chan string, 100)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				r := bufio.NewReader(conn)
				for {
					first, err := r.Peek(1)
					if err != nil || len(first) == 0 {
						return
					}
					line, _ := r.Peek(r.Buffered())
					text, _, _ := strings.Cut(string(line), "\r\n")
					req, err := http.ReadRequest(r)
					if err != nil {
						lines <- "unreadable: " + text
						return
					}
					var body strings.Builder
					if _, err := bufio.NewReader(req.Body).WriteTo(&body); err != nil {
						return
					}
					lines <- text + "|" + body.String()
					_, _ = fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
				}
			}()
		}
	}()
	return "http://" + l.Addr().String(), lines
}

// lax is where an upstream that is as lenient as they come would lead target: it decodes once, takes parameters off and resolves
// what is left.
func lax(t *testing.T, target string) string {
	t.Helper()
	raw, _, _ := strings.Cut(target, "?")
	segments := strings.Split(raw, "/")
	for i, segment := range segments {
		segment, _, _ = strings.Cut(segment, ";")
		text, err := url.PathUnescape(segment)
		if err != nil {
			t.Fatalf("the upstream got %q: %v", target, err)
		}
		segments[i] = text
	}
	return path.Clean(strings.Join(segments, "/"))
}

const bad = "400"

// spellings has what the upstream gets for a request target, or bad.
var spellings = map[string]string{
	"/v1/x":                     "/v1/x",
	"//v1/x":                    "/v1/x",
	"/v1//x":                    "/v1/x",
	"/v1///x//":                 "/v1/x/",
	"/./v1/x":                   "/v1/x",
	"/v1/./x":                   "/v1/x",
	"/%2e/v1/x":                 "/v1/x",
	"/v1%2fx":                   "/v1/x",
	"/v1%2Fx":                   "/v1/x",
	"/%76%31/x":                 "/v1/x",
	"/v1/x/":                    "/v1/x/",
	"/v1/":                      "/v1/",
	"/v1":                       "/v1",
	"/V1/x":                     "/V1/x",
	"/v1/../admin":              "/admin",
	"/v1/%2e%2e/admin":          "/admin",
	"/v1/.%2E/admin":            "/admin",
	"/v1%2f..%2fadmin":          "/admin",
	"/admin/..%2fv1/x":          "/v1/x",
	"/v1/..;/admin":             "/v1/..%3B/admin",
	"/v1;x/y":                   "/v1%3Bx/y",
	"/v1/x;y=1":                 "/v1/x%3By=1",
	"/;/v1/x":                   "/%3B/v1/x",
	"/v1/%252e%252e/admin":      "/v1/%252e%252e/admin",
	"/v1/x%00":                  bad,
	"/v1/x%00/../../admin":      bad,
	"/v1%c0%afx":                bad,
	"/v1/%c0%ae%c0%ae/admin":    bad,
	"/v1/%e0%80%af":             bad,
	"/v1/%ff":                   bad,
	"/v1/x\xff":                 bad,
	"/v1/x#y":                   bad,
	"/v1/x?q#y":                 bad,
	"#/v1/x":                    bad,
	"/v1/%":                     bad,
	"/v1/%zz":                   bad,
	"/v1/%u002e":                bad,
	`/v1\x`:                     bad,
	"/v1/%5c..%5cadmin":         bad,
	"/../v1/x":                  bad,
	"/v1/../../admin":           bad,
	"v1/x":                      bad,
	"*":                         bad,
	"/v1/x%0d%0aX-User-Id:%20a": bad,
	"/v1/x\ty":                  bad,
	"/v1/x HTTP/1.1 y":          bad,
	"http://x/v1/../admin":      "/admin",
	"http://x":                  "/",
	"/v1/x?a=/../admin":         "/v1/x?a=/../admin",
}

// However a path is spelled, the request is charged to the policy of the route that it reaches, or is a 400. Routes and policies
// are of one table here, so that a spelling which reaches another route than it was charged for would show.
func TestPathSpellings(t *testing.T) {
	const document = `schema: 1
policies:
  - {name: v1, match: {paths: ["/v1/*"]}, key: [user], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: closed}
  - {name: admin, match: {paths: ["/admin/*"]}, key: [user], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: closed}
`
	up, lines := rawUpstream(t)
	cfg := testConfig(t, document, up)
	cfg.Routes = []proxy.Route{
		{Name: "v1", Paths: []string{"/v1/*"}, Upstreams: []string{up}}, {Name: "admin", Paths: []string{"/admin/*"}, Upstreams: []string{up}},
		{Name: "rest", Upstreams: []string{up}},
	}
	var charged []string
	g := run(t, cfg, &fakeStore{take: func(r bucket.Request) (bucket.Verdict, error) {
		for _, c := range r.Charges {
			charged = append(charged, c.Policy)
		}
		return admitAll(r)
	}})
	for target, want := range spellings {
		t.Run(strings.ReplaceAll(target, "/", "|"), func(t *testing.T) {
			charged = nil
			a := raw(t, g.Addr().String(), "GET "+target+" HTTP/1.1\r\nHost: x\r\nX-API-Key: key-a\r\nConnection: close\r\n\r\n")
			if want == bad {
				if a.StatusCode != http.StatusBadRequest || len(lines) != 0 || len(charged) != 0 {
					t.Fatalf("status %d, charged %v, %d requests at the upstream: want 400 and nothing", a.StatusCode, charged, len(lines))
				}
				return
			}
			if a.StatusCode != http.StatusOK {
				t.Fatalf("status %d: %s", a.StatusCode, a.body)
			}
			line := <-lines
			_, rest, _ := strings.Cut(line, " ")
			got, _, _ := strings.Cut(rest, " ")
			if got != want {
				t.Errorf("the upstream got %q, want %q", got, want)
			}
			reached, policy := lax(t, got), ""
			for _, name := range []string{"v1", "admin"} {
				if reached == "/"+name || strings.HasPrefix(reached, "/"+name+"/") {
					policy = name
				}
			}
			if strings.Join(charged, " ") != policy {
				t.Errorf("%q reaches %q and was charged to %q, want %q", got, reached, charged, policy)
			}
		})
	}
}
