package people_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/people"
	"ahprelay/broker/registry"
)

// TestFullRevocationsAreNamed removes a device when the tenant's people have revoked as much as they
// can. The answer must name the reason, and the device must stay.
func TestFullRevocationsAreNamed(t *testing.T) {
	s := newSite(t)
	c := s.caller("192.0.2.1").enter()
	other, err := s.people.Invite(people.Invite{Person: people.Person{Tenant: "default", Subject: "bob", Access: auth.AccessRead, Hosts: []string{"*"}}, Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	device, err := s.people.Accept(other, people.Device{Key: s.caller("192.0.2.2").key.Thumbprint()})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
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
