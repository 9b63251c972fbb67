package people

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/test/memstore"
)

// TestRecordsOfATenantLeaveRoomForOthers: a tenant's people have as many links as there is room
// for. They get no further record, but a person of another tenant accepts an invitation, and
// makes a link. A person whom the operator invites enters the loud tenant.
func TestRecordsOfATenantLeaveRoomForOthers(t *testing.T) {
	store := new(memstore.Store)
	d := NewDirectory(store)
	for i := range MaxRecords / 2 {
		if err := store.Update(fmt.Sprint(sharePrefix, i), func([]byte) ([]byte, error) { return []byte(`{"tenant":"loud"}`), nil }); err != nil {
			t.Fatal(err)
		}
	}
	enter := func(tenant, inviter string) error {
		person := owner()
		person.Tenant, person.Subject = tenant, "of "+inviter
		if inviter != "" {
			person.Origins = []auth.Origin{{ID: "d", Subject: inviter, Issued: 1}}
		}
		secret, err := d.Invite(Invite{Person: person, Expires: time.Now().Add(time.Hour)})
		if err == nil {
			_, err = d.Accept(secret, Device{Key: newKey(t)})
		}
		if err == nil && inviter != "" {
			_, err = d.Keep(Share{ID: "new", Tenant: tenant, By: person.Subject, Expires: time.Now().Add(time.Hour)})
		}
		return err
	}
	if err := enter("loud", "ada"); !errors.Is(err, ErrFull) {
		t.Errorf("a further person of the loud tenant: %v; want %v", err, ErrFull)
	}
	if err := enter("quiet", "ada"); err != nil {
		t.Errorf("a person of another tenant: %v; want room", err)
	}
	if err := enter("loud", ""); err != nil {
		t.Errorf("a person whom the operator invites to the loud tenant: %v; want room", err)
	}
}
