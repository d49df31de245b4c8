package identity_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/annona-gateway/annona/gateway/identity"
)

// keyServer is an issuer's, without a network.
type keyServer struct {
	mu      sync.Mutex
	set     []byte // nil: the server is out
	delay   time.Duration
	fetches atomic.Int64
}

func (s *keyServer) serve(set []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.set = set
}

func (s *keyServer) RoundTrip(r *http.Request) (*http.Response, error) {
	s.fetches.Add(1)
	s.mu.Lock()
	set, delay := s.set, s.delay
	s.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if set == nil {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(set)), Request: r}, nil
}

// remoteReader is one that fetches keys from s, until the test's bubble ends.
func remoteReader(t *testing.T, s *keyServer) (r *identity.Reader, log *bytes.Buffer) {
	t.Helper()
	log = &bytes.Buffer{}
	r, err := identity.NewReader(identity.Config{JWT: &identity.JWT{
		JWKS: "https://id.example.com/jwks?token=hunter2", Issuer: issuer, Audience: audience,
	}}, nil, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	r.SetTransport(s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r, log
}

func edToken(t *testing.T, id string, change map[string]any) string {
	t.Helper()
	return sign(t, jwt.SigningMethodEdDSA, kid(id), claims(change), issuerKeys()["ed"])
}

func TestKeysOfAServerThatRotatesAndGoesAway(t *testing.T) {
	issuerKeys()
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{set: jwks(t, jwk(t, "one", issuerKeys()["ed"]))}
		r, log := remoteReader(t, s)
		synctest.Wait()
		accepted := func(id string) bool {
			_, err := r.Identify(bearer(edToken(t, id, nil)), somewhere())
			return err == nil
		}
		if !accepted("one") || accepted("two") {
			t.Fatal("want key one and no other")
		}
		// Rotated: the first token with the new key brings it, once a fetch is due.
		s.serve(jwks(t, jwk(t, "two", issuerKeys()["ed"])))
		pass(10 * time.Second)
		synctest.Wait()
		if !accepted("two") || accepted("one") {
			t.Error("want key two and no other after the rotation")
		}
		// Out, or answering nonsense: the last good keys stay.
		tooLong := append(jwks(t, jwk(t, "long", issuerKeys()["ed"])), bytes.Repeat([]byte(" "), 2<<20)...)
		for _, set := range [][]byte{nil, []byte("<html>"), []byte(`{"keys": []}`), tooLong} {
			s.serve(set)
			if err := r.Reload(); err != nil {
				t.Error(err)
			}
			pass(time.Hour)
			if !accepted("two") {
				t.Fatalf("the keys are gone with the server (%.10q)", set)
			}
		}
		if ready := r.Ready()[0]; !ready.OK || !strings.Contains(ready.Detail, "cannot be fetched") {
			t.Errorf("Ready = %+v, want a check that is well and says what is not", ready)
		}
		synctest.Wait() // nobody writes the log now
		if strings.Contains(log.String(), "hunter2") || !strings.Contains(log.String(), "the last good one stays") {
			t.Errorf("log:\n%.600s", log)
		}
		s.serve(jwks(t, jwk(t, "three", issuerKeys()["ed"])))
		pass(2 * time.Minute)
		if !accepted("three") {
			t.Error("the server is back and nobody asked it")
		}
	})
}

// A flood of tokens with keys that nobody has asks the server once in ten seconds, and waits for it as little.
func TestUnknownKeysDoNotHammerTheServer(t *testing.T) {
	issuerKeys()
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{set: jwks(t, jwk(t, "one", issuerKeys()["ed"]))}
		r, _ := remoteReader(t, s)
		synctest.Wait()
		start := time.Now()
		for i := range 600 {
			// Each from an address of its own, so that nobody's failures stop it.
			client := somewhere()
			for range i {
				client.Network = client.Network.Next()
			}
			if _, err := r.Identify(bearer(edToken(t, fmt.Sprintf("forged-%d", i), nil)), client); !errors.Is(err, identity.ErrWrongCredential) {
				t.Fatalf("Identify = %v", err)
			}
			pass(100 * time.Millisecond)
		}
		took := time.Since(start)
		if n, most := s.fetches.Load(), int64(took/(10*time.Second))+1; n > most || n < 3 {
			t.Errorf("%d fetches in %v, want at most %d, and some", n, took, most)
		}
	})
}

