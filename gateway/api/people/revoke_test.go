package people_test

import (
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/broker/registry"
	"ahprelay/test/memstore"
)

// deviceOf admits a device of a person who may look at all hosts.
func (s *site) deviceOf(subject string) people.Device {
	s.Helper()
	person := people.Person{Tenant: "default", Subject: subject, Access: auth.AccessRead, Hosts: []string{"*"}}
	secret, err := s.people.Invite(people.Invite{Person: person, Expires: time.Now().Add(time.Hour)})
	var device people.Device
	if err == nil {
		device, err = s.people.Accept(secret, people.Device{Key: s.caller("192.0.2.2").key.Thumbprint()})
	}
	if err != nil {
		s.Fatal(err)
	}
	return device
}

// TestFullRevocationsAreNamed removes a device when the tenant's people have revoked as much as they
// can. The answer must name the reason, and the device must stay.
func TestFullRevocationsAreNamed(t *testing.T) {
	s := newSite(t)
	c := s.caller("192.0.2.1").enter()
	device := s.deviceOf("bob")
	at := time.Now()
	var err error
	for i := 0; err == nil; i++ {
		err = s.revoked.Add(auth.Revocation{Token: fmt.Sprint(i), At: at, Until: at.Add(time.Hour), Alone: true, By: "default"})
	}
	path := "/api/devices/" + device.ID
	status, said := c.send("DELETE", path, c.in.Token, c.proof("DELETE", path, c.in.Token), "", nil)
	if why := registry.ErrTooManyRevocations.Error(); status != http.StatusServiceUnavailable || !strings.Contains(said, why) {
		t.Errorf("removing the device: HTTP %d %s; want 503, %q", status, said, why)
	}
	if _, _, err := s.people.Device(device.ID); err != nil {
		t.Errorf("the device: %v; want it to stay", err)
	}
}

// TestUnsavedRevocationsAreNamed removes a device, a person and links while the relay cannot write its
// file of revocations. The answers must say that these have no access any more, but may get it back.
// Their records must be gone.
func TestUnsavedRevocationsAreNamed(t *testing.T) {
	s := newSiteWith(t, new(memstore.Store), filepath.Join(t.TempDir(), "gone", "revocations.json"))
	c := s.caller("192.0.2.1").enter()
	device := s.deviceOf("bob")
	s.deviceOf("eve")
	for _, id := range []string{"one", "two", "three"} {
		if _, err := s.people.Keep(people.Share{ID: id, Tenant: "default", By: "ada", Host: "desk", Expires: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/api/devices/" + device.ID, "/api/people/eve", "/api/shares/one", "/api/shares"} {
		status, said := c.send("DELETE", path, c.in.Token, c.proof("DELETE", path, c.in.Token), "", nil)
		if want := "this has taken effect, but"; status != http.StatusInternalServerError || !strings.Contains(said, want) {
			t.Errorf("DELETE %s: HTTP %d %s; want 500, %q", path, status, said, want)
		}
	}
	if _, _, err := s.people.Device(device.ID); !errors.Is(err, people.ErrNone) {
		t.Errorf("the device: %v; want none", err)
	}
	if list, err := s.people.People("default"); len(list) != 2 || err != nil {
		t.Errorf("%d people are left, %v; want ada and bob", len(list), err)
	}
	if list, err := s.people.Shares("default", ""); len(list) > 0 || err != nil {
		t.Errorf("%d links are left, %v; want none", len(list), err)
	}
}

// TestUnreadableDeviceStopsNoRemoval stores a device that this relay cannot read. The tenant's owner must still see
// all other devices and people, and remove them.
func TestUnreadableDeviceStopsNoRemoval(t *testing.T) {
	store := new(memstore.Store)
	s := newSiteWith(t, store, "")
	c := s.caller("192.0.2.1").enter()
	bob, eve := s.deviceOf("bob"), s.deviceOf("eve")
	if err := store.Update("device.broken", func([]byte) ([]byte, error) { return []byte(`{"tenant":1}`), nil }); err != nil {
		t.Fatal(err)
	}
	for _, one := range [][2]string{{"GET", "/api/devices"}, {"GET", "/api/people"}, {"DELETE", "/api/people/eve"}, {"DELETE", "/api/devices/" + bob.ID}} {
		status, said := c.send(one[0], one[1], c.in.Token, c.proof(one[0], one[1], c.in.Token), "", nil)
		if status != http.StatusOK || one[0] == "GET" && !strings.Contains(said, "eve") {
			t.Errorf("%s %s: HTTP %d %s; want 200, and eve in lists", one[0], one[1], status, said)
		}
	}
	if !s.revoked.Revoked(eve.Added, auth.RevocationKey{Tenant: "default", Subject: "eve"}) {
		t.Error("eve's tokens are valid; want them revoked")
	}
	if list, err := s.people.People("default"); len(list) != 2 || err != nil {
		t.Errorf("%d people are left, %v; want ada and bob", len(list), err)
	}
}
