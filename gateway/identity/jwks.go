package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"
)

const (
	// maxKeys bounds a key set: issuers have two or three.
	maxKeys = 100
	// maxTried is how many keys are tried for a token that names none.
	maxTried = 4

	minSecretBytes = 32 // RFC 7518, 3.2: as long as the hash
	minRSABits     = 2048
)

// algorithms are those that are accepted, each for one type of key.
func algorithms() []string {
	return []string{
		jwt.SigningMethodHS256.Alg(), jwt.SigningMethodRS256.Alg(), jwt.SigningMethodES256.Alg(), jwt.SigningMethodEdDSA.Alg(),
	}
}

// keySet is a JSON Web Key Set as far as it is used. Nobody writes it.
type keySet struct{ keys []signer }

// signer is one key with the one algorithm that it is for.
type signer struct {
	kid, algorithm string
	key            jwt.VerificationKey
}

// find returns the keys that may have signed a token. One that names no key may be of any, of which few are tried.
func (s *keySet) find(kid, algorithm string) []jwt.VerificationKey {
	var found []jwt.VerificationKey
	for _, k := range s.keys {
		if k.algorithm == algorithm && (kid == "" || k.kid == kid) && len(found) < maxTried {
			found = append(found, k.key)
		}
	}
	return found
}

// parseKeySet reads a JSON Web Key Set. Keys that are for something else are left out, with the reason. Secrets are taken only
// from a file: one that can be fetched is none.
func parseKeySet(source []byte, secrets bool) (set *keySet, skipped []error, err error) {
	var document struct {
		Keys []json.RawMessage `json:"keys"`
	}
	switch err := json.Unmarshal(source, &document); {
	case err != nil:
		return nil, nil, errors.New("it is not a JSON Web Key Set, {\"keys\": [...]}") // what it is instead may be secret
	case len(document.Keys) > maxKeys:
		return nil, nil, fmt.Errorf("it has %d keys; at most %d are read", len(document.Keys), maxKeys)
	}
	set = &keySet{}
	for i, raw := range document.Keys {
		k, err := parseKey(raw, secrets)
		if err != nil {
			skipped = append(skipped, fmt.Errorf("key %d: %w", i, err))
			continue
		}
		set.keys = append(set.keys, k)
	}
	if len(set.keys) == 0 {
		return nil, nil, errors.Join(append([]error{errors.New("it has no key to verify a token with")}, skipped...)...)
	}
	return set, skipped, nil
}

func parseKey(raw json.RawMessage, secrets bool) (signer, error) {
	var m jwkset.JWKMarshal
	if err := json.Unmarshal(raw, &m); err != nil {
		return signer{}, errors.New("it is not a JSON Web Key")
	}
	switch {
	case m.USE != "" && m.USE != jwkset.UseSig:
		return signer{}, fmt.Errorf("its use is %q, not sig", m.USE)
	case m.KTY == jwkset.KtyOct && !secrets:
		return signer{}, errors.New("it is a secret, which anybody can fetch; put it into a file")
	}
	// Certificates say nothing that the key does not, and following a URL of theirs is nothing to be asked for.
	m.X5C, m.X5T, m.X5TS256, m.X5U = nil, "", "", ""
	parsed, err := jwkset.NewJWKFromMarshal(m, jwkset.JWKMarshalOptions{Private: m.KTY == jwkset.KtyOct},
		jwkset.JWKValidateOptions{SkipMetadata: true, SkipKeyOps: true, SkipUse: true})
	if err != nil {
		return signer{}, errors.New("its numbers do not make a key") // they may be secret
	}
	k := signer{kid: m.KID, key: parsed.Key()}
	if k.algorithm, err = algorithmOf(k.key); err != nil {
		return signer{}, err
	}
	if m.ALG != "" && m.ALG.String() != k.algorithm {
		return signer{}, fmt.Errorf("it is for %s; of its type only %s is accepted", m.ALG, k.algorithm)
	}
	return k, nil
}

// algorithmOf returns the one algorithm that a key is for.
func algorithmOf(key any) (string, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSABits {
			return "", fmt.Errorf("it has %d bits; an RSA key has at least %d", k.N.BitLen(), minRSABits)
		}
		return jwt.SigningMethodRS256.Alg(), nil
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return "", errors.New("its curve is not P-256")
		}
		return jwt.SigningMethodES256.Alg(), nil
	case ed25519.PublicKey:
		return jwt.SigningMethodEdDSA.Alg(), nil
	case []byte:
		if len(k) < minSecretBytes {
			return "", fmt.Errorf("it has %d bytes; a secret for HS256 has at least %d", len(k), minSecretBytes)
		}
		return jwt.SigningMethodHS256.Alg(), nil
	default:
		return "", errors.New("its type is none that is accepted")
	}
}
