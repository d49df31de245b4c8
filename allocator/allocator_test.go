package allocator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/annona-gateway/annona/allocator"
	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/allocator/journal"
	"github.com/annona-gateway/annona/shared/bus"
	"github.com/annona-gateway/annona/shared/bus/bustest"
	"github.com/annona-gateway/annona/shared/policy"
	"github.com/annona-gateway/annona/shared/telemetry"
)

const token = "operator-token-0123456789"

const document = `# of the configuration
schema: 1
policies:
  - name: api-per-user
    key: [user]
    algorithm: token_bucket
    rate: 100/min
    scope: global
    on_failure: closed
`

// safeBuffer is a log that tests read while it is written.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func startTelemetry(t *testing.T, log io.Writer) *telemetry.Telemetry {
	t.Helper()
	if log == nil {
		log = io.Discard
	}
	tel, err := telemetry.Start(t.Context(), telemetry.Config{Role: "allocator", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

// role is a running allocator.
type role struct {
	*allocator.Allocator

	t    *testing.T
	log  *safeBuffer
	stop context.CancelFunc
	done chan error
}

// start opens and runs an allocator; it ends with the test.
func start(t *testing.T, cfg allocator.Config) *role {
	t.Helper()
	r := &role{t: t, log: &safeBuffer{}, done: make(chan error, 1)}
	var err error
	if r.Allocator, err = allocator.Open(t.Context(), cfg, startTelemetry(t, r.log)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r.stop = cancel
	go func() { r.done <- r.Run(ctx) }()
	t.Cleanup(func() { _ = r.end() })
	return r
}

// end stops the allocator as SIGTERM does and returns Run's error. Ending twice is harmless.
func (r *role) end() error {
	r.stop()
	select {
	case err := <-r.done:
		r.done <- err
		return errors.Join(err, r.Close())
	case <-time.After(15 * time.Second):
		r.t.Error("Run did not return within 15 s")
		return nil
	}
}

// fails waits for Run to end by itself.
func (r *role) fails() error {
	r.t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(15 * time.Second):
		r.t.Fatalf("Run still runs\n%s", r.log)
		return nil
	}
}

// answer is what the admin port said.
type answer struct {
	StatusCode int
	Header     http.Header
}

func (r *role) call(method, path, body string, headers ...string) (answer, string) {
	r.t.Helper()
	request, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.Addr().String()+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i+1 < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := (&http.Client{Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answer{StatusCode: response.StatusCode, Header: response.Header}, string(text)
}

// eventually polls until what holds, for at most 15 s.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(15 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within 15 s: %s", what)
		}
	}
}

func (r *role) ready() bool {
	response, _ := r.call("GET", "/readyz", "")
	return response.StatusCode == http.StatusOK
}

func (r *role) waitReady() {
	r.t.Helper()
	eventually(r.t, "ready", func() bool {
		select {
		case err := <-r.done:
			r.done <- err
			r.t.Fatalf("Run ended: %v\n%s", err, r.log)
		default:
		}
		return r.ready()
	})
}

func configFor(s *bustest.Server, init bool) allocator.Config {
	c := goodConfig()
	c.NATS.URLs, c.Init = []string{s.URL()}, init
	c.Shards = 4
	return c
}

func TestFirstStartStoresTheDocuments(t *testing.T) {
	s := bustest.Start(t, bustest.Options{})
	r := start(t, configFor(s, true))
	r.waitReady()
	if !r.Serves() {
		t.Error("ready, and does not serve")
	}
	response, body := r.call("GET", "/admin/v1/policies", "")
	if response.StatusCode != http.StatusOK || body != document || response.Header.Get("ETag") == "" {
		t.Errorf("policies: %d %q", response.StatusCode, body)
	}
	_, body = r.call("GET", "/admin/v1/regions", "")
	var regions admin.Regions
	if err := json.Unmarshal([]byte(body), &regions); err != nil || len(regions.Items) != 2 || regions.Shards != 4 || regions.Revision == 0 {
		t.Errorf("regions: %s, %v", body, err)
	}
	if err := r.end(); err != nil {
		t.Errorf("a drain ends with %v, want nil", err)
	}
	if strings.Contains(r.log.String(), token) {
		t.Error("the log has the token")
	}
}

// The store wins over the files from the second start on, and the difference is logged.
func TestLaterStartsTakeTheStoredDocuments(t *testing.T) {
	s := bustest.Start(t, bustest.Options{})
	r := start(t, configFor(s, true))
	r.waitReady()
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	cfg := configFor(s, false)
	cfg.Policies = []byte(strings.Replace(document, "100/min", "900/min", 1))
	cfg.Regions = []policy.Region{{Name: "ap", Weight: 1}}
	cfg.Shards = 8
	r = start(t, cfg)
	r.waitReady()
	if _, body := r.call("GET", "/admin/v1/policies", ""); body != document {
		t.Errorf("policies of the file replaced the stored ones: %s", body)
	}
	if _, body := r.call("GET", "/admin/v1/regions", ""); !strings.Contains(body, `"shards":4`) || strings.Contains(body, `"ap"`) {
		t.Errorf("regions of the file replaced the stored ones: %s", body)
	}
	for _, want := range []string{"policies of the configuration differ", "regions of the configuration differ"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, r.log)
		}
	}
}

