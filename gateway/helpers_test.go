package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/annona-gateway/annona/gateway/proxy"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

// fakeStore is a region's Redis of two functions and a mirror.
type fakeStore struct {
	take func(bucket.Request) (bucket.Verdict, error)
	ping error
	// warnings is what Warnings tells.
	warnings []string

	mu         sync.Mutex
	mirror     bucket.Mirror
	changed    func()
	blocks     []bucket.Block
	registered []bucket.Gateway
}

func (f *fakeStore) Take(_ context.Context, r bucket.Request) (bucket.Verdict, error) {
	return f.take(r)
}

func (f *fakeStore) Fills(ctx context.Context, _ func(bucket.Announcement)) error {
	<-ctx.Done()
	return ctx.Err()
}

func (f *fakeStore) Mirror(context.Context) (bucket.Mirror, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mirror, f.ping
}

func (f *fakeStore) MirrorChanges(ctx context.Context, changed func()) error {
	f.mu.Lock()
	f.changed = changed
	f.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (f *fakeStore) Register(_ context.Context, g bucket.Gateway) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.registered = append(f.registered, g)
	return f.ping
}

func (f *fakeStore) Gateways(context.Context) ([]bucket.Gateway, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.registered[max(0, len(f.registered)-1):], f.ping
}

func (f *fakeStore) Ping(context.Context) error { return f.ping }
func (f *fakeStore) Warnings() []string         { return f.warnings }
func (f *fakeStore) Close() error               { return nil }

func (f *fakeStore) GiveBack(context.Context, []bucket.Back) ([]bucket.Credited, error) {
	return nil, f.ping
}
func (f *fakeStore) Correct(context.Context, []bucket.Correction) error { return f.ping }
func (f *fakeStore) Hold(context.Context, bucket.Holder, int) error     { return f.ping }
func (f *fakeStore) Renew(context.Context, bucket.Holder, int) (gone []int, _ error) {
	return nil, f.ping
}

func (f *fakeStore) Blocks(context.Context) ([]bucket.Block, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.blocks), f.ping
}

func (f *fakeStore) Block(_ context.Context, b bucket.Block) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blocks = append(f.blocks, b)
	return f.ping
}

func (f *fakeStore) Unblock(_ context.Context, id limit.Key) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := len(f.blocks)
	f.blocks = slices.DeleteFunc(f.blocks, func(b bucket.Block) bool { return b.ID == id })
	return len(f.blocks) < before, f.ping
}

func (f *fakeStore) BlockChanges(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return ctx.Err()
}

func (f *fakeStore) Bans(context.Context, int, int, int) ([]bucket.BannedKey, int, error) {
	return nil, 0, f.ping
}
func (f *fakeStore) Unban(context.Context, bucket.Ref) (bool, error) { return false, f.ping }

func (f *fakeStore) Ticks(ctx context.Context, _ func() int) { <-ctx.Done() }

// admitAll admits and says that 7 tokens are left of each.
func admitAll(r bucket.Request) (bucket.Verdict, error) {
	v := bucket.Verdict{Outcome: bucket.Admitted}
	for range r.Charges {
		v.States = append(v.States, bucket.State{Level: 7_000_000, PoolAge: -1})
	}
	return v, nil
}

const perUser = `schema: 1
policies:
  - {name: per-user, key: [user], algorithm: token_bucket, rate: 10/min, scope: region, on_failure: closed, missing: skip}
`

// upstream answers 200 with what it got, as JSON.
func upstream(t *testing.T) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Ratelimit-Remaining", r.Header.Get("X-Echo-Remaining"))
		_ = json.NewEncoder(w).Encode(echoed{r.Method, r.RequestURI, r.Host, r.Header, string(body)})
	}))
	t.Cleanup(s.Close)
	return s
}

type echoed struct {
	Method string      `json:"method"`
	Target string      `json:"target"`
	Host   string      `json:"host"`
	Header http.Header `json:"header"`
	Body   string      `json:"body"`
}

// testConfig is a gateway on free ports with keys key-NAME for user NAME.
func testConfig(t *testing.T, policies, up string) Config {
	t.Helper()
	cfg := Defaults()
	cfg.Region, cfg.Listen, cfg.Admin = "eu", "127.0.0.1:0", "127.0.0.1:0"
	cfg.Redis = bucket.Config{Mode: "single", Addrs: []string{"127.0.0.1:1"}, Timeout: 5 * time.Second} // as openStore
	cfg.Routes = []proxy.Route{{Name: "api", Upstreams: []string{up}, Forward: proxy.Forward{User: "X-User-Id"}}}
	cfg.Secret = []byte("sixteen bytes at least")
	cfg.RetryJitter, cfg.Drain.Delay = 0, 0
	cfg.Keys = func(key string) (policy.Identity, bool) {
		user, ok := strings.CutPrefix(key, "key-")
		return policy.Identity{User: user, Tier: "free"}, ok
	}
	if policies != "" {
		cfg.Policies = filepath.Join(t.TempDir(), "policies.yaml")
		if err := os.WriteFile(cfg.Policies, []byte(policies), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cfg
}

// lockedBuffer is a log that many goroutines write.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// running is a gateway that serves until the test ends.
type running struct {
	*Gateway

	log  *lockedBuffer
	stop func() error // drains, and returns what Run returned
}

// testTelemetry is a gateway's that nobody looks at.
func testTelemetry(t *testing.T) *telemetry.Telemetry {
	t.Helper()
	return telemetry.ForTest(&lockedBuffer{})
}

func run(t *testing.T, cfg Config, s store) *running {
	t.Helper()
	log := &lockedBuffer{}
	tel, err := telemetry.Start(t.Context(), telemetry.Config{
		Role: "gateway", Region: cfg.Region, Log: log, Sample: 1, Exporter: cfg.Telemetry.Exporter,
	})
	if err != nil {
		t.Fatal(err)
	}
	g, err := open(t.Context(), cfg, tel, s)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	r := &running{Gateway: g, log: log, stop: sync.OnceValue(func() error { cancel(); return <-ended })}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := g.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return r
}

// client waits for no answer for ever.
func client() *http.Client { return &http.Client{Timeout: 20 * time.Second} }

// answered is an answer with its body.
type answered struct {
	*http.Response

	body []byte
}

func (r *running) get(t *testing.T, path string, header ...string) answered {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for pair := range slices.Chunk(header, 2) {
		req.Header.Add(pair[0], pair[len(pair)-1])
	}
	return r.do(t, req)
}

func (r *running) do(t *testing.T, req *http.Request) answered {
	t.Helper()
	res, err := client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{res, body}
}

// problem reads a problem body and checks that it is one.
func (a answered) problem(t *testing.T) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal(a.body, &p); err != nil || a.Header.Get("Content-Type") != "application/problem+json" || p.Status != a.StatusCode {
		t.Fatalf("status %d with %q %s is no problem document (%v)", a.StatusCode, a.Header.Get("Content-Type"), a.body, err)
	}
	return p
}

// echoed reads what the upstream got.
func (a answered) echoed(t *testing.T) echoed {
	t.Helper()
	var e echoed
	if err := json.Unmarshal(a.body, &e); err != nil || a.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", a.StatusCode, a.body)
	}
	return e
}

// eventually waits until ok is true, at most five seconds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(5 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("never: %s", what)
		}
	}
}

// ready asks the admin port.
func (r *running) ready(t *testing.T) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.AdminAddr().String()+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client().Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}
