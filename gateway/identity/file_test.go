package identity_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"github.com/annona-gateway/annona/gateway/identity"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func keyOf(name string) string {
	return "- {sha256: " + identity.Hash(name) + ", user: " + name + "}\n"
}

// What is read again is what two looks found alike; what is bad changes nothing and is said once.
func TestTheFileOfKeysIsReadWhenItChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "keys.yaml")
	write(t, path, keyOf("alice"))
	var log bytes.Buffer
	r, err := identity.NewReader(identity.Config{APIKeys: identity.APIKeys{File: path}}, nil, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	known := func(name string) bool {
		_, err := r.Identify(request(name), somewhere())
		return err == nil
	}
	looks := func(n int) {
		for range n {
			r.Look(t.Context())
		}
	}
	looks(3)
	if log.Len() > 0 || !known("alice") {
		t.Fatalf("nothing changed: %s", &log)
	}
	write(t, path, keyOf("alice")+keyOf("bob"))
	looks(1)
	if known("bob") {
		t.Error("a file was read that may still be written")
	}
	looks(1)
	if !known("bob") || !known("alice") {
		t.Error("a change was not read")
	}
	for _, bad := range []string{"", "- {sha256: " + identity.Hash("x") + ", user: hunter2, secret: hunter2}", "- {"} {
		log.Reset()
		write(t, path, bad)
		looks(5)
		if !known("bob") {
			t.Fatalf("%q took the keys away", bad)
		}
		if n := strings.Count(log.String(), "what was read before stays"); n != 1 || strings.Contains(log.String(), "hunter2") {
			t.Errorf("%q was told %d times:\n%s", bad, n, &log)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	looks(3)
	if !known("bob") {
		t.Error("the keys went with the file")
	}
	// Put in place by a rename, as careful writers do; a reload that is asked for waits for no look.
	write(t, path+".new", keyOf("carol"))
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	if err := r.Reload(); err != nil {
		t.Error(err)
	}
	if !known("carol") || known("bob") {
		t.Error("a reload did not read the file")
	}
}

func TestTheFileOfTokenKeysIsReadWhenItChanges(t *testing.T) {
	cfg := identity.JWT{Issuer: issuer, Audience: audience}
	r := tokenReader(t, jwks(t, jwk(t, "one", issuerKeys()["ed"])), identity.Config{JWT: &cfg})
	accepted := func(id string) bool {
		_, err := r.Identify(bearer(sign(t, jwt.SigningMethodEdDSA, kid(id), claims(nil), issuerKeys()["ed"])), somewhere())
		return err == nil
	}
	write(t, cfg.JWKS, string(jwks(t, jwk(t, "two", issuerKeys()["ed"]))))
	r.Look(t.Context())
	r.Look(t.Context())
	if accepted("one") || !accepted("two") {
		t.Error("a rotation in the file was not read")
	}
	write(t, cfg.JWKS, `{"keys": []}`)
	if err := r.Reload(); err == nil || !strings.Contains(err.Error(), cfg.JWKS) {
		t.Errorf("Reload = %v, want what is wrong with %s", err, cfg.JWKS)
	}
	if !accepted("two") || !r.Ready()[0].OK {
		t.Error("a bad file took the keys away")
	}
}

func TestAFileThatIsBadAtTheStartIsRefused(t *testing.T) {
	keys, set := filepath.Join(t.TempDir(), "keys.yaml"), filepath.Join(t.TempDir(), "none.json")
	write(t, keys, "- {user: x}")
	_, err := identity.NewReader(identity.Config{APIKeys: identity.APIKeys{File: keys}, JWT: &identity.JWT{JWKS: set}}, nil, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), keys) || !strings.Contains(err.Error(), set) {
		t.Errorf("NewReader = %v, want both files in it", err)
	}
}