// F1: only --init begins a journal, and never over one that is there.
func TestF1_InitIsRefusedWhereThereIsAJournal(t *testing.T) {
	s := bustest.Start(t, bustest.Options{})
	r := start(t, configFor(s, true))
	r.waitReady()
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	if err := start(t, configFor(s, true)).fails(); !errors.Is(err, journal.ErrExists) {
		t.Errorf("--init over a journal: %v, want ErrExists", err)
	}
}

func TestF1_AMissingJournalIsRefusedWithoutInit(t *testing.T) {
	s := bustest.Start(t, bustest.Options{})
	if err := start(t, configFor(s, false)).fails(); !errors.Is(err, journal.ErrMissing) || !strings.Contains(err.Error(), "--init") {
		t.Errorf("a start without journal: %v, want ErrMissing that names --init", err)
	}
	// A refused start changed nothing: there are no documents either.
	docs, err := bus.OpenDocuments(t.Context(), s.Connect(t), 1, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := docs.Get(t.Context(), bus.PolicyDocument); !errors.Is(err, bus.ErrNoDocument) {
		t.Errorf("policies after a refused start: %v, want none", err)
	}
}

// NATS being out is waited for, at the start and later, and /readyz says so.
func TestNATSOutIsWaitedFor(t *testing.T) {
	s := bustest.Start(t, bustest.Options{})
	cfg := configFor(s, true)
	s.Stop()
	r := start(t, cfg)
	response, body := r.call("GET", "/readyz", "")
	if response.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "NATS") {
		t.Errorf("/readyz without NATS: %d %s", response.StatusCode, body)
	}
	if response, _ := r.call("GET", "/healthz", ""); response.StatusCode != http.StatusOK {
		t.Errorf("/healthz without NATS: %d, want 200", response.StatusCode)
	}
	for _, path := range []string{"/policies", "/regions", "/leases", "/policies/history"} {
		if response, body := r.call("GET", "/admin/v1"+path, ""); response.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s without NATS: %d %s, want 503", path, response.StatusCode, body)
		}
	}
	eventually(t, "says what it waits for", func() bool { return strings.Contains(r.log.String(), "waiting for NATS") })
	s.Restart(t)
	r.waitReady()
	s.Restart(t)
	eventually(t, "policies after NATS came back", func() bool {
		_, body := r.call("GET", "/admin/v1/policies", "")
		return body == document
	})
	r.waitReady()
}

func TestADrainWhileNATSIsOut(t *testing.T) {
	s := bustest.Start(t, bustest.Options{})
	cfg := configFor(s, true)
	s.Stop()
	r := start(t, cfg)
	began := time.Now()
	if err := r.end(); err != nil || time.Since(began) > 10*time.Second {
		t.Errorf("a drain took %s and ended with %v", time.Since(began), err)
	}
}

