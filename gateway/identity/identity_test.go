package identity_test

import (
	"context"
	"errors"
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
	r, err := identity.NewReader(cfg, lookup)
	if err != nil {
		t.Fatalf("NewReader: %v", err)
	}
	return r
}

func request(keys ...string) *http.Request {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/", nil)
	r.RemoteAddr = "[::ffff:192.0.2.7]:4711"
	for _, key := range keys {
		r.Header.Add("X-Api-Key", key)
	}
	return r
}

// A known key names its user; the peer is one client over IPv4 and IPv6 sockets; the key itself stays out of the identity.
func TestKnownKeyNamesItsUser(t *testing.T) {
	r := reader(t, identity.Config{}, "- {sha256: "+identity.Hash("s3cret")+", user: acme, tier: gold, claims: {org: o}}\n")
	got, err := r.Identify(request("s3cret"))
	want := policy.Identity{User: "acme", Tier: "gold", APIKey: identity.Hash("s3cret"), IP: netip.MustParseAddr("192.0.2.7")}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("Identify = %+v, %v, want %+v", got, err, want)
	}
}

func TestWrongCredentialIsNeverAnonymous(t *testing.T) {
	r := reader(t, identity.Config{Unknown: identity.UnknownAnonymous}, "- {sha256: "+identity.Hash("known")+", user: acme}")
	for name, keys := range map[string][]string{"unknown": {"nope"}, "empty": {""}, "two": {"known", "known"}} {
		if _, err := r.Identify(request(keys...)); !errors.Is(err, identity.ErrWrongCredential) {
			t.Errorf("%s: Identify = %v, want %v", name, err, identity.ErrWrongCredential)
		}
	}
}

func TestNoCredential(t *testing.T) {
	got, err := reader(t, identity.Config{}, "").Identify(request())
	if err != nil || got.Tier != policy.Anonymous || got.User != "" || got.APIKey != "" {
		t.Errorf("anonymous: Identify = %+v, %v", got, err)
	}
	if _, err = reader(t, identity.Config{Unknown: identity.UnknownDeny}, "").Identify(request()); !errors.Is(err, identity.ErrNoCredential) {
		t.Errorf("deny: Identify = %v, want %v", err, identity.ErrNoCredential)
	}
}

func TestLookupOfTheOwnerGetsTheHashedName(t *testing.T) {
	lookup := func(key string) (policy.Identity, bool) {
		return policy.Identity{User: key[5:]}, strings.HasPrefix(key, "demo-")
	}
	r, err := identity.NewReader(identity.Config{}, lookup)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Identify(request("demo-alice"))
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
	}, "\n")))
	if err == nil {
		t.Fatal("Parse accepted a bad file")
	}
	for _, want := range []string{"line 1: sha256", "line 3: the same", "line 4: user is missing", "line 5: unknown field", "line 6: user and tier"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Parse = %v, want %q in it", err, want)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("Parse shows the file's text: %v", err)
	}
}

func TestParseRefusesWhatIsNoList(t *testing.T) {
	for _, source := range []string{"sha256: x", "- [", "\"text\""} {
		if _, err := identity.Parse([]byte(source)); err == nil {
			t.Errorf("Parse(%q) accepted it", source)
		}
	}
}

func TestConfigRefusesWhatThisVersionCannot(t *testing.T) {
	err := identity.Config{JWT: map[string]any{}, Unknown: "maybe"}.Validate()
	if err == nil || !strings.Contains(err.Error(), "not supported by this version yet") || !strings.Contains(err.Error(), "maybe") {
		t.Errorf("Validate = %v, want jwt refused and unknown named", err)
	}
}
