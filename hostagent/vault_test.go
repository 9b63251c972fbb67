package hostagent

import (
	"bytes"
	"context"
	"encoding/base64"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/remembering"
	waitbook "ahprelay/hostagent/waiting"
	"ahprelay/internal/sealed"
)

// newIdentity returns the public keys of a new device.
func newIdentity(t *testing.T) sealed.Identity {
	t.Helper()
	return newDevice(t).Identity()
}

// newDevice returns a device with new keys.
func newDevice(t *testing.T) *sealed.Device {
	t.Helper()
	d, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// pairDevice makes a code and pairs the device with it, as a handshake and the owner do.
func pairDevice(t *testing.T, v *vault, device sealed.Identity) error {
	t.Helper()
	if _, err := v.makeCode("ada", auth.AccessTalk, sealed.PairLink{Relay: "https://relay.example.com", Host: "laptop"}); err != nil {
		t.Fatal(err)
	}
	code, ok := v.validCode()
	if !ok || !v.try() {
		t.Fatal("the vault's new code is invalid, or no try is left; want a valid code")
	}
	w, err := v.proved(code, device, "phone")
	if err != nil {
		return err
	}
	return v.leave(w, device, true)
}

// openStates returns two host-agents of one sealed host with the same state directory, as when the second
// takes the host over from the first.
func openStates(t *testing.T) (former, next *Agent) {
	t.Helper()
	dir := t.TempDir()
	open := func(instance string) *Agent {
		a := &Agent{access: &access{tenant: "default", host: "laptop", instance: instance}, ledger: notice.NewLedger(instance)}
		a.cfg = Config{StateDir: dir, Sealed: &Sealing{}, Remember: remembering.Turns, Log: slog.New(slog.DiscardHandler)}
		if err := openState(a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	former = open("former")
	if err := reread(former); err != nil {
		t.Fatal(err)
	}
	return former, open("next")
}

// keyIDOf gives the keys for remembered sessions to a device, and returns the ID of the key.
func keyIDOf(t *testing.T, a *Agent, device string) string {
	t.Helper()
	keys, err := a.last.keeper.Keys(gate.NewPolicy(auth.AccessRead, nil, nil, false), remembering.Holder{Rests: []string{device}, End: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	return keys.KeyID
}

// renewKeys lets a host-agent check which devices may have the keys for remembered sessions.
func renewKeys(t *testing.T, a *Agent) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		a.last.keeper.Run(ctx, func(context.Context, []byte) ([]byte, error) { return []byte("{}"), nil })
	})
	a.last.keeper.Flush(ctx)
	cancel()
	running.Wait()
}

// TestSuccessorKnowsLateChanges opens the files of a running host-agent for its successor. Then the running one
// removes a device, changes the private sessions, renews the key of remembered sessions, learns
// of a device that leaves items, and delivers an item. The successor must know all of this when it gets the host.
func TestSuccessorKnowsLateChanges(t *testing.T) {
	former, next := openStates(t)
	for range 2 {
		if err := pairDevice(t, former.seals.vault, newIdentity(t)); err != nil {
			t.Fatal(err)
		}
	}
	if err := reread(next); err != nil {
		t.Fatal(err)
	}
	device, other := former.seals.devices()[0].Fingerprint, former.seals.devices()[1].Fingerprint
	lost := keyIDOf(t, former, device)
	if err := former.seals.remove(device, true); err != nil {
		t.Fatal(err)
	}
	renewKeys(t, former)
	for _, private := range []bool{true, false} {
		if _, err := former.private.set("ada", "s:/1", private, nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := former.private.set("ada", "s:/2", true, nil); err != nil {
		t.Fatal(err)
	}
	left := newIdentity(t)
	if _, err := former.waiting.book.Enter(waitbook.Device{Subject: "ada", ID: "phone", Keys: base64.RawURLEncoding.EncodeToString(left.Bytes()), Vouch: &waitbook.Vouch{Identity: left.Bytes()}}); err != nil {
		t.Fatal(err)
	}
	if err := former.waiting.book.Write("item", waitbook.Entry{Stage: waitbook.Sending}, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := reread(next); err != nil {
		t.Fatal(err)
	}
	if !next.seals.Removed(device) || len(next.seals.devices()) != 1 {
		t.Errorf("the successor has the devices %v; want that %s is removed", next.seals.devices(), device)
	}
	if got := next.private.owned("ada"); !slices.Equal(got, []string{"s:/2"}) {
		t.Errorf("the successor's private sessions are %q; want s:/2", got)
	}
	if _, _, ok := next.waiting.book.Vouched(left.Fingerprint().String()); !ok {
		t.Error("the successor does not know the device that leaves items")
	}
	if e, _ := next.waiting.book.Entry("item"); e.Stage != waitbook.Sending {
		t.Errorf("the successor's journal has %q for the item; want %q", e.Stage, waitbook.Sending)
	}
	if got, want := keyIDOf(t, next, other), keyIDOf(t, former, other); got == lost || got != want {
		t.Errorf("the successor's key for remembered sessions is %s; want %s, because the removed device has %s", got, want, lost)
	}
}

// TestPairingKeepsTheBoundOfDevices has links fill the vault between a device's code and its
// confirmation. The device must be refused. A device that cannot be stored must not be admitted.
func TestPairingKeepsTheBoundOfDevices(t *testing.T) {
	v, err := openVault(t.TempDir(), "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	device := newIdentity(t)
	if _, err := v.makeCode("ada", auth.AccessTalk, sealed.PairLink{Relay: "https://relay.example.com", Host: "laptop"}); err != nil {
		t.Fatal(err)
	}
	code, _ := v.validCode()
	w, err := v.proved(code, device, "phone")
	if err != nil {
		t.Fatal(err)
	}
	other := newIdentity(t)
	v.state.Devices = slices.Repeat([]vaultDevice{{Key: other.Key[:], Verifier: other.Verifier[:]}}, maxDevices)
	if err := v.leave(w, device, true); err == nil || len(v.state.Devices) != maxDevices {
		t.Errorf("pairing with a full vault: %v, and %d devices; want an error, and %d", err, len(v.state.Devices), maxDevices)
	}
	v.state.Devices = nil
	v.path = t.TempDir() // cannot be replaced by a file
	if err := v.leave(w, device, true); err == nil || len(v.state.Devices) != 0 {
		t.Errorf("pairing with a vault that cannot be written: %v, and %d devices; want an error, and no device", err, len(v.state.Devices))
	}
}

// TestPairingAgainWaitsForItsOwnDecision has a device prove a code, and then a second code, because its
// first connection was lost. The end of the first connection must not withdraw the second request: the
// person at the host must still be able to confirm it.
func TestPairingAgainWaitsForItsOwnDecision(t *testing.T) {
	v, err := openVault(t.TempDir(), "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	device := newIdentity(t)
	var waits [2]*waitingDevice
	for i := range waits {
		if _, err := v.makeCode("ada", auth.AccessTalk, sealed.PairLink{Relay: "https://relay.example.com", Host: "laptop"}); err != nil {
			t.Fatal(err)
		}
		code, _ := v.validCode()
		if waits[i], err = v.proved(code, device, "phone"); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.leave(waits[0], device, false); err != nil {
		t.Fatal(err)
	}
	if n := len(v.requests()); n != 1 {
		t.Errorf("after the end of the first connection, %d devices wait; want 1", n)
	}
	if err := v.decide(device.Fingerprint().String(), true); err != nil {
		t.Fatalf("confirming the second request: %v; want no error", err)
	}
	if yes := <-waits[1].decided; !yes {
		t.Error("the second request is refused; want it confirmed")
	}
}

// TestDeviceIsAdmittedWithoutADisk admits a paired device while the vault cannot be written. The
// device keeps the time that is on disk, and its visit is recorded by a later write.
func TestDeviceIsAdmittedWithoutADisk(t *testing.T) {
	v, err := openVault(t.TempDir(), "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	device := newIdentity(t)
	if err := pairDevice(t, v, device); err != nil {
		t.Fatal(err)
	}
	end, now, path := v.devices()[0].End, time.Now().Add(2*seenEvery), v.path
	v.path = t.TempDir() // cannot be replaced by a file
	for range 2 {
		a, err := v.admit(device, nil, now)
		if a == nil || err == nil || !a.End.Equal(end) {
			t.Fatalf("the device is admitted as %+v, %v; want authority until %v, and the reason", a, err, end)
		}
	}
	if got := v.devices()[0].End; !got.Equal(end) {
		t.Errorf("the device's authority ends at %v; want %v, as on disk", got, end)
	}
	v.path = path
	if a, err := v.admit(device, nil, now); err != nil || !a.End.After(end) || !v.devices()[0].End.After(end) {
		t.Errorf("with a disk, the device is admitted as %+v, %v; want a later end", a, err)
	}
}

// TestVaultKeepsRemovals removes a device. The vault must then refuse the device and a new pairing
// with its keys, also after the vault was opened again.
func TestVaultKeepsRemovals(t *testing.T) {
	dir := t.TempDir()
	v, err := openVault(dir, "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	device, now := newIdentity(t), time.Now()
	if err := pairDevice(t, v, device); err != nil {
		t.Fatal(err)
	}
	if a, err := v.admit(device, nil, now); err != nil || a.Subject != "ada" || a.Level != auth.AccessTalk {
		t.Fatalf("the device is admitted as %+v, %v; want ada with the level talk", a, err)
	}
	if _, err := v.admit(device, nil, now.Add(sealed.MaxLife+time.Hour)); err == nil {
		t.Error("a device is admitted after 30 days without a connection; want an error")
	}
	if err := v.remove(device.Fingerprint().String(), true); err != nil {
		t.Fatal(err)
	}
	again, err := openVault(dir, "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(again.secret.Private(), v.secret.Private()) {
		t.Error("the reopened vault has a different host key; want the same")
	}
	for _, v := range []*vault{v, again} {
		if a, err := v.admit(device, nil, now); err == nil {
			t.Errorf("a removed device is admitted as %+v; want an error", a)
		}
		if err := pairDevice(t, v, device); err == nil {
			t.Error("a removed device is paired again with the same keys; want an error")
		}
	}
	if info, err := os.Stat(v.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the vault has mode %v, %v; want 0600", info.Mode(), err)
	}
}

// TestUnwrittenChangesOfTheVaultAreUndone removes a device, and makes a link, while the vault cannot
// be written. A restarted host-agent would know neither, so the vault must return an error and stay
// as it was.
func TestUnwrittenChangesOfTheVaultAreUndone(t *testing.T) {
	v, err := openVault(t.TempDir(), "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	device, link, now := newIdentity(t), newIdentity(t), time.Now()
	if err := pairDevice(t, v, device); err != nil {
		t.Fatal(err)
	}
	path := v.path
	v.path = t.TempDir() // cannot be replaced by a file
	what := device.Fingerprint().String()
	if err := v.remove(what, true); err == nil || v.Removed(what) || len(v.devices()) != 1 {
		t.Errorf("removing a device without a disk: %v, and the devices %+v, removed: %v; want an error, and the device", err, v.devices(), v.Removed(what))
	}
	if err := v.keepLink(vaultDevice{Key: link.Key[:], Verifier: link.Verifier[:], People: 1, End: now.Add(time.Hour)}, now); err == nil || len(v.devices()) != 1 {
		t.Errorf("making a link without a disk: %v, and %d devices; want an error, and the paired device alone", err, len(v.devices()))
	}
	v.path = path
	if err := v.remove(what, true); err != nil || !v.Removed(what) || len(v.devices()) != 0 {
		t.Errorf("removing the device with a disk: %v, and %d devices; want none", err, len(v.devices()))
	}
}

// TestVaultKeepsRemovalsForGood removes a grant, and a device ten years later. The grant must still
// be refused, because a grant may begin at any time.
func TestVaultKeepsRemovalsForGood(t *testing.T) {
	v, err := openVault(t.TempDir(), "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	serial := sealed.Fingerprint{1}.String()
	if err := v.remove(serial, false); err != nil {
		t.Fatal(err)
	}
	v.state.Removed[0].When = time.Now().Add(-10 * 366 * 24 * time.Hour)
	if err := v.remove(sealed.Fingerprint{2}.String(), false); err != nil {
		t.Fatal(err)
	}
	if !v.Removed(serial) {
		t.Error("a removal made ten years ago is forgotten; want it kept")
	}
}

// TestOwnerAlwaysHasRoomToRemove fills the list of removals to the bound for devices. A device must
// not be able to remove more, and the owner must.
func TestOwnerAlwaysHasRoomToRemove(t *testing.T) {
	v, err := openVault(t.TempDir(), "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxRemoved / 2 {
		v.state.Removed = append(v.state.Removed, vaultRemoved{sealed.Fingerprint{3, byte(i), byte(i >> 8)}.String(), time.Now()})
	}
	if err := v.remove(sealed.Fingerprint{4}.String(), false); err == nil {
		t.Error("a device without the owner's level fills more than half of the list; want an error")
	}
	if err := v.remove(sealed.Fingerprint{4}.String(), true); err != nil {
		t.Errorf("the owner removes a device from a full half: %v; want no error", err)
	}
}

// TestDamagedVaultStops writes damaged vault files. openVault must return an error that names the
// file, and must not make a new key.
func TestDamagedVaultStops(t *testing.T) {
	dir := t.TempDir()
	v, err := openVault(dir, "default", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"", "{", `{"key":"AAAA"}`, `{"devices":[{"key":"AAAA"}]}`} {
		if err := os.WriteFile(v.path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openVault(dir, "default", "laptop"); err == nil || !strings.Contains(err.Error(), v.path) {
			t.Errorf("opening a vault of %q: %v; want an error that names the file", data, err)
		}
	}
	if _, err := openVault("", "default", "laptop"); err == nil || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("openVault without a state directory = %v; want an error that names --state-dir", err)
	}
}
