package oidc

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"ahprelay/auth"
)

// Lifetimes and intervals of keys.
const (
	refreshAge = 15 * time.Minute // older keys are fetched again in the background
	keepAge    = 24 * time.Hour   // older keys are not used
	askAgain   = 10 * time.Second // shortest interval between fetches
)

// maxKeys is the largest number of keys from a provider.
const maxKeys = 64

// Accepted lengths of RSA keys in bits: shorter keys can be broken, and longer keys are
// slow.
const (
	minRSA = 2048
	maxRSA = 8192
)

type key struct {
	id     string
	alg    string // "": any algorithm for the key's type
	public crypto.PublicKey
}

// A keySet caches a provider's keys.
type keySet struct {
	fetcher fetcher
	now     func() time.Time
	log     *slog.Logger

	life    context.Context // canceled by close
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	closed  bool
	keys    []key
	fetched time.Time     // when the keys were fetched; zero: never
	asked   time.Time     // when the last fetch began; zero: never
	pending chan struct{} // closed when the running fetch ends; nil: none runs
	failure error         // of the last fetch
}

func newKeySet(issuer string, o Options) *keySet {
	s := &keySet{fetcher: newFetcher(issuer, o.HTTP), now: o.Now, log: o.Log.With("issuer", issuer)}
	s.life, s.cancel = context.WithCancel(context.Background())
	return s
}

func (s *keySet) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.running.Wait()
	s.fetcher.close()
}

// find returns the key for a token's header. If the key is unknown and a fetch is
// permitted, find waits for the fetch.
func (s *keySet) find(ctx context.Context, id, alg string) (crypto.PublicKey, error) {
	found, pending := s.known(id, alg)
	if found != nil || pending == nil {
		return s.result(found)
	}
	select {
	case <-pending:
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", auth.ErrIssuerAway, ctx.Err())
	}
	found, _ = s.known(id, alg)
	return s.result(found)
}

// known returns the key if it is cached and younger than keepAge. It starts a fetch if the
// key is missing or older than refreshAge, unless the last fetch began less than askAgain
// ago. pending is the channel of the running fetch, or nil.
func (s *keySet) known(id, alg string) (found crypto.PublicKey, pending chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	age := s.now().Sub(s.fetched)
	if !s.fetched.IsZero() && age < keepAge {
		for _, k := range s.keys {
			if k.id == id && k.fits(alg) {
				found = k.public
			}
		}
	}
	if (found == nil || age >= refreshAge) && s.pending == nil && !s.closed && s.now().Sub(s.asked) >= askAgain {
		s.fetchLocked()
	}
	return found, s.pending
}

// result returns the key, or an error with the reason why there is none.
func (s *keySet) result(found crypto.PublicKey) (crypto.PublicKey, error) {
	if found != nil {
		return found, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil {
		return nil, fmt.Errorf("%w: %w", auth.ErrIssuerAway, s.failure)
	}
	return nil, errors.New("the issuer has no key with that ID and algorithm")
}

func (s *keySet) fetchLocked() {
	s.asked = s.now()
	done := make(chan struct{})
	s.pending = done
	s.running.Go(func() {
		keys, err := s.fetcher.keys(s.life)
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case err == nil:
			if s.failure != nil {
				s.log.Info("issuer keys available again")
			}
			s.keys, s.fetched = keys, s.now()
		case s.failure == nil && s.life.Err() == nil:
			s.log.Warn("issuer keys unavailable", "error", err)
		}
		s.failure = err
		s.pending = nil
		close(done)
	})
}

func usable(set []json.RawMessage) (keys []key, err error) {
	if len(set) > maxKeys {
		return nil, fmt.Errorf("%d keys; want at most %d", len(set), maxKeys)
	}
	for _, raw := range set {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(raw) != nil || k.KeyID == "" || k.Use != "" && k.Use != "sig" || !k.IsPublic() || !k.Valid() {
			continue
		}
		if rsa, ok := k.Key.(*rsa.PublicKey); ok && (rsa.N.BitLen() < minRSA || rsa.N.BitLen() > maxRSA) {
			continue
		}
		keys = append(keys, key{id: k.KeyID, alg: k.Algorithm, public: k.Key})
	}
	if len(keys) == 0 {
		return nil, errors.New("no key for signing tokens")
	}
	return keys, nil
}

// fits reports whether a key is usable with an algorithm.
func (k *key) fits(alg string) bool {
	if k.alg != "" && k.alg != alg {
		return false
	}
	switch public := k.public.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(alg, "RS") || strings.HasPrefix(alg, "PS")
	case *ecdsa.PublicKey:
		return alg == map[int]string{256: "ES256", 384: "ES384", 521: "ES512"}[public.Curve.Params().BitSize]
	case ed25519.PublicKey:
		return alg == "EdDSA"
	}
	return false
}
