package gateway

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/policy"
)

func (f *fakeStore) setMirror(m bucket.Mirror) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mirror = m
	if f.changed != nil {
		f.changed()
	}
}

// A change of the mirror is in use soon; one that cannot be used, or is older, changes nothing and is named.
func TestReloadThroughTheMirror(t *testing.T) {
	s := &fakeStore{take: admitAll}
	g := run(t, testConfig(t, perUser, upstream(t).URL), s)
	limitIs := func(want string) func() bool {
		return func() bool { return g.get(t, "/", "X-API-Key", "key-a").Header.Get("X-Ratelimit-Limit") == want }
	}
	eventually(t, "the cold start's limit", limitIs("10"))
	eventually(t, "it listens for changes", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.changed != nil })

	s.setMirror(bucket.Mirror{PolicyRevision: 7, Policy: []byte(strings.ReplaceAll(perUser, "10/min", "20/min"))})
	eventually(t, "the mirrored limit", limitIs("20"))

	s.setMirror(bucket.Mirror{PolicyRevision: 8, Policy: []byte("schema: 1\npolicies: [{name: broken}]\n")})
	eventually(t, "/readyz names the refused revision", func() bool {
		status, body := g.ready(t)
		return status == http.StatusOK && strings.Contains(body, "revision 7; revision 8 is refused")
	})
	s.setMirror(bucket.Mirror{PolicyRevision: 6, Policy: []byte(perUser)})
	s.setMirror(bucket.Mirror{})
	if !limitIs("20")() {
		t.Error("the last good document is not in use any more")
	}
	s.setMirror(bucket.Mirror{PolicyRevision: 9, Policy: []byte(strings.ReplaceAll(perUser, "10/min", "30/min"))})
	eventually(t, "the next good limit", limitIs("30"))
	if _, body := g.ready(t); strings.Contains(body, "refused") {
		t.Errorf("/readyz still names the refused document: %s", body)
	}
}

func TestNotReadyWithoutAPolicyDocument(t *testing.T) {
	s := &fakeStore{take: admitAll}
	g := run(t, testConfig(t, "", upstream(t).URL), s)
	if status, body := g.ready(t); status != http.StatusServiceUnavailable || !strings.Contains(body, "no policy document") {
		t.Errorf("/readyz = %d %s, want 503", status, body)
	}
	if a := g.get(t, "/", "X-API-Key", "key-a"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503: nothing passes unasked", a.StatusCode)
	}
	eventually(t, "it listens for changes", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.changed != nil })
	s.setMirror(bucket.Mirror{PolicyRevision: 1, Policy: []byte(perUser)})
	eventually(t, "ready with the first document", func() bool { status, _ := g.ready(t); return status == http.StatusOK })
}

// A global policy needs the regions document; /readyz names those that wait for it, and it comes through the mirror.
func TestGlobalPolicyWaitsForTheRegionsDocument(t *testing.T) {
	s := &fakeStore{take: admitAll}
	global := strings.NewReplacer("scope: region", "scope: global").Replace(perUser)
	g := run(t, testConfig(t, global, upstream(t).URL), s)
	if a := g.get(t, "/", "X-API-Key", "key-a"); a.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("status %d, want 503", a.StatusCode)
	}
	if status, body := g.ready(t); status != http.StatusOK || !strings.Contains(body, "per-user") {
		t.Errorf("/readyz = %d %s, want 200 that names the policy", status, body)
	}
	encoded, err := policy.EncodeRegions(&policy.Regions{Regions: []policy.Region{{Name: "eu", Weight: 1}}, Shards: 4, Times: policy.DefaultTimes()})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it listens for changes", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.changed != nil })
	s.setMirror(bucket.Mirror{RegionsRevision: 3, Regions: encoded})
	eventually(t, "global limits are asked about", func() bool { return g.get(t, "/", "X-API-Key", "key-a").StatusCode == http.StatusOK })
}

func TestGatewayRegisters(t *testing.T) {
	s := &fakeStore{take: admitAll}
	g := run(t, testConfig(t, perUser, upstream(t).URL), s)
	eventually(t, "it registered", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.registered) > 0 })
	if got := s.registered[0]; got.ID == "" || got.Fingerprint != g.secret.Fingerprint() || got.Heard >= 0 {
		t.Errorf("registered %+v", got)
	}
}

// SIGTERM: no new requests, those in flight get their answer, and /readyz says so meanwhile.
func TestDrain(t *testing.T) {
	release, arrived := make(chan struct{}), make(chan struct{})
	s := &fakeStore{take: func(r bucket.Request) (bucket.Verdict, error) {
		close(arrived)
		<-release
		return admitAll(r)
	}}
	g := run(t, testConfig(t, perUser, upstream(t).URL), s)
	status := make(chan int, 1)
	go func() { status <- g.get(t, "/", "X-API-Key", "key-a").StatusCode }()
	<-arrived
	ended := make(chan error, 1)
	go func() { ended <- g.stop() }()
	eventually(t, "/readyz is 503", func() bool {
		code, body := g.ready(t)
		return code == http.StatusServiceUnavailable && strings.Contains(body, "draining")
	})
	eventually(t, "new connections are refused", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		return err != nil
	})
	close(release)
	if got := <-status; got != http.StatusOK {
		t.Errorf("the request in flight got %d, want 200", got)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
}

// A region without an allocator changes its limits in the file and with SIGHUP. A file that is bad changes nothing; and once the
// mirror has brought a document, the file says nothing any more.
func TestReloadReadsTheOwnPolicies(t *testing.T) {
	s := &fakeStore{take: admitAll}
	cfg := testConfig(t, perUser, upstream(t).URL)
	g := run(t, cfg, s)
	limited := func(want string) func() bool {
		return func() bool { return g.get(t, "/", "X-API-Key", "key-a").Header.Get("X-Ratelimit-Limit") == want }
	}
	reload := func(rate string) error {
		write(t, cfg.Policies, strings.ReplaceAll(perUser, "10/min", rate))
		return g.Reload(t.Context())
	}
	if err := reload("20/min"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file's new limit", limited("20"))
	if err := reload("-1/min"); err == nil || !strings.Contains(err.Error(), "policies") {
		t.Errorf("Reload of a bad file = %v, want it named", err)
	}
	if !limited("20")() {
		t.Error("a bad file changed the limit")
	}
	eventually(t, "it listens for changes", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.changed != nil })
	s.setMirror(bucket.Mirror{PolicyRevision: 1, Policy: []byte(strings.ReplaceAll(perUser, "10/min", "30/min"))})
	eventually(t, "the mirrored limit", limited("30"))
	if err := reload("40/min"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the loop has looked at the file's document", func() bool { return g.own.Load() == nil })
	if !limited("30")() {
		t.Error("the file won over the mirror")
	}
}
