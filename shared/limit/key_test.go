package limit

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func secret(t testing.TB, raw string) *Secret {
	t.Helper()
	s, err := NewSecret([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const rawSecret = "a secret of more than 16 bytes"

// TestKey_Golden: keys are in every store and every journal, so one never changes.
func TestKey_Golden(t *testing.T) {
	s := secret(t, rawSecret)
	for want, fields := range map[string][]string{
		"f2d087556b69818c4c19283f021de477": {"api-per-user", "token_bucket", "user", "acme"},
		"2d9f0f91de98d6493d8abbc7102b5611": {},
	} {
		if got := s.Key(fields...).String(); got != want {
			t.Errorf("Key(%q) = %s, want %s", fields, got, want)
		}
	}
	if got, want := s.Fingerprint(), "79e4df32969a80ba"; got != want {
		t.Errorf("Fingerprint() = %s, want %s", got, want)
	}
}

// TestKey_IsInjective: no two lists of fields share a bucket, wherever a boundary lies.
func TestKey_IsInjective(t *testing.T) {
	s := secret(t, rawSecret)
	seen := map[Key]string{}
	for _, fields := range [][]string{
		{}, {""}, {"", ""}, {"a"}, {"a", ""}, {"", "a"}, {"a", "b"}, {"ab"}, {"ab", ""}, {"a", "b", ""}, {"\x01a"}, {"{a}:b"}, {"{a}", "b"},
		{strings.Repeat("x", 127)}, {strings.Repeat("x", 128)}, {strings.Repeat("x", 127), "x"},
	} {
		name := strings.Join(fields, "|")
		if other, taken := seen[s.Key(fields...)]; taken {
			t.Errorf("%q and %q have the same key", name, other)
		}
		seen[s.Key(fields...)] = name
	}
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SliceOfN(rapid.StringN(0, 6, 12), 0, 4)
		a, b := some.Draw(t, "a"), some.Draw(t, "b")
		if encoded := bytes.Equal(appendFields(nil, a), appendFields(nil, b)); encoded != equal(a, b) {
			t.Fatalf("%q and %q encode alike: %v", a, b, encoded)
		}
	})
}

func equal(a, b []string) bool {
	return len(a) == len(b) && strings.Join(a, "\x00\x00|") == strings.Join(b, "\x00\x00|")
}

// TestKey_NeedsTheSecret: another secret gives other keys and another fingerprint, and neither shows the identity.
func TestKey_NeedsTheSecret(t *testing.T) {
	a, b := secret(t, rawSecret), secret(t, rawSecret+".")
	if a.Key("acme") == b.Key("acme") || a.Fingerprint() == b.Fingerprint() {
		t.Error("two secrets agree")
	}
	if strings.Contains(a.Key("acme").String()+a.Fingerprint(), "acme") || bytes.Contains(a.Seal("acme"), []byte("acme")) {
		t.Error("the identity shows")
	}
}

func TestParseKey(t *testing.T) {
	k := secret(t, rawSecret).Key("acme")
	if got, err := ParseKey(k.String()); err != nil || got != k {
		t.Errorf("ParseKey(%s) = %s, %v", k, got, err)
	}
	for _, text := range []string{"", "zz", k.String()[:31], k.String() + "0", k.String() + "00", strings.Repeat("g", 32)} {
		if _, err := ParseKey(text); err == nil {
			t.Errorf("ParseKey(%q) accepts it", text)
		}
	}
}

// TestKey_Shard: a shard is the first 8 bytes mod shards, and every shard gets its part.
func TestKey_Shard(t *testing.T) {
	if got := (Key{7: 65, 15: 1}).Shard(32); got != 1 {
		t.Errorf("Shard = %d, want 65 mod 32", got)
	}
	s, counts := secret(t, rawSecret), make([]int, 32)
	for i := range 3200 {
		counts[s.Key("user", strings.Repeat("x", i)).Shard(32)]++
	}
	for shard, n := range counts {
		if n < 50 || n > 150 {
			t.Errorf("shard %d has %d of 3200 keys", shard, n)
		}
	}
}

func TestNewSecret_RefusesShortOnes(t *testing.T) {
	if _, err := NewSecret(make([]byte, MinSecret-1)); err == nil {
		t.Error("a short secret was accepted")
	}
}

// TestSeal: the holder of the secret reads it again, equal ones seal alike, and nothing else opens.
func TestSeal(t *testing.T) {
	s := secret(t, rawSecret)
	rapid.Check(t, func(t *rapid.T) {
		identity := rapid.String().Draw(t, "identity")
		sealed := s.Seal(identity)
		if got, err := s.Open(sealed); err != nil || got != identity {
			t.Fatalf("Open(Seal(%q)) = %q, %v", identity, got, err)
		}
		if !bytes.Equal(sealed, s.Seal(identity)) {
			t.Fatalf("%q seals in two ways", identity)
		}
		sealed[rapid.IntRange(0, len(sealed)-1).Draw(t, "byte")] ^= 1
		if _, err := s.Open(sealed); !errors.Is(err, ErrSealed) {
			t.Fatalf("altered bytes open: %v", err)
		}
	})
	if _, err := secret(t, rawSecret+".").Open(s.Seal("acme")); !errors.Is(err, ErrSealed) {
		t.Errorf("another secret opens it: %v", err)
	}
	if _, err := s.Open([]byte("short")); !errors.Is(err, ErrSealed) {
		t.Errorf("too few bytes open: %v", err)
	}
}

// FuzzOpen: whatever bytes come, nothing but what was sealed opens.
func FuzzOpen(f *testing.F) {
	s := secret(f, rawSecret)
	f.Add(s.Seal("user=acme"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, sealed []byte) {
		if identity, err := s.Open(sealed); err == nil && !bytes.Equal(s.Seal(identity), sealed) {
			t.Fatalf("%x opens as %q", sealed, identity)
		}
	})
}