// While the server is slow, requests with unknown keys wait a moment for it and no longer; those with known keys not at all.
func TestASlowKeyServerHoldsNobodyUp(t *testing.T) {
	issuerKeys()
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{set: jwks(t, jwk(t, "one", issuerKeys()["ed"]))}
		r, _ := remoteReader(t, s)
		synctest.Wait()
		s.mu.Lock()
		s.delay = time.Hour
		s.mu.Unlock()
		pass(20 * time.Second)
		took := func(id string) time.Duration {
			start := time.Now()
			_, _ = r.Identify(bearer(edToken(t, id, nil)), somewhere())
			return time.Since(start)
		}
		if d := took("two"); d != time.Second {
			t.Errorf("an unknown key waited %v, want 1 s", d)
		}
		if d := took("one"); d != 0 {
			t.Errorf("a known key waited %v", d)
		}
		var group sync.WaitGroup
		var waited atomic.Int64
		for range 1000 {
			group.Go(func() {
				if took("three") > 0 {
					waited.Add(1)
				}
			})
		}
		group.Wait()
		if n := waited.Load(); n > 128 {
			t.Errorf("%d requests waited at once, want at most 128", n)
		}
	})
}

// Before the first keys a token cannot be checked, which is nobody's fault; for ten seconds the gateway is not ready.
func TestReadyAfterTheFirstLoadOrTenSeconds(t *testing.T) {
	issuerKeys()
	synctest.Test(t, func(t *testing.T) {
		s := &keyServer{}
		r, _ := remoteReader(t, s)
		synctest.Wait()
		if ready := r.Ready()[0]; ready.OK || !ready.Required {
			t.Errorf("Ready = %+v, want what keeps the gateway from being ready", ready)
		}
		for range 50 {
			pass(200 * time.Millisecond)
			if _, err := r.Identify(bearer(edToken(t, "one", nil)), somewhere()); !errors.Is(err, identity.ErrUnavailable) {
				t.Fatalf("Identify = %v, want %v", err, identity.ErrUnavailable)
			}
		}
		if ready := r.Ready()[0]; ready.OK || ready.Required {
			t.Errorf("Ready = %+v, want nothing that is required any more", ready)
		}
		s.serve(jwks(t, jwk(t, "one", issuerKeys()["ed"])))
		pass(time.Minute)
		if _, err := r.Identify(bearer(edToken(t, "one", nil)), somewhere()); err != nil {
			t.Error(err)
		}
		if ready := r.Ready()[0]; !ready.OK || ready.Detail != "" {
			t.Errorf("Ready = %+v", ready)
		}
	})
}

// The real transport, against a real server: secrets that everybody can fetch are none, and redirects have an end.
func TestKeysOverHTTP(t *testing.T) {
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	defer server.Close()
	mux.Handle("/jwks", http.RedirectHandler("/keys", http.StatusFound))
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(allKeys(t)) })
	mux.Handle("/loop", http.RedirectHandler("/loop", http.StatusFound))
	for path, works := range map[string]bool{"/jwks": true, "/loop": false, "/missing": false} {
		r, err := identity.NewReader(identity.Config{JWT: &identity.JWT{JWKS: server.URL + path}}, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); r.Run(ctx) }()
		_, err = r.Identify(bearer(edToken(t, "ed", nil)), somewhere())
		if (err == nil) != works {
			t.Errorf("%s: Identify = %v", path, err)
		}
		hmac := sign(t, jwt.SigningMethodHS256, kid("hmac"), claims(nil), []byte(secret))
		if _, err = r.Identify(bearer(hmac), somewhere()); err == nil {
			t.Errorf("%s: a secret that was fetched is used", path)
		}
		cancel()
		<-done
	}
}
