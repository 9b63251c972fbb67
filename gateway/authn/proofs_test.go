package authn

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ahprelay/auth"
)

// TestManyProofs has one key take no room from others, and what is over make room.
func TestManyProofs(t *testing.T) {
	p, now := newProofs(), time.Now()
	show := func(key string, i int, want error) {
		t.Helper()
		if err := p.First(auth.Proof{Thumbprint: key, ID: fmt.Sprint(key, " ", i)}, now); !errors.Is(err, want) {
			t.Fatalf("%s's proof %d: %v; want %v", key, i, err, want)
		}
	}
	for i := range maxProofsOfKey {
		show("mallory", i, nil)
	}
	show("mallory", maxProofsOfKey, errProofsFull)
	show("mallory", 0, ErrProofAgain)
	show("ada", 0, nil)
	now = now.Add(auth.ChallengeTTL + auth.Leeway + time.Second)
	for key := range maxProofs / maxProofsOfKey {
		for i := range maxProofsOfKey {
			show(fmt.Sprint("key", key), i, nil)
		}
	}
	show("ada", 1, errProofsFull)
	now = now.Add(auth.ChallengeTTL + auth.Leeway + time.Second)
	show("ada", 1, nil)
	if len(p.shown) != 1 || len(p.queue) != 1 || len(p.ofKey) != 1 {
		t.Errorf("%d proofs of %d keys are remembered, %d in the queue; want 1", len(p.shown), len(p.ofKey), len(p.queue))
	}
}
