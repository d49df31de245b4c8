package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/config"
)

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// certify writes a certificate for name, signed by itself, and its key; it returns the section and a pool that trusts it.
func certify(t *testing.T, dir, name string) (*TLS, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	section := &TLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	write(t, section.Cert, string(certificate))
	write(t, section.Key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certificate)
	return section, pool
}

// shown asks over a new connection, and returns the name in the certificate with the answer.
func shown(t *testing.T, g *running, pool *x509.CertPool, http2 bool) (string, answered) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: http2}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.Addr().String()+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", "key-a")
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.TLS.PeerCertificates[0].Subject.CommonName, answered{res, body}
}

func TestTLSWithCertificatesReadAgain(t *testing.T) {
	dir := t.TempDir()
	section, old := certify(t, dir, "old.example.com")
	cfg := testConfig(t, perUser, upstream(t).URL)
	cfg.TLS = section
	g := run(t, cfg, &fakeStore{take: admitAll})
	for _, http2 := range []bool{true, false} {
		name, a := shown(t, g, old, http2)
		if name != "old.example.com" || (a.ProtoMajor == 2) != http2 || a.Header.Get("Ratelimit") == "" {
			t.Errorf("%s shows %s: %v", a.Proto, name, a.Header)
		}
		if proto := a.echoed(t).Header.Get("X-Forwarded-Proto"); proto != "https" {
			t.Errorf("the upstream hears of %q", proto)
		}
	}
	write(t, section.Key, "no key")
	if err := g.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "tls") {
		t.Errorf("Reload of a broken key = %v", err)
	}
	if name, _ := shown(t, g, old, true); name != "old.example.com" {
		t.Errorf("after a broken file it shows %s", name)
	}
	_, fresh := certify(t, dir, "new.example.com")
	if err := g.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if name, _ := shown(t, g, fresh, true); name != "new.example.com" {
		t.Errorf("after a reload it shows %s", name)
	}
}

// A gateway with a broken TLS section does not start.
func TestTLSFilesMustBeThere(t *testing.T) {
	cfg := testConfig(t, perUser, "http://127.0.0.1:1")
	cfg.TLS = &TLS{Cert: "/nowhere/cert.pem", Key: "/nowhere/key.pem"}
	if _, err := Open(t.Context(), cfg, testTelemetry(t)); !errors.Is(err, config.ErrUsage) || !strings.Contains(err.Error(), "tls") {
		t.Errorf("Open = %v, want what is wrong with tls", err)
	}
}

// reloadable is a gateway with a configuration file, whose Redis is gone and whose policies refuse then.
func reloadable(t *testing.T) (g *running, file, keys, source string) {
	t.Helper()
	dir := t.TempDir()
	file, keys = filepath.Join(dir, "gateway.yaml"), filepath.Join(dir, "keys.yaml")
	secret, policies := filepath.Join(dir, "secret"), filepath.Join(dir, "policies.yaml")
	write(t, secret, "sixteen bytes at least")
	write(t, policies, perUser)
	write(t, keys, fmt.Sprintf("- {sha256: %s, user: alice}\n", identity.Hash("one")))
	source = fmt.Sprintf("region: eu\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\nredis: {addrs: [\"127.0.0.1:1\"]}\npolicies: %s\n"+
		"routes: [{name: api, upstreams: [%q]}]\nidentity: {api_keys: {file: %s}, hash_secret_file: %s}\n", policies, upstream(t).URL, keys, secret)
	write(t, file, source)
	cfg, err := read(file)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Reread = func() (Config, error) { return read(file) }
	g = run(t, cfg, &fakeStore{
		take: func(bucket.Request) (bucket.Verdict, error) {
			return bucket.Verdict{}, fmt.Errorf("%w: gone", bucket.ErrCouldNotAsk)
		}, ping: errors.New("gone"),
	})
	return g, file, keys, source
}

// The red button in gateway.yaml takes effect without a restart, with nothing else alive, and comes off again.
func TestRedButton(t *testing.T) {
	g, file, _, source := reloadable(t)
	status := func() int { return g.get(t, "/", "X-API-Key", "one").StatusCode }
	if got := status(); got != http.StatusServiceUnavailable {
		t.Fatalf("before: %d, want 503", got)
	}
	for _, row := range []struct {
		enforcement string
		want        int
	}{{"shadow", http.StatusOK}, {"on", http.StatusServiceUnavailable}} {
		write(t, file, source+"enforcement: "+row.enforcement+"\n")
		if err := g.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := status(); got != row.want {
			t.Errorf("enforcement %s: %d, want %d", row.enforcement, got, row.want)
		}
	}
}

