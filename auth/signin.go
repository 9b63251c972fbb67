package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"time"
)

// SignInTTL is the time limit for a sign-in at an identity provider.
const SignInTTL = 15 * time.Minute

// A SignIn connects the response from an identity provider with the request that began
// the sign-in. Relays with the same keys derive it from State, so they store nothing.
type SignIn struct {
	State    string // the browser carries it to the provider and back; not secret
	Nonce    string // expected in the ID token
	Verifier string // for PKCE (RFC 7636); only relays know it
}

// The first byte of a state, and the length of its body in bytes.
const (
	signInVersion = 1
	signInBody    = 1 + 8 + 16 + 2*sha256.Size // version, milliseconds since 1970, random, hashes of provider and key
)

// ErrSignInOver reports an invalid state: it has expired, or was made with other keys, or
// for another device or provider.
var ErrSignInOver = errors.New("this sign-in has expired or did not begin in this browser; sign in again")

// NewSignIn begins a sign-in for a device that has proved its key.
func (k *Keys) NewSignIn(provider, thumbprint string) SignIn {
	b := make([]byte, 25, signInBody)
	b[0] = signInVersion
	binary.BigEndian.PutUint64(b[1:], uint64(k.now().UnixMilli()))
	rand.Read(b[9:]) // never fails
	b = append(b, signInHashes(provider, thumbprint)...)
	return k.signing().signIn(b)
}

// CheckSignIn returns the SignIn for a state from NewSignIn, if the provider and key are
// the same and SignInTTL has not passed. Otherwise it returns ErrSignInOver.
func (k *Keys) CheckSignIn(state, provider, thumbprint string) (SignIn, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(state)
	if err != nil || len(b) != signInBody+sha256.Size || b[0] != signInVersion {
		return SignIn{}, ErrSignInOver
	}
	b = b[:signInBody]
	sets := k.sets.Load().all
	i := slices.IndexFunc(sets, func(s *keySet) bool { return hmac.Equal([]byte(s.signIn(b).State), []byte(state)) })
	if i < 0 || !hmac.Equal(b[25:], signInHashes(provider, thumbprint)) {
		return SignIn{}, ErrSignInOver
	}
	made := time.UnixMilli(int64(binary.BigEndian.Uint64(b[1:])))
	if age := k.now().Sub(made); age > SignInTTL || age < -Leeway {
		return SignIn{}, ErrSignInOver
	}
	return sets[i].signIn(b), nil
}

func signInHashes(provider, thumbprint string) []byte {
	p, key := sha256.Sum256([]byte(provider)), sha256.Sum256([]byte(thumbprint))
	return append(p[:], key[:]...)
}

// signIn derives a SignIn from the body of its state.
func (s *keySet) signIn(body []byte) SignIn {
	derive := func(what string) []byte {
		mac := hmac.New(sha256.New, s.signIns)
		mac.Write([]byte(what))
		mac.Write(body)
		return mac.Sum(nil)
	}
	text := base64.RawURLEncoding.EncodeToString
	return SignIn{State: text(append(append([]byte{}, body...), derive("state")...)), Nonce: text(derive("nonce")), Verifier: text(derive("verifier"))}
}
