package authn

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"ahprelay/auth"
)

// A proofBook is a Proofs with a clock set by the test.
type proofBook struct {
	*testing.T
	*Proofs
	now time.Time
}

func (b *proofBook) use(person, key string, i int, want error) {
	b.Helper()
	proof := auth.Proof{Thumbprint: key, ID: fmt.Sprint(key, " ", i), Made: b.now, Own: true}
	if err := b.Use(UsedProof{proof, person}, b.now); !errors.Is(err, want) {
		b.Fatalf("proof %d of key %s, person %q: %v; want %v", i, key, person, err, want)
	}
}

// wait advances the clock until all proofs' nonces have expired.
func (b *proofBook) wait() { b.now = b.now.Add(auth.ChallengeTTL + auth.Leeway + time.Second) }

// TestUnauthenticatedTakeNoRoomFromDevices fills the room for pairings, for a device,
// for a person and for a tenant in turn. A full room refuses only its own proofs,
// and has room again when the nonces have expired.
func TestUnauthenticatedTakeNoRoomFromDevices(t *testing.T) {
	b := &proofBook{t, newProofs(), time.Now()}
	for key := range maxOfPairings / maxOfPairing {
		for i := range maxOfPairing {
			b.use("", fmt.Sprint("pairing", key), i, nil)
		}
	}
	b.use("", "pairing", 0, ErrProofsFull)
	for i := range maxOfDevice {
		b.use("t mallory", "m0", i, nil)
	}
	b.use("t mallory", "m0", maxOfDevice, ErrProofsFull)
	b.use("t mallory", "m0", 0, ErrProofAgain)
	for key := range maxOfPerson/maxOfDevice - 1 {
		for i := range maxOfDevice {
			b.use("t mallory", fmt.Sprint("m", key+1), i, nil)
		}
	}
	b.use("t mallory", "another", 0, ErrProofsFull)
	b.use("t ada", "ada", 0, nil)
	b.wait()
	for person := range maxOfDevices / 2 / maxOfPerson {
		for i := range maxOfPerson {
			b.use(fmt.Sprint("t p", person), fmt.Sprint("p", person, " ", i/maxOfDevice), i, nil)
		}
	}
	b.use("t ada", "ada", 1, ErrProofsFull)
	b.use("another ada", "ada", 2, nil)
	b.use("", "pairing", 1, nil)
	b.wait()
	b.use("t ada", "ada", 1, nil)
	if len(b.used) != 1 || len(b.queue) != 1 || len(b.count) != 4 {
		t.Errorf("after the old proofs' end, %d proofs are remembered, %d are in the queue, and %d groups are counted; want 1, 1 and 4", len(b.used), len(b.queue), len(b.count))
	}
}

// TestProofUsedElsewhereIsKnownWithoutRoom: a different relay accepts a device's proof while this
// relay has no room for the device's proofs. When there is room again, this relay must refuse
// that proof.
func TestProofUsedElsewhereIsKnownWithoutRoom(t *testing.T) {
	b := &proofBook{t, newProofs(), time.Now()}
	for i := range maxOfDevice {
		b.use("t ada", "phone", i, nil)
	}
	b.now = b.now.Add(auth.ChallengeTTL / 2)
	elsewhere := UsedProof{auth.Proof{Thumbprint: "phone", ID: "phone x", Made: b.now, Own: true}, "t ada"}
	b.Note(elsewhere, b.now)
	b.now = b.now.Add(auth.ChallengeTTL/2 + auth.Leeway + time.Second)
	b.use("t ada", "phone", maxOfDevice, nil) // there is room
	if err := b.Use(elsewhere, b.now); !errors.Is(err, ErrProofAgain) {
		t.Errorf("the proof that was used at the other relay: %v; want %v", err, ErrProofAgain)
	}
}

// TestProofFromBeforeTheStartIsStale: a relay does not know which proofs were used
// before it began to receive reports of them. It therefore refuses proofs with older
// nonces.
func TestProofFromBeforeTheStartIsStale(t *testing.T) {
	p, start := newProofs(), time.Now().Truncate(time.Millisecond)
	p.HearsSince(start.Add(999 * time.Microsecond))
	for name, test := range map[string]struct {
		proof auth.Proof
		want  error
	}{
		"own nonce":                      {auth.Proof{Made: start, Own: true}, nil},
		"own nonce before a silence":     {auth.Proof{Made: start.Add(-time.Millisecond), Own: true}, auth.ErrProofStale},
		"nonce from before":              {auth.Proof{Made: start.Add(-time.Second)}, auth.ErrProofStale},
		"nonce by a clock that is ahead": {auth.Proof{Made: start.Add(auth.Leeway - time.Millisecond)}, auth.ErrProofStale},
		"another relay's nonce, later":   {auth.Proof{Made: start.Add(auth.Leeway)}, nil},
	} {
		test.proof.ID = name
		if err := p.Use(UsedProof{test.proof, "t ada"}, start); !errors.Is(err, test.want) {
			t.Errorf("%s: %v; want %v", name, err, test.want)
		}
	}
}

// TestClockSetBackLocksNobodyOut sets the relay's clock back by an hour. Nonces from before the
// first request after the change must be stale, because they may have been used elsewhere. Later
// nonces must be accepted, although they are before the relay's start by the earlier clock.
func TestClockSetBackLocksNobodyOut(t *testing.T) {
	p, now := newProofs(), time.Now().Truncate(time.Millisecond)
	p.HearsSince(now.Add(time.Hour))
	for i, step := range []struct {
		proof auth.Proof
		want  error
	}{
		{auth.Proof{Made: now.Add(-time.Millisecond), Own: true}, auth.ErrProofStale},
		{auth.Proof{Made: now, Own: true}, nil},
		{auth.Proof{Made: now}, auth.ErrProofStale},
		{auth.Proof{Made: now.Add(auth.Leeway)}, nil},
	} {
		step.proof.ID = fmt.Sprint(i)
		if err := p.Use(UsedProof{step.proof, "t ada"}, now.Add(time.Duration(i)*time.Second)); !errors.Is(err, step.want) {
			t.Errorf("proof %d: %v; want %v", i, err, step.want)
		}
	}
}

// TestUnnamedProofTakesNoRoomFromDevices: an older relay reports a used proof without
// the person whose key signed it. Such a proof takes room from the pairings. A report
// by this relay names the person.
func TestUnnamedProofTakesNoRoomFromDevices(t *testing.T) {
	var used UsedProof
	if err := json.Unmarshal([]byte(`{"Thumbprint":"k","ID":"k 1"}`), &used); err != nil {
		t.Fatal(err)
	}
	p := newProofs()
	if p.Note(used, time.Now()); p.count["pairings"] != 1 {
		t.Errorf("the counts by group are %v; want 1 for pairings", p.count)
	}
	told, err := json.Marshal(UsedProof{auth.Proof{Thumbprint: "k", ID: "k 2", Made: time.Now(), Own: true}, "t ada"})
	if want := `{"Thumbprint":"k","ID":"k 2","Person":"t ada"}`; err != nil || string(told) != want {
		t.Errorf("a relay sends the used proof to other relays as %s, %v; want %s", told, err, want)
	}
}
