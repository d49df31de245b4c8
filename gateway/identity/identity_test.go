package identity_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/shared/policy"
)

func reader(t *testing.T, cfg identity.Config, keys string) *identity.Reader {
	t.Helper()
	lookup, err := identity.Parse([]byte(keys))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	r, err := identity.NewReader(cfg, lookup, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatalf("NewReader: %v", err)
	}
	return r
}

// somewhere is where requests come from that do not care.
func somewhere() identity.Client {
	return identity.Client{Addr: netip.MustParseAddr("192.0.2.7"), Network: netip.MustParseAddr("192.0.2.0")}
}

func request(keys ...string) *http.Request {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
	for _, key := range keys {
		r.Header.Add("X-Api-Key", key)
	}
	return r
}

// A known key names its user, with its claims as text; the key itself stays out of the identity.
func TestKnownKeyNamesItsUser(t *testing.T) {
	r := reader(t, identity.Config{}, "- {sha256: "+identity.Hash("s3cret")+", user: acme, tier: gold, claims: {org: o, level: 3, beta: true, part: 0.5}}\n")
	got, err := r.Identify(request("s3cret"), somewhere())
	want := policy.Identity{
		User: "acme", Tier: "gold", APIKey: identity.Hash("s3cret"), IP: somewhere().Addr, Network: somewhere().Network,
		Claims: map[string]string{"org": "o", "level": "3", "beta": "true", "part": "0.5"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Identify = %+v, %v, want %+v", got, err, want)
	}
}

func TestWrongCredentialIsNeverAnonymous(t *testing.T) {
	r := reader(t, identity.Config{Unknown: identity.UnknownAnonymous}, "- {sha256: "+identity.Hash("known")+", user: acme}")
	for name, keys := range map[string][]string{"unknown": {"nope"}, "empty": {""}, "two": {"known", "known"}} {
		if _, err := r.Identify(request(keys...), somewhere()); !errors.Is(err, identity.ErrWrongCredential) {
			t.Errorf("%s: Identify = %v, want %v", name, err, identity.ErrWrongCredential)
		}
	}
}

func TestNoCredential(t *testing.T) {
	got, err := reader(t, identity.Config{}, "[]").Identify(request(), somewhere())
	if err != nil || got.Tier != policy.Anonymous || got.User != "" || got.APIKey != "" {
		t.Errorf("anonymous: Identify = %+v, %v", got, err)
	}
	if _, err = reader(t, identity.Config{Unknown: identity.UnknownDeny}, "[]").Identify(request(), somewhere()); !errors.Is(err, identity.ErrNoCredential) {
		t.Errorf("deny: Identify = %v, want %v", err, identity.ErrNoCredential)
	}
}

func TestLookupOfTheOwnerGetsTheHashedName(t *testing.T) {
	lookup := func(key string) (policy.Identity, bool) {
		return policy.Identity{User: key[5:]}, strings.HasPrefix(key, "demo-")
	}
	r, err := identity.NewReader(identity.Config{}, lookup, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Identify(request("demo-alice"), somewhere())
	if err != nil || got.User != "alice" || got.APIKey != identity.Hash("demo-alice") {
		t.Errorf("Identify = %+v, %v, want alice with the hash of the key", got, err)
	}
}

func TestPeer(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80":           "192.0.2.1",
		"[2001:db8::1]:80":       "2001:db8::1",
		"[::ffff:192.0.2.1]:80":  "192.0.2.1",
		"[fe80::1%eth0]:80":      "fe80::1",
		"@":                      "invalid IP",
		"192.0.2.1, 192.0.2.2:1": "invalid IP",
	} {
		if got := identity.Peer(remote).String(); got != want {
			t.Errorf("Peer(%q) = %s, want %s", remote, got, want)
		}
	}
}

// Everything that is wrong comes at once, with its line, and without what stands in the file.
func TestParseTellsAllErrorsAtOnce(t *testing.T) {
	_, err := identity.Parse([]byte(strings.Join([]string{
		"- {sha256: 1234, user: a}",
		"- {sha256: " + identity.Hash("k") + ", user: b}",
		"- {sha256: " + identity.Hash("k") + ", user: c}",
		"- {sha256: " + identity.Hash("l") + "}",
		"- {sha256: " + identity.Hash("m") + ", user: d, tear: gold, secret: hunter2}",
		"- {sha256: " + identity.Hash("n") + ", user: \"a\\nb\"}",
		"- {sha256: " + identity.Hash("o") + ", user: e, claims: {roles: [a, b], org: o, none: null}}",
	}, "\n")))
	if err == nil {
		t.Fatal("Parse accepted a bad file")
	}
	for _, want := range []string{"line 1: sha256", "line 3: the same", "line 4: user is missing", "line 5: unknown field", "line 6: user and tier", "line 7: claims: none, roles:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Parse = %v, want %q in it", err, want)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Parse shows the file's text: %v", err)
	}
}

func TestParseRefusesWhatIsNoList(t *testing.T) {
	for _, source := range []string{"sha256: x", "- [", "\"text\"", "", "# nothing yet\n"} {
		if _, err := identity.Parse([]byte(source)); err == nil {
			t.Errorf("Parse(%q) accepted it", source)
		}
	}
}

func TestConfigTellsAllErrorsAtOnce(t *testing.T) {
	err := identity.Config{APIKeys: identity.APIKeys{Header: "authorization"}, JWT: &identity.JWT{}, Unknown: "maybe"}.Validate()
	for _, want := range []string{"identity.unknown \"maybe\"", "identity.jwt.jwks: name", "another header"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate = %v, want %q in it", err, want)
		}
	}
	for jwks, good := range map[string]bool{
		"keys.json": true, "https://id.example.com/jwks": true, "http://127.0.0.1:1/": true, "https://": false, "http://user:hunter2@id/": false,
		"https://%zz": false,
	} {
		err := identity.Config{JWT: &identity.JWT{JWKS: jwks}}.Validate()
		if (err == nil) != good || (err != nil && strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("Validate with jwks %s = %v", jwks, err)
		}
	}
}