// The red button must not hang on a policy document: without one nothing can be enforced, and nothing need be.
func TestRedButtonWithoutAPolicyDocument(t *testing.T) {
	cfg := testConfig(t, "", upstream(t).URL)
	cfg.Enforcement = shade
	g := run(t, cfg, &fakeStore{take: admitAll, ping: errors.New("gone")})
	if a := g.get(t, "/", "X-API-Key", "key-a"); a.StatusCode != http.StatusOK {
		t.Errorf("status %d, want 200", a.StatusCode)
	}
}

func TestReloadAppliesHeadersAndKeys(t *testing.T) {
	g, file, keys, source := reloadable(t)
	write(t, file, source+"headers: draft-06\nenforcement: on\n")
	write(t, keys, fmt.Sprintf("- {sha256: %s, user: bob}\n", identity.Hash("two")))
	if err := g.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := g.get(t, "/", "X-API-Key", "two")
	if a.StatusCode != http.StatusServiceUnavailable || a.Header.Get("RateLimit-Limit") != "10" || a.Header.Get("X-RateLimit-Limit") != "" {
		t.Errorf("status %d, headers %v: want the new key known and draft-06", a.StatusCode, a.Header)
	}
	if a := g.get(t, "/", "X-API-Key", "one"); a.StatusCode != http.StatusUnauthorized {
		t.Errorf("the key that was removed: status %d, want 401", a.StatusCode)
	}
}

func TestBadConfigurationChangesNothing(t *testing.T) {
	g, file, keys, source := reloadable(t)
	write(t, keys, "- {sha256: 12, user: mallory}\n")
	for _, bad := range []string{"enforcement: shadow\nunknown: 1\n", "enforcement: shadow\nretry_jitter: 200%\n", "enforcement: [\n", "enforcement: shadow\nheaders: x\n"} {
		write(t, file, source+bad)
		if err := g.Reload(t.Context()); !errors.Is(err, config.ErrUsage) {
			t.Errorf("Reload of %q = %v, want %v", bad, err, config.ErrUsage)
		}
		if got := g.get(t, "/", "X-API-Key", "one").StatusCode; got != http.StatusServiceUnavailable {
			t.Errorf("after %q: status %d, want 503 as before", bad, got)
		}
	}
	// A bad key file keeps the keys, and does not hold up the red button.
	write(t, file, source+"enforcement: shadow\n")
	if err := g.Reload(t.Context()); err == nil || g.get(t, "/", "X-API-Key", "one").StatusCode != http.StatusOK {
		t.Errorf("Reload = %v, want the key file told, the keys of before and no enforcement", err)
	}
}

func TestReloadTellsWhatNeedsARestart(t *testing.T) {
	g, file, _, source := reloadable(t)
	write(t, file, strings.ReplaceAll(source, "name: api", "name: other")+"access_log: off\nretry_jitter: 0\n")
	if err := g.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if log := g.log.String(); !strings.Contains(log, `"settings":["routes","access_log"]`) {
		t.Errorf("log: %s", log)
	}
}

func TestReloadRunsWhatOthersRegistered(t *testing.T) {
	g := run(t, testConfig(t, perUser, "http://127.0.0.1:1"), &fakeStore{take: admitAll})
	ran := 0
	g.reloads = append(g.reloads, func() error { ran++; return errors.New("that one is broken") }, func() error { ran++; return nil })
	if err := g.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), "that one is broken") || ran != 2 {
		t.Errorf("Reload = %v after %d of 2", err, ran)
	}
}

// SIGHUP reloads; the process goes on.
func TestHangupReloads(t *testing.T) {
	g, file, _, source := reloadable(t)
	hangup := make(chan os.Signal, 1)
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() { defer close(ended); g.reloadOn(t.Context(), hangup, stop) }()
	write(t, file, source+"enforcement: shadow\n")
	hangup <- syscall.SIGHUP
	eventually(t, "nothing is enforced", func() bool { return g.get(t, "/", "X-API-Key", "one").StatusCode == http.StatusOK })
	close(stop)
	<-ended
}
