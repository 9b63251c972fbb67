package people

import (
	"errors"
	"testing"
	"time"

	"ahprelay/auth"
)

// TestDerivedInvitationChangesNobody has bob accept invitations under a name that is already in
// use. A person's invitation must not change bob's rights; the operator's must.
func TestDerivedInvitationChangesNobody(t *testing.T) {
	d := newDirectory(t)
	invited := func(access auth.Access, origins ...auth.Origin) string {
		t.Helper()
		person := Person{Tenant: "default", Subject: "bob", Access: access, Hosts: []string{"*"}, Reverse: len(origins) == 0, Origins: origins}
		secret, err := d.Invite(Invite{Person: person, Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return secret
	}
	ada, eve := auth.Origin{ID: "a", Subject: "ada"}, auth.Origin{ID: "e", Subject: "eve"}
	same, more, operators := invited(auth.AccessRead, eve), invited(auth.AccessAdmin, eve), invited(auth.AccessAdmin)
	bob := func(want auth.Access, origins int) {
		t.Helper()
		list, err := d.People("default")
		if err != nil || len(list) != 1 || list[0].Access != want || len(list[0].Origins) != origins {
			t.Errorf("the directory's people are %+v, %v; want one person, with level %s and %d origins", list, err, want.Level(), origins)
		}
	}
	if _, err := d.Accept(invited(auth.AccessRead, ada), Device{Key: newKey(t)}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Accept(more, Device{Key: newKey(t)}); !errors.Is(err, ErrOther) {
		t.Errorf("an invitation with more rights: %v; want %v", err, ErrOther)
	}
	bob(auth.AccessRead, 1)
	device, err := d.Accept(same, Device{Key: newKey(t)})
	if err != nil || len(device.Origins) != 1 || device.Origins[0] != eve {
		t.Errorf("an invitation with the same rights: %+v, %v; want a device with the origin eve", device, err)
	}
	if device, err := d.Accept(operators, Device{Key: newKey(t)}); err != nil || len(device.Origins) != 0 {
		t.Errorf("the operator's invitation: %+v, %v; want a device without origins", device, err)
	}
	bob(auth.AccessAdmin, 0)
	if _, err := d.Accept(invited(auth.AccessAdmin, eve), Device{Key: newKey(t)}); !errors.Is(err, ErrOther) {
		t.Errorf("an invitation without reverse, for a person who has it: %v; want %v", err, ErrOther)
	}
}

// TestLongChainLetsNobodyIn invites a device whose grant has too many origins for a token. The
// invitation and the approval must fail.
func TestLongChainLetsNobodyIn(t *testing.T) {
	d, who := newDirectory(t), owner()
	for range auth.MaxOrigins {
		who.Origins = append(who.Origins, auth.Origin{ID: "t", Subject: "ada"})
	}
	if _, err := d.Invite(Invite{Person: who, Expires: time.Now().Add(time.Hour)}); !errors.Is(err, auth.ErrTooDerived) {
		t.Errorf("Invite by a person with the most origins = %v; want %v", err, auth.ErrTooDerived)
	}
	asked, err := d.Ask(Request{Kind: OfDevice, Key: newKey(t)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Decide(asked.ID, &who, Decision{Approve: true, Code: asked.Code}); !errors.Is(err, auth.ErrTooDerived) {
		t.Errorf("an approval by a person with the most origins = %v; want %v", err, auth.ErrTooDerived)
	}
}
