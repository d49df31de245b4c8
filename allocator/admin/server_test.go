package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/allocator/ledger"
	"github.com/annona-gateway/annona/allocator/lessor"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/limit"
	"github.com/annona-gateway/annona/shared/policy"
)

const (
	viewerToken   = "viewer-token-0123456789"
	supportToken  = "support-token-0123456789"
	operatorToken = "operator-token-0123456789"
)

const document = `# who may what
schema: 1
policies:
  - name: api-per-user
    key: [user]
    algorithm: token_bucket
    rate: 100/min
    burst: 200
    tiers: {premium: {rate: 1000/min, burst: 2000}}
    overrides: [{key: {user: vip}, rate: 300/min, from: 2020-01-01T00:00:00Z}]
    scope: global
    on_failure: closed
  - name: local-per-ip
    key: [ip]
    algorithm: token_bucket
    rate: 10/s
    scope: region
    on_failure: open
`

// fakeDocuments is a document store in memory that can be made to fail.
type fakeDocuments struct {
	mu      sync.Mutex
	kept    []bus.Document
	failGet error
	failPut error
	race    bool // somebody else puts between a Get and a Put
}

func (f *fakeDocuments) Get(context.Context, string) (bus.Document, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failGet != nil {
		return bus.Document{}, f.failGet
	}
	if len(f.kept) == 0 {
		return bus.Document{}, bus.ErrNoDocument
	}
	return f.kept[len(f.kept)-1], nil
}

func (f *fakeDocuments) Put(_ context.Context, _ string, expected uint64, data []byte) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failPut != nil {
		return 0, f.failPut
	}
	var newest uint64
	if len(f.kept) > 0 {
		newest = f.kept[len(f.kept)-1].Revision
	}
	if f.race || expected != newest {
		return 0, bus.ErrStale
	}
	f.kept = append(f.kept, bus.Document{Revision: newest + 3, Data: data, Created: time.Unix(1_700_000_000, 0)})
	return newest + 3, nil
}

func (f *fakeDocuments) History(ctx context.Context, name string) ([]bus.Document, error) {
	if _, err := f.Get(ctx, name); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	docs := slices.Clone(f.kept)
	slices.Reverse(docs)
	return docs, nil
}

// fakeLessor holds pools in the order of the list.
type fakeLessor struct {
	pools   []lessor.Snapshot
	regions []lessor.RegionStatus
	denied  []lessor.Denial
	fail    error
	panics  bool
}

func (f *fakeLessor) Pools(_ context.Context, keep func(ledger.Pool) bool, most int) ([]lessor.Snapshot, error) {
	if f.panics {
		panic("secret cause")
	}
	var kept []lessor.Snapshot
	for _, p := range f.pools {
		if len(kept) < most && keep(p.Pool) {
			kept = append(kept, p)
		}
	}
	return kept, f.fail
}

func (f *fakeLessor) Pool(_ context.Context, policy string, key limit.Key) (lessor.Snapshot, bool, error) {
	for _, p := range f.pools {
		if p.Policy == policy && p.Key == key {
			return p, true, f.fail
		}
	}
	return lessor.Snapshot{}, false, f.fail
}

func (f *fakeLessor) Regions() []lessor.RegionStatus    { return f.regions }
func (f *fakeLessor) Denials(limit.Key) []lessor.Denial { return f.denied }

// bench is a server over fakes with everything that a test looks at.
type bench struct {
	*admin.Server

	docs   *fakeDocuments
	lessor *fakeLessor
	secret *limit.Secret
	log    *bytes.Buffer
	now    time.Time
	loaded bool
}

func newBench(t *testing.T) *bench {
	t.Helper()
	secret, err := limit.NewSecret([]byte("0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{
		docs:   &fakeDocuments{kept: []bus.Document{{Revision: 7, Data: []byte(document), Created: time.Unix(1_600_000_000, 0)}}},
		lessor: &fakeLessor{}, secret: secret, log: &bytes.Buffer{}, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), loaded: true,
	}
	doc, problems := policy.Parse([]byte(document))
	if doc == nil {
		t.Fatal(problems)
	}
	regions := &policy.Regions{
		Revision: 3, Regions: []policy.Region{{Name: "us", Weight: 2}, {Name: "eu", Weight: 1}, {Name: "ap", Weight: 1}}, Shards: 32,
		Times: policy.DefaultTimes(),
	}
	b.Server = admin.New(admin.Config{
		Log: slog.New(slog.NewJSONHandler(b.log, nil)), Tracer: sdktrace.NewTracerProvider().Tracer("test"),
		Probes: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "probe")
		}),
		Credentials: []admin.Credential{
			admin.NewCredential("vera", admin.Viewer, viewerToken), admin.NewCredential("sam", admin.Support, supportToken),
			admin.NewCredential("olga", admin.Operator, operatorToken),
		},
		Secret: secret, Now: func() time.Time { return b.now },
		Current: func() (*policy.Document, *policy.Regions) {
			if !b.loaded {
				return nil, nil
			}
			return doc, regions
		},
	})
	b.Attach(b.docs, b.lessor)
	return b
}

// call is one request; headers are name, value pairs.
func (b *bench) call(token, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body))
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	b.ServeHTTP(w, r)
	return w
}

func decode[T any](t *testing.T, w *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	decoder := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("answer %d %q: %v", w.Code, w.Body.String(), err)
	}
	return v
}

// wantProblem checks a refusal's status and form, and returns it.
func wantProblem(t *testing.T, w *httptest.ResponseRecorder, status int) admin.Problem {
	t.Helper()
	if w.Code != status {
		t.Fatalf("status %d, want %d: %s", w.Code, status, w.Body)
	}
	if got := w.Header().Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("content type %q, want application/problem+json", got)
	}
	p := decode[admin.Problem](t, w)
	if len(p.TraceID) != 32 {
		t.Errorf("trace_id %q, want that of the request", p.TraceID)
	}
	if p.Status != status || p.Title == "" || p.Detail == "" || p.Type == "" {
		t.Errorf("problem %+v, want all of type, title, status %d, detail", p, status)
	}
	return p
}

var errBroken = errors.New("nats: no responders on 10.1.2.3")
