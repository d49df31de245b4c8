package bucket_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/annona-gateway/annona/shared/bucket"
	"github.com/annona-gateway/annona/shared/bucket/buckettest"
)

// certificate writes a certificate for redis.test, which signs itself, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis.test"}, DNSNames: []string{"redis.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", signed), write("key.pem", "EC PRIVATE KEY", secret)
}

// TestTLSAndPassword: a server that wants TLS, a client's certificate, and a user's password.
func TestTLSAndPassword(t *testing.T) {
	cert, key := certificate(t)
	port, err := buckettest.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	server := buckettest.StartRedis(t, "--tls-port", fmt.Sprint(port), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)
	if err := server.Client().Do(t.Context(), "ACL", "SETUSER", "annona", "on", ">secret", "~annona:1:*", "&annona:1:*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	good := bucket.Config{
		Addrs: []string{fmt.Sprintf("127.0.0.1:%d", port)}, Username: "annona", PasswordFile: password,
		TLS: bucket.TLS{On: true, CA: cert, Cert: cert, Key: key, ServerName: "redis.test"},
	}
	store := openStore(t, good)
	takes(t, store, oneOf(5))
	if err := store.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*bucket.Config){
		"failed to verify certificate": func(c *bucket.Config) { c.TLS.ServerName = "" },
		"unknown authority":            func(c *bucket.Config) { c.TLS.CA = "" },
		"connect: ":                    func(c *bucket.Config) { c.TLS.Cert, c.TLS.Key = "", "" },
		"WRONGPASS":                    func(c *bucket.Config) { c.Username = "somebody" },
	} {
		cfg := good
		change(&cfg)
		_, err := openStore(t, cfg).Take(t.Context(), oneOf(5))
		wantCouldNotAsk(t, err)
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want it to say %q", err, want)
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("%v tells the password", err)
		}
	}
}
