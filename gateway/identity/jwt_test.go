package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"github.com/annona-gateway/annona/gateway/identity"
	"github.com/annona-gateway/annona/shared/policy"
)

const (
	issuer   = "https://id.example.com"
	audience = "api"
)

// issuerKeys are an issuer's keys by their id, made once: RSA keys take their time.
var issuerKeys = sync.OnceValue(func() map[string]crypto.Signer {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	return map[string]crypto.Signer{"rsa": rsaKey, "ec": ecKey, "ed": edKey}
})

const secret = "a secret of thirty-two bytes and more"

// jwk is a key as it stands in a key set.
func jwk(t testing.TB, kid string, key any) map[string]any {
	t.Helper()
	if signer, ok := key.(crypto.Signer); ok {
		key = signer.Public()
	}
	k, err := jwkset.NewJWKFromKey(key, jwkset.JWKOptions{
		Marshal: jwkset.JWKMarshalOptions{Private: true}, Metadata: jwkset.JWKMetadataOptions{KID: kid},
	})
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(k.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err = json.Unmarshal(encoded, &fields); err != nil {
		t.Fatal(err)
	}
	return fields
}

func jwks(t testing.TB, keys ...map[string]any) []byte {
	t.Helper()
	encoded, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	return encoded
}

// allKeys is the key set of the issuer, with keys in it that are for something else.
func allKeys(t testing.TB) []byte {
	t.Helper()
	keys := issuerKeys()
	encryption := jwk(t, "enc", keys["rsa"])
	encryption["use"] = "enc"
	pss := jwk(t, "pss", keys["rsa"])
	pss["alg"] = "PS256"
	return jwks(t, jwk(t, "rsa", keys["rsa"]), jwk(t, "ec", keys["ec"]), jwk(t, "ed", keys["ed"]), jwk(t, "hmac", []byte(secret)),
		encryption, pss, jwk(t, "short", []byte("short")), map[string]any{"kty": "post-quantum", "kid": "new"})
}

func claims(change map[string]any) jwt.MapClaims {
	c := jwt.MapClaims{
		"iss": issuer, "aud": audience, "sub": "alice", "tier": "gold", "exp": time.Now().Add(time.Hour).Unix(),
	}
	maps.Copy(c, change)
	for name, value := range c {
		if value == nil {
			delete(c, name)
		}
	}
	return c
}

func sign(t testing.TB, method jwt.SigningMethod, header map[string]any, c jwt.MapClaims, key any) string {
	t.Helper()
	token := jwt.NewWithClaims(method, c)
	maps.Copy(token.Header, header)
	signed, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func kid(id string) map[string]any { return map[string]any{"kid": id} }

func tokenReader(t testing.TB, set []byte, cfg identity.Config) *identity.Reader {
	t.Helper()
	if cfg.JWT == nil {
		cfg.JWT = &identity.JWT{Issuer: issuer, Audience: audience}
	}
	cfg.JWT.JWKS = filepath.Join(t.TempDir(), "jwks.json")
	if err := os.WriteFile(cfg.JWT.JWKS, set, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := identity.NewReader(cfg, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func bearer(token string) *http.Request {
	r := request()
	r.Header.Set("Authorization", "bearer "+token)
	return r
}

func TestTokensOfEachAlgorithm(t *testing.T) {
	r, keys := tokenReader(t, allKeys(t), identity.Config{}), issuerKeys()
	for name, token := range map[string]string{
		"HS256":             sign(t, jwt.SigningMethodHS256, kid("hmac"), claims(nil), []byte(secret)),
		"RS256":             sign(t, jwt.SigningMethodRS256, kid("rsa"), claims(nil), keys["rsa"]),
		"ES256":             sign(t, jwt.SigningMethodES256, kid("ec"), claims(nil), keys["ec"]),
		"EdDSA":             sign(t, jwt.SigningMethodEdDSA, kid("ed"), claims(nil), keys["ed"]),
		"no key id":         sign(t, jwt.SigningMethodES256, nil, claims(nil), keys["ec"]),
		"several audiences": sign(t, jwt.SigningMethodES256, nil, claims(map[string]any{"aud": []string{"web", audience}}), keys["ec"]),
		"a moment too old":  sign(t, jwt.SigningMethodES256, nil, claims(map[string]any{"exp": time.Now().Add(-20 * time.Second).Unix()}), keys["ec"]),
		"a moment early":    sign(t, jwt.SigningMethodES256, nil, claims(map[string]any{"nbf": time.Now().Add(20 * time.Second).Unix()}), keys["ec"]),
	} {
		if id, err := r.Identify(bearer(token), somewhere()); err != nil || id.User != "alice" || id.Tier != "gold" || id.IP != somewhere().Addr {
			t.Errorf("%s: Identify = %+v, %v", name, id, err)
		}
	}
}

// Each row is a token that one kind of carelessness would accept.
func TestTokensThatAreRefused(t *testing.T) {
	keys := issuerKeys()
	der, err := x509.MarshalPKIXPublicKey(keys["rsa"].Public())
	if err != nil {
		t.Fatal(err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	ec := func(header, change map[string]any) string {
		return sign(t, jwt.SigningMethodES256, header, claims(change), keys["ec"])
	}
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := ec(kid("ec"), nil)
	part := strings.Split(good, ".")
	forged := base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"` + issuer + `","aud":"api","sub":"mallory","exp":9999999999}`))
	rs384 := sign(t, jwt.SigningMethodRS384, kid("rsa"), claims(nil), keys["rsa"])
	for name, token := range map[string]string{
		"alg none":                        sign(t, jwt.SigningMethodNone, kid("ec"), claims(nil), jwt.UnsafeAllowNoneSignatureType),
		"alg nOnE":                        base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"nOnE"}`)) + "." + part[1] + ".",
		"no alg":                          base64.RawURLEncoding.EncodeToString([]byte(`{"kid":"ec"}`)) + "." + part[1] + "." + part[2],
		"no signature":                    part[0] + "." + part[1] + ".",
		"other claims":                    part[0] + "." + forged + "." + part[2],
		"a public key as secret":          sign(t, jwt.SigningMethodHS256, kid("rsa"), claims(nil), public),
		"a public key's DER as secret":    sign(t, jwt.SigningMethodHS256, kid("rsa"), claims(nil), der),
		"a public key as unnamed secret":  sign(t, jwt.SigningMethodHS256, nil, claims(nil), public),
		"the secret's id, the RSA key":    sign(t, jwt.SigningMethodRS256, kid("hmac"), claims(nil), keys["rsa"]),
		"the EC key's id, EdDSA":          sign(t, jwt.SigningMethodEdDSA, kid("ec"), claims(nil), keys["ed"]),
		"an algorithm that is not listed": rs384,
		"PS256 with a key for it":         sign(t, jwt.SigningMethodPS256, kid("pss"), claims(nil), keys["rsa"]),
		"a key for encryption":            sign(t, jwt.SigningMethodRS256, kid("enc"), claims(nil), keys["rsa"]),
		"a short secret":                  sign(t, jwt.SigningMethodHS256, kid("short"), claims(nil), []byte("short")),
		"somebody else's key":             sign(t, jwt.SigningMethodEdDSA, kid("ed"), claims(nil), stranger),
		"a key that the token brings":     sign(t, jwt.SigningMethodEdDSA, map[string]any{"jwk": jwk(t, "x", stranger)}, claims(nil), stranger),
		"an unknown key":                  ec(kid("gone"), nil),
		"a key id that is no text":        ec(map[string]any{"kid": 7}, nil),
		"an unknown extension":            ec(map[string]any{"kid": "ec", "crit": []string{"exp"}}, nil),
		"an empty list of extensions":     ec(map[string]any{"kid": "ec", "crit": []string{}}, nil),
		"another audience":                ec(kid("ec"), map[string]any{"aud": "web"}),
		"no audience":                     ec(kid("ec"), map[string]any{"aud": nil}),
		"another issuer":                  ec(kid("ec"), map[string]any{"iss": issuer + "/"}),
		"no issuer":                       ec(kid("ec"), map[string]any{"iss": nil}),
		"expired":                         ec(kid("ec"), map[string]any{"exp": time.Now().Add(-40 * time.Second).Unix()}),
		"never expires":                   ec(kid("ec"), map[string]any{"exp": nil}),
		"expires at some text":            ec(kid("ec"), map[string]any{"exp": "tomorrow"}),
		"not yet":                         ec(kid("ec"), map[string]any{"nbf": time.Now().Add(40 * time.Second).Unix()}),
		"no user":                         ec(kid("ec"), map[string]any{"sub": nil}),
		"a list of users":                 ec(kid("ec"), map[string]any{"sub": []string{"alice"}}),
		"a user with a line's end":        ec(kid("ec"), map[string]any{"sub": "alice\r\nX-Admin: 1"}),
		"a user without end":              ec(kid("ec"), map[string]any{"sub": strings.Repeat("a", 257)}),
		"a list of tiers":                 ec(kid("ec"), map[string]any{"tier": []string{"gold"}}),
		"a very long token":               ec(kid("ec"), map[string]any{"pad": strings.Repeat("a", 16<<10)}),
		"two parts":                       part[0] + "." + part[1],
		"four parts":                      good + ".x",
		"padding":                         good + "=",
		"no token":                        "",
		"no JSON":                         "bm8.bm8.bm8",
	} {
		r := tokenReader(t, allKeys(t), identity.Config{}) // each with failures of its own
		if id, err := r.Identify(bearer(token), somewhere()); !errors.Is(err, identity.ErrWrongCredential) || id.User != "" {
			t.Errorf("%s: Identify = %+v, %v, want %v", name, id, err, identity.ErrWrongCredential)
		}
	}
}

func TestClaimsOfATokenAreText(t *testing.T) {
	r := tokenReader(t, allKeys(t), identity.Config{JWT: &identity.JWT{UserClaim: "uid", TierClaim: "https://example.com/plan"}})
	raw := sign(t, jwt.SigningMethodEdDSA, nil, jwt.MapClaims{
		"uid": 1234567890123456789, "https://example.com/plan": "free", "exp": 9999999999, "org": "o", "beta": true, "share": 0.5,
		"roles": []string{"a"}, "address": map[string]any{"city": "Rome"}, "nothing": nil,
	}, issuerKeys()["ed"])
	id, err := r.Identify(bearer(raw), somewhere())
	want := policy.Identity{
		User: "1234567890123456789", Tier: "free", IP: somewhere().Addr, Network: somewhere().Network, Claims: map[string]string{
			"uid": "1234567890123456789", "https://example.com/plan": "free", "exp": "9999999999", "org": "o", "beta": "true", "share": "0.5",
		},
	}
	if err != nil || !reflect.DeepEqual(id, want) {
		t.Errorf("Identify = %+v, %v, want %+v", id, err, want)
	}
}

// A request with both credentials is the one user's whose they both are.
func TestKeyAndTokenMustBothBeRight(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	if err := os.WriteFile(keys, []byte("- {sha256: "+identity.Hash("a")+", user: alice, tier: free, claims: {org: key, plan: p}}\n"+
		"- {sha256: "+identity.Hash("b")+", user: bob}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := tokenReader(t, allKeys(t), identity.Config{APIKeys: identity.APIKeys{File: keys}})
	token := func(change map[string]any) string {
		return sign(t, jwt.SigningMethodEdDSA, nil, claims(change), issuerKeys()["ed"])
	}
	both := func(key, token string) *http.Request {
		r := bearer(token)
		r.Header.Set("X-API-Key", key)
		return r
	}
	id, err := r.Identify(both("a", token(map[string]any{"org": "token", "tier": nil})), somewhere())
	if err != nil || id.User != "alice" || id.APIKey != identity.Hash("a") || id.Tier != "free" || id.Claims["org"] != "token" || id.Claims["plan"] != "p" {
		t.Errorf("Identify = %+v, %v", id, err)
	}
	if id, err = r.Identify(both("a", token(nil)), somewhere()); err != nil || id.Tier != "gold" {
		t.Errorf("Identify = %+v, %v, want the token's tier", id, err)
	}
	basic := bearer(token(nil))
	basic.Header.Add("Authorization", "Basic eDp5")
	upstreams := request("a")
	upstreams.Header.Set("Authorization", "Basic eDp5")
	for name, wrong := range map[string]*http.Request{
		"another user's key": both("b", token(nil)), "a wrong key": both("c", token(nil)), "a wrong token": both("a", token(nil)+"x"),
		"an empty key": both("", token(nil)), "an empty token": both("a", ""), "two kinds of authorization": basic,
	} {
		if _, err := r.Identify(wrong, somewhere()); !errors.Is(err, identity.ErrWrongCredential) {
			t.Errorf("%s: %v, want %v", name, err, identity.ErrWrongCredential)
		}
	}
	if id, err = r.Identify(upstreams, somewhere()); err != nil || id.User != "alice" {
		t.Errorf("Authorization of another scheme is the upstream's business: %+v, %v", id, err)
	}
	if id, err = r.Identify(bearer(token(nil)), somewhere()); err != nil || id.APIKey != "" {
		t.Errorf("a token alone: %+v, %v", id, err)
	}
}

// A key set that says something else than keys, or none that can be used, is refused as a whole, without what stands in it.
func TestKeySetsThatAreRefused(t *testing.T) {
	for name, source := range map[string]string{
		"empty": "", "no JSON": "hunter2", "a list": "[]", "no keys": `{"keys": []}`, "something else": `{"issuer": "x"}`,
		"no usable key": `{"keys": [{"kty": "oct", "k": "aHVudGVyMg"}, {"kty": "RSA", "n": "hunter2", "e": "AQAB"}]}`,
		"too many keys": `{"keys": [` + strings.Repeat(`{},`, 100) + `{}]}`,
	} {
		path := filepath.Join(t.TempDir(), "jwks.json")
		if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := identity.NewReader(identity.Config{JWT: &identity.JWT{JWKS: path}}, nil, slog.New(slog.DiscardHandler))
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: NewReader = %v, want what is wrong with %s", name, err, path)
		}
	}
}

// Nobody without a key makes a token, and none makes the gateway panic.
func FuzzToken(f *testing.F) {
	r := tokenReader(f, allKeys(f), identity.Config{})
	good := strings.Split(sign(f, jwt.SigningMethodEdDSA, kid("ed"), claims(nil), issuerKeys()["ed"]), ".")
	header := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	asked := 0
	f.Add(good[0], good[1], "")
	f.Add(header(`{"alg":"none"}`), good[1], "")
	f.Add(header(`{"alg":"HS256","kid":"hmac"}`), good[1], good[2])
	f.Add(header(`{"alg":"ES256","kid":null}`), header(`{"exp":1e400}`), good[2])
	f.Add(header(`null`), header(`[]`), "-")
	f.Fuzz(func(t *testing.T, first, second, third string) {
		if first == good[0] && second == good[1] && third == good[2] {
			return
		}
		req := bearer(first + "." + second + "." + third)
		asked++ // from an address of its own, so that it is looked at
		if _, err := r.Identify(req, numbered(asked)); !errors.Is(err, identity.ErrWrongCredential) {
			t.Errorf("Identify(%s) = %v, want %v", req.Header, err, identity.ErrWrongCredential)
		}
	})
}
