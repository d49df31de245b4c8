package allocator_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/annona-gateway/annona/allocator"
	"github.com/annona-gateway/annona/allocator/admin"
	"github.com/annona-gateway/annona/shared/bus/bustest"
)

func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// certificate writes a self-signed certificate for 127.0.0.1 and returns its files and a client that trusts it.
func certificate(t *testing.T, dir string) (allocator.TLS, *http.Client) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := allocator.TLS{Cert: filepath.Join(dir, "c.pem"), Key: filepath.Join(dir, "k.pem")}
	writeFile(t, files.Cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeFile(t, files.Key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}
	return files, &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func credentialsText(secret string) string {
	c := admin.NewCredential("olga", admin.Operator, secret)
	return fmt.Sprintf("- {name: %s, role: %s, sha256: %s}\n", c.Name, c.Role, c.SHA256)
}

// The whole life of the process: files, TLS, a SIGHUP that reads the credentials again, a SIGTERM that drains.
func TestCommandRunsTheRole(t *testing.T) {
	s := bustest.Start(t, bustest.Options{})
	dir := t.TempDir()
	files, client := certificate(t, dir)
	address := freeAddress(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	writeFile(t, at("policies.yaml"), document)
	writeFile(t, at("credentials.yaml"), credentialsText("first-token"))
	writeFile(t, at("secret"), "0123456789abcdef\n")
	writeFile(t, at("allocator.yaml"), fmt.Sprintf(`
listen: %q
tls: {cert: %q, key: %q}
nats: {urls: [%q], replicas: 1}
regions: [{name: eu, weight: 1}]
shards: 2
policies: %q
credentials: %q
hash_secret_file: %q
`, address, files.Cert, files.Key, s.URL(), at("policies.yaml"), at("credentials.yaml"), at("secret")))

	status := func(token string) int {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/admin/v1/policies", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			return 0
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	ctx, terminate := context.WithCancel(t.Context())
	defer terminate()
	done := make(chan error, 1)
	cmd := allocator.Command()
	cmd.SetArgs([]string{"--config", at("allocator.yaml"), "--init"})
	go func() { done <- cmd.ExecuteContext(ctx) }()
	eventually(t, "the first token works", func() bool { return status("first-token") == http.StatusOK })

	hangup := func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, at("credentials.yaml"), "- {name: broken")
	hangup()
	if got := status("first-token"); got != http.StatusOK {
		t.Errorf("after a reload of a broken file: %d, want 200", got)
	}
	writeFile(t, at("credentials.yaml"), credentialsText("second-token"))
	hangup()
	eventually(t, "the first token is refused", func() bool { return status("first-token") == http.StatusUnauthorized })
	if got := status("second-token"); got != http.StatusOK {
		t.Errorf("the second token after a reload: %d, want 200", got)
	}
	terminate()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the command ended with %v, want nil", err)
		}
	case <-time.After(15 * time.Second):
		t.Error("the command did not end within 15 s")
	}
}
