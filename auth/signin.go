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

// SignInTTL is how long somebody may take to sign in at an identity provider.
const SignInTTL = 15 * time.Minute

// A SignIn is what a relay wants to know of somebody who comes back from an identity
// provider. Any relay with the same keys can tell it from State alone, so none keeps it.
type SignIn struct {
	State    string // goes with the browser, there and back; no secret
	Nonce    string // is to be in the ID token
	Verifier string // of PKCE (RFC 7636): nobody but relays knows it
}

// Parts of a state, in bytes.
const (
	signInVersion = 1
	signInBody    = 1 + 8 + 16 + 2*sha256.Size // version, milliseconds since 1970, random, hashes of provider and key
)

// ErrSignInOver reports a state that is not good: of other keys, another device or provider, or
// of long ago.
var ErrSignInOver = errors.New("this sign-in was not begun here, or its time is over; begin it anew in this browser")

// NewSignIn begins to sign a device in, which proves the key of that thumbprint.
func (k *Keys) NewSignIn(provider, thumbprint string) SignIn {
	b := make([]byte, 25, signInBody)
	b[0] = signInVersion
	binary.BigEndian.PutUint64(b[1:], uint64(k.now().UnixMilli()))
	rand.Read(b[9:]) // never fails
	b = append(b, signInHashes(provider, thumbprint)...)
	return k.signing().signIn(b)
}

// CheckSignIn returns what NewSignIn has, for the same provider and key. The error is
// ErrSignInOver.
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

// signIn derives from the body of a state all that belongs to it.
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