func TestAPortThatIsTaken(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	cfg := goodConfig()
	cfg.Listen = taken.Addr().String()
	if _, err := allocator.Open(t.Context(), cfg, startTelemetry(t, nil)); err == nil || !strings.Contains(err.Error(), cfg.Listen) {
		t.Errorf("a taken port: %v, want an error that names it", err)
	}
}

func usageOf(r *role, name string) int {
	response, _ := r.call("POST", "/admin/v1/usage", fmt.Sprintf(`{"policy": %q, "identity": {"user": "secret-user"}}`, name), "Content-Type", "application/json")
	return response.StatusCode
}

// A PUT bumps the revision and is in force within moments; one that is refused changes nothing.
func TestPutPoliciesComesIntoForce(t *testing.T) {
	s := bustest.Start(t, bustest.Options{})
	r := start(t, configFor(s, true))
	r.waitReady()
	response, _ := r.call("GET", "/admin/v1/policies", "")
	etag := response.Header.Get("ETag")
	if got := usageOf(r, "renamed"); got != http.StatusNotFound {
		t.Fatalf("usage of an unknown policy: %d, want 404", got)
	}
	renamed := strings.Replace(document, "api-per-user", "renamed", 1)
	response, body := r.call("PUT", "/admin/v1/policies", renamed, "Content-Type", "application/yaml", "If-Match", etag)
	if response.StatusCode != http.StatusOK || response.Header.Get("ETag") == etag {
		t.Fatalf("PUT: %d %s", response.StatusCode, body)
	}
	eventually(t, "the new policies are in force", func() bool { return usageOf(r, "renamed") == http.StatusOK })
	response, _ = r.call("PUT", "/admin/v1/policies", document, "Content-Type", "application/yaml", "If-Match", etag)
	if response.StatusCode != http.StatusPreconditionFailed {
		t.Errorf("PUT over a revision that is gone: %d, want 412", response.StatusCode)
	}
	if _, body := r.call("GET", "/metrics", ""); !strings.Contains(body, "annona_policy_revision") {
		t.Error("/metrics has no annona_policy_revision")
	}
	if log := r.log.String(); strings.Contains(log, "secret-user") || strings.Contains(log, token) || !strings.Contains(log, `"by":"olga"`) {
		t.Errorf("the log has a secret, or does not say who changed the policies:\n%s", log)
	}
}

// A stored revision that this release can not read leaves the one before in force.
func TestABrokenStoredDocumentIsNotTaken(t *testing.T) {
	s := bustest.Start(t, bustest.Options{})
	r := start(t, configFor(s, true))
	r.waitReady()
	docs, err := bus.OpenDocuments(t.Context(), s.Connect(t), 1, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{bus.PolicyDocument: "schema: 99\n", bus.RegionsDocument: `{"regions":[],"shards":1}`} {
		stored, err := docs.Get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := docs.Put(t.Context(), name, stored.Revision, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the log tells", func() bool {
		return strings.Contains(r.log.String(), "policies do not parse") && strings.Contains(r.log.String(), "regions can not be used")
	})
	if !r.ready() || usageOf(r, "api-per-user") != http.StatusOK {
		t.Error("the documents before are not in force any more")
	}
}

// The demo's one /readyz waits for every role.
func TestReadyWaitsForWhatItIsTold(t *testing.T) {
	s := bustest.Start(t, bustest.Options{})
	cfg := configFor(s, true)
	var other atomic.Bool
	cfg.AlsoReady = func(context.Context) []telemetry.Check {
		return []telemetry.Check{{Name: "eu gateway", OK: other.Load(), Required: true}}
	}
	r := start(t, cfg)
	eventually(t, "serves", r.Serves)
	if r.ready() {
		t.Error("ready before the other role is")
	}
	other.Store(true)
	r.waitReady()
}
