package hostagent

import (
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/routing"
)

// TestExpiredLinksLeaveRoom makes as many links as a host may have. A further link must be refused,
// and accepted after the others have expired.
func TestExpiredLinksLeaveRoom(t *testing.T) {
	v, err := openVault(t.TempDir(), "acme", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	keep := func(at time.Time) error {
		device := newDevice(t)
		is := device.Identity()
		return v.keepLink(vaultDevice{Key: is.Key[:], Verifier: is.Verifier[:], People: 1, End: at.Add(time.Hour)}, at)
	}
	if err := keep(now); err != nil {
		t.Fatal(err)
	}
	v.state.Devices = slices.Repeat(v.state.Devices, maxLinks-1) // each keep writes all of them to the disk
	if err := keep(now); err != nil {
		t.Error("the last link within the bound must be kept: ", err)
	}
	if err := keep(now); err == nil {
		t.Error("a host has more links than its bound; want an error")
	}
	if err := keep(now.Add(2 * time.Hour)); err != nil {
		t.Error("a new link after all links expired must be kept: ", err)
	}
}

// TestLinkIDsAreNoFlags makes 300 keys for links. No ID may begin with a hyphen, as 1 of 64
// fingerprints does.
func TestLinkIDsAreNoFlags(t *testing.T) {
	t.Parallel()
	for range 300 {
		d, err := newLinkDevice()
		if err != nil {
			t.Fatal(err)
		}
		if id := d.Identity().Fingerprint().String(); id[0] == '-' {
			t.Fatalf("the link's ID is %s; want one without a hyphen at its start", id)
		}
	}
}

// TestNoSealedLinkToAPrivateSession makes a link to a private session of a sealed host. It must be refused with
// the reason, because the link admits no visitor.
func TestNoSealedLinkToAPrivateSession(t *testing.T) {
	inWorldOf(t, routing.AgentEndConfig{Sealed: true}, func(w *world) {
		w.seal()
		if _, err := w.agent.private.set("ada-the-owner", "s:/1", true, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := w.agent.seals.makeLink(t.Context(), DeviceOrder{Session: "s:/1"}); err == nil || !strings.Contains(err.Error(), privateReason) {
			t.Errorf("makeLink for the private session = %v; want an error with %q", err, privateReason)
		}
	})
}
