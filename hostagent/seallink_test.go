package hostagent

import (
	"slices"
	"testing"
	"time"
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
