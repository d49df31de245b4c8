package limit

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// KeySize is the length of a [Key] in bytes.
const KeySize = 16

// Key names one bucket: a keyed hash of (policy, algorithm, key parts and their values). It reveals none of them.
type Key [KeySize]byte

// String returns k in hexadecimal, the form in Redis keys and in the admin API's key_id.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads what String wrote.
func ParseKey(text string) (Key, error) {
	var k Key
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != KeySize {
		return k, fmt.Errorf("key id %q: want %d hexadecimal digits", text, 2*KeySize)
	}
	copy(k[:], raw)
	return k, nil
}

// Shard returns the slice of the key space that k belongs to, of shards in all: its first 8 bytes mod shards.
func (k Key) Shard(shards int) int {
	return int(binary.BigEndian.Uint64(k[:8]) % uint64(shards))
}

// MinSecret is the shortest secret accepted, in bytes.
const MinSecret = 16

// Secret hashes and seals identities. Gateways and the allocator of one deployment share it; two secrets would double every
// limit, which is why its fingerprint travels with every envelope.
type Secret struct {
	hash, nonce []byte
	seal        cipher.AEAD
	fingerprint string
}

// NewSecret derives a Secret from raw, at least [MinSecret] bytes.
func NewSecret(raw []byte) (*Secret, error) {
	if len(raw) < MinSecret {
		return nil, fmt.Errorf("hash secret has %d bytes; give it at least %d random ones", len(raw), MinSecret)
	}
	block, err := aes.NewCipher(derive(raw, "seal"))
	if err != nil {
		return nil, fmt.Errorf("hash secret: %w", err)
	}
	seal, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("hash secret: %w", err)
	}
	return &Secret{
		hash:        derive(raw, "hash"),
		nonce:       derive(raw, "nonce"),
		seal:        seal,
		fingerprint: hex.EncodeToString(derive(raw, "fingerprint")[:8]),
	}, nil
}

// Fingerprint tells two secrets apart without revealing either.
func (s *Secret) Fingerprint() string { return s.fingerprint }

// Key hashes fields, in order, to a bucket's key. The encoding is injective: each field is preceded by its length, so no two
// different lists of fields hash alike.
func (s *Secret) Key(fields ...string) Key {
	var k Key
	copy(k[:], sum(s.hash, appendFields(nil, fields)))
	return k
}

// Seal encrypts identity so that only a holder of the secret can read it. Equal identities seal alike: the nonce is derived
// from the text (as in SIV modes), so sealing needs no randomness and a repeated nonce means a repeated text.
func (s *Secret) Seal(identity string) []byte {
	nonce := sum(s.nonce, []byte(identity))[:s.seal.NonceSize()]
	return s.seal.Seal(nonce, nonce, []byte(identity), nil)
}

// ErrSealed is returned by Open for bytes that this secret did not seal.
var ErrSealed = errors.New("sealed identity does not open with this secret; check that every role has the same hash_secret_file")

// Open decrypts what Seal made.
func (s *Secret) Open(sealed []byte) (string, error) {
	size := s.seal.NonceSize()
	if len(sealed) < size {
		return "", ErrSealed
	}
	plain, err := s.seal.Open(nil, sealed[:size], sealed[size:], nil)
	if err != nil {
		return "", ErrSealed
	}
	return string(plain), nil
}

func appendFields(b []byte, fields []string) []byte {
	for _, field := range fields {
		b = binary.AppendUvarint(b, uint64(len(field)))
		b = append(b, field...)
	}
	return b
}

func derive(raw []byte, purpose string) []byte { return sum(raw, []byte("annona:1:"+purpose)) }

func sum(key, text []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(text)
	return mac.Sum(nil)
}
