package people

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"ahprelay/auth"
	"ahprelay/internal/fair"
	"ahprelay/test/memstore"
)

func newDirectory(t testing.TB) *Directory {
	t.Helper()
	return NewDirectory(new(memstore.Store))
}

func owner() Person {
	return Person{Tenant: "default", Subject: "owner", Access: auth.AccessAdmin, Hosts: []string{"*"}}
}

func newKey(t testing.TB) string {
	t.Helper()
	key, err := auth.NewDeviceKey()
	if err != nil {
		t.Fatal(err)
	}
	return key.Thumbprint()
}

// TestOnlyTheFirstIsIn has 16 browsers accept the same invitation at once. Exactly one browser may
// succeed; the others must get ErrUsed.
func TestOnlyTheFirstIsIn(t *testing.T) {
	for _, setup := range []bool{false, true} {
		d := newDirectory(t)
		secret, err := d.Invite(Invite{Person: owner(), Setup: setup, Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		results := make(chan error, 16)
		for range cap(results) {
			key := newKey(t)
			wg.Go(func() {
				_, err := d.Accept(secret, Device{Key: key})
				results <- err
			})
		}
		wg.Wait()
		close(results)
		in := 0
		for err := range results {
			switch {
			case err == nil:
				in++
			case !errors.Is(err, ErrUsed):
				t.Errorf("a browser that used the setup link too late got %v; want ErrUsed", err)
			}
		}
		if devices, err := d.Devices("default", ""); in != 1 || len(devices) != 1 || err != nil {
			t.Errorf("the setup link admitted %d browsers, and %d devices exist, %v; want 1 and 1", in, len(devices), err)
		}
	}
}

// TestSetupLinksAreOver makes setup links. A new setup link must end the previous link, and all
// links must end when there is an owner.
func TestSetupLinksAreOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDirectory(t)
		invite := func(setup bool) string {
			secret, err := d.Invite(Invite{Person: owner(), Setup: setup, Expires: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			return secret
		}
		want := func(what, secret string, want error) {
			t.Helper()
			if _, err := d.Accept(secret, Device{Key: newKey(t)}); !errors.Is(err, want) {
				t.Errorf("%s: %v; want %v", what, err, want)
			}
		}
		first, second := invite(true), invite(true)
		want("the first link", first, ErrUsed)
		late := invite(false)
		want("a link that is not for setup", late, nil)
		want("the second, when there is an owner", second, ErrUsed)
		old := invite(false)
		time.Sleep(time.Hour + time.Second)
		want("a link that is over", old, ErrUsed)
		want("none", "", ErrUsed)
	})
}

// TestRecordsOfADifferentRelayCount uses two setup links at two relays, one after the other, whose
// owners have different names. The second relay has not read the first owner yet: it must refuse the
// second owner. It must also follow a link that the first relay has just made.
func TestRecordsOfADifferentRelayCount(t *testing.T) {
	one := new(memstore.Store)
	d, other := NewDirectory(one), NewDirectory(&memstore.Copy{Store: one})
	setup := func(d *Directory, subject string) func() error {
		person := owner()
		person.Subject = subject
		secret, err := d.Invite(Invite{Person: person, Setup: true, Relay: subject, Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		return func() error {
			_, err := d.Accept(secret, Device{Key: newKey(t)})
			return err
		}
	}
	first, second := setup(d, "ada"), setup(other, "bob")
	if err := first(); err != nil {
		t.Fatal(err)
	}
	if err := second(); !errors.Is(err, ErrUsed) {
		t.Errorf("a setup link, when a different relay has just stored an owner: %v; want %v", err, ErrUsed)
	}
	secret, err := d.Keep(Share{ID: "new", Tenant: "default", By: "ada", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := other.Follow(secret); s.ID != "new" || err != nil {
		t.Errorf("a link that a different relay has just made: %q, %v; want it", s.ID, err)
	}
}

// TestOneSetupLinkWins uses two setup links at two relays at once, for owners with different names: the
// second comes when the first has found no owner, and has not stored its own yet. Only the first may
// get in. If it stores no owner, the second link must work later.
func TestOneSetupLinkWins(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			shared := &flakyStore{}
			late := &lateStore{Store: shared}
			d, other := NewDirectory(late), NewDirectory(shared)
			link := func(d *Directory, subject string) func() error {
				person := owner()
				person.Subject = subject
				secret, err := d.Invite(Invite{Person: person, Setup: true, Relay: subject, Expires: time.Now().Add(time.Hour)})
				if err != nil {
					t.Fatal(err)
				}
				key := newKey(t)
				return func() error {
					_, err := d.Accept(secret, Device{Key: key})
					return err
				}
			}
			first, second := link(d, "ada"), link(other, "bob")
			late.after = func() {
				if err := second(); !errors.Is(err, ErrBegun) {
					t.Errorf("a setup link while a different one is used: %v; want %v", err, ErrBegun)
				}
				if fails {
					shared.fails = personPrefix
				}
			}
			if err := first(); fails == (err == nil) {
				t.Errorf("the first setup link, whose owner cannot be stored: %v: %v", fails, err)
			}
			time.Sleep(RequestTTL)
			if err := second(); fails != (err == nil) || !fails && !errors.Is(err, ErrUsed) {
				t.Errorf("the second setup link, later, when the first has failed: %v: %v", fails, err)
			}
			if all, err := d.People("default"); len(all) != 1 || err != nil {
				t.Errorf("the tenant has the people %+v, %v; want one owner", all, err)
			}
		})
	}
}

// TestUnreadableRecordStopsNoLink stores two links, and a link's record that no program of this version can
// read. Both links must work, and a link that does not exist must be refused as usual.
func TestUnreadableRecordStopsNoLink(t *testing.T) {
	store := new(memstore.Store)
	d := NewDirectory(store)
	var secrets []string
	for _, id := range []string{"one", "two"} {
		secret, err := d.Keep(Share{ID: id, Tenant: "default", By: "owner", Host: "desk", Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	if err := store.Update(sharePrefix+"broken", func([]byte) ([]byte, error) { return []byte(`{"id":1,"tenant":1}`), nil }); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"one", "two"} {
		if s, err := d.Follow(secrets[i]); s.ID != want || err != nil {
			t.Errorf("the link leads to %q, %v; want %s and no error", s.ID, err, want)
		}
	}
	if _, err := d.Follow("unknown"); !errors.Is(err, ErrNone) {
		t.Errorf("a link that does not exist: %v; want ErrNone", err)
	}
	if list, err := d.Shares("default", "owner"); len(list) != 2 || err != nil {
		t.Errorf("the list has %d links, %v; want 2 and no error", len(list), err)
	}
	if _, err := d.Keep(Share{ID: "three", Tenant: "default", By: "owner", Host: "desk", Expires: time.Now().Add(time.Hour)}); err != nil {
		t.Errorf("a further link: %v; want no error", err)
	}
}

// TestUnreadableRecordStopsNoInvitation stores a device, an invitation and a request that no program of this version can
// read. Others must still be invited, listed and admitted, and requests for approval must be found.
func TestUnreadableRecordStopsNoInvitation(t *testing.T) {
	for _, prefix := range []string{devicePrefix, invitePrefix, requestPrefix} {
		store := new(memstore.Store)
		d := NewDirectory(store)
		if err := store.Update(prefix+"broken", func([]byte) ([]byte, error) { return []byte(`{"tenant":1,"person":1,"name":1}`), nil }); err != nil {
			t.Fatal(err)
		}
		secret, err := d.Invite(Invite{Person: owner(), Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatalf("beside an unreadable %s, an invitation: %v; want no error", prefix, err)
		}
		open, err := d.Invites(owner().Tenant)
		if len(open) != 1 || err != nil {
			t.Fatalf("beside an unreadable %s, %d open invitations, %v; want 1 and no error", prefix, len(open), err)
		}
		if _, err := d.Accept(secret, Device{Key: newKey(t)}); err != nil {
			t.Errorf("beside an unreadable %s, a device is admitted with %v; want no error", prefix, err)
		}
		if err := d.Withdraw(owner().Tenant, open[0].ID); !errors.Is(err, ErrNone) {
			t.Errorf("beside an unreadable %s, a used invitation is withdrawn with %v; want ErrNone", prefix, err)
		}
		if _, err := d.Find("none", nil); !errors.Is(err, ErrNone) {
			t.Errorf("beside an unreadable %s, a request that does not exist is found with %v; want ErrNone", prefix, err)
		}
	}
}

// BenchmarkFollow follows a link that does not exist, as a stranger may, beside 32,768 links.
func BenchmarkFollow(b *testing.B) {
	store := new(memstore.Store)
	d := NewDirectory(store)
	for i := range MaxRecords {
		share, err := json.Marshal(Share{
			ID: fmt.Sprint(i), Secret: hashed(fmt.Sprint(i)), Tenant: "default", By: "owner", Subject: "link", Host: "desk", Session: "ahp-session:/1",
			Access: auth.AccessRead, Made: time.Now(), Expires: time.Now().Add(time.Hour),
		})
		if err == nil {
			err = store.Update(sharePrefix+fmt.Sprint(i), func([]byte) ([]byte, error) { return share, nil })
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := d.Follow("unknown"); !errors.Is(err, ErrNone) {
			b.Fatalf("%v; want ErrNone", err)
		}
	}
}

// TestAcceptAnswersAgain accepts an invitation again with the same key, as a device does whose
// answer was lost. It must get the same device, without another place in the list of
// invitations, until that device is removed. A different key must not get in.
func TestAcceptAnswersAgain(t *testing.T) {
	for _, setup := range []bool{false, true} {
		d := newDirectory(t)
		removed := "none"
		d.Removed = func(one Device) bool { return one.ID == removed }
		secret, err := d.Invite(Invite{Person: owner(), Setup: setup, Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		key := newKey(t)
		first, err := d.Accept(secret, Device{Key: key})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := d.Accept(secret, Device{Key: key}); err != nil || again.ID != first.ID {
			t.Errorf("setup %v: the second attempt has the device %q, %v; want %q", setup, again.ID, err, first.ID)
		}
		if _, err := d.Accept(secret, Device{Key: newKey(t)}); !errors.Is(err, ErrUsed) {
			t.Errorf("setup %v: a different key: %v; want ErrUsed", setup, err)
		}
		if open, err := d.Invites(owner().Tenant); err != nil || len(open) != 0 {
			t.Errorf("setup %v: %d open invitations, %v; want none", setup, len(open), err)
		}
		removed = first.ID
		if _, err := d.Accept(secret, Device{Key: key}); !errors.Is(err, ErrUsed) {
			t.Errorf("setup %v: after the device's removal: %v; want ErrUsed", setup, err)
		}
	}
}

// TestOverlappingAttemptsAreOneDevice has a device use its invitation, and poll its approved request, at two
// relays at once. Both answers must name the same device, and the store must have one.
func TestOverlappingAttemptsAreOneDevice(t *testing.T) {
	for _, invited := range []bool{false, true} {
		shared := new(memstore.Store)
		late := &lateStore{Store: shared}
		d, who, key := NewDirectory(late), owner(), newKey(t)
		var enter func(d *Directory) (Device, error)
		if invited {
			secret, err := d.Invite(Invite{Person: who, Expires: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			enter = func(d *Directory) (Device, error) { return d.Accept(secret, Device{Key: key}) }
		} else {
			r, err := d.Ask(Request{Kind: OfDevice, Key: key})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Decide(r.ID, &who, Decision{Approve: true, Code: r.Code}); err != nil {
				t.Fatal(err)
			}
			enter = func(d *Directory) (Device, error) {
				_, device, err := d.Poll(r.ID, r.Secret, key)
				return device, err
			}
		}
		var second Device
		late.after = func() { // the first attempt knows no device of the person
			var err error
			if second, err = enter(NewDirectory(shared)); err != nil {
				t.Error(err)
			}
		}
		first, err := enter(d)
		if err != nil || first.ID != second.ID {
			t.Errorf("invited: %v: overlapping attempts got the devices %q and %q, %v; want the same", invited, first.ID, second.ID, err)
		}
		if all, err := d.Devices("default", ""); len(all) != 1 || err != nil {
			t.Errorf("invited: %v: the store has the devices %+v, %v; want one", invited, all, err)
		}
	}
}

// A lateStore calls after once when all records were read.
type lateStore struct {
	Store
	after func()
}

func (s *lateStore) All(prefix string) (map[string][]byte, error) {
	found, err := s.Store.All(prefix)
	if after := s.after; after != nil {
		s.after = nil
		after()
	}
	return found, err
}

// TestEndInvitesReadsWhatItDeletes: a device uses an invitation just before it expires, while a
// relay looks for expired ones. The relay does not report the invitation as unused. An invitation
// that was stored again under the same key stays.
func TestEndInvitesReadsWhatItDeletes(t *testing.T) {
	for _, test := range []struct {
		what   string
		change func(*Invite)
		stays  bool
	}{
		{"used", func(i *Invite) { i.Key = "key" }, false},
		{"longer", func(i *Invite) { i.Expires = time.Now().Add(time.Hour) }, true},
	} {
		store := &lateStore{Store: new(memstore.Store)}
		d := NewDirectory(store)
		secret, err := d.Invite(Invite{Person: owner(), Expires: time.Now().Add(-time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		key := invitePrefix + hashed(secret)
		store.after = func() {
			if err := update(store, key, func(old *Invite) (*Invite, error) { test.change(old); return old, nil }); err != nil {
				t.Error(err)
			}
		}
		unused, err := d.EndInvites()
		_, gone := get[Invite](store, key)
		if err != nil || len(unused) != 0 || (gone == nil) != test.stays {
			t.Errorf("%s: %d unused invitations, %v, and the record: %v; want none, and that it stays: %v", test.what, len(unused), err, gone, test.stays)
		}
	}
}

// TestRemovedLetsNobodyIn removes a device that has sent an invitation and approved requests. The
// invited and approved devices must not get in. If the device is not removed, they must get in.
func TestRemovedLetsNobodyIn(t *testing.T) {
	d, who := newDirectory(t), owner()
	enter := func() Device {
		secret, err := d.Invite(Invite{Person: who, Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		device, err := d.Accept(secret, Device{Key: newKey(t)})
		if err != nil {
			t.Fatal(err)
		}
		return device
	}
	stays, goes := enter(), enter()
	for _, by := range []Device{stays, goes} {
		left := by.ID == stays.ID
		secret, err := d.Invite(Invite{Person: who, By: by.ID, Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		key := newKey(t)
		asked, err := d.Ask(Request{Kind: OfDevice, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		host, err := d.Ask(Request{Kind: OfHost, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []Request{asked, host} {
			if _, err := d.Decide(r.ID, &who, Decision{Approve: true, Code: r.Code, Device: by.ID, Host: "laptop"}); err != nil {
				t.Fatal(err)
			}
		}
		if !left {
			if err := d.Remove(by.ID); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Accept(secret, Device{Key: newKey(t)}); left != (err == nil) || !left && !errors.Is(err, ErrUsed) {
			t.Errorf("the inviting device exists: %v; the invited device got %v; want ErrUsed only without it", left, err)
		}
		for _, r := range []Request{asked, host} {
			if _, _, err := d.Poll(r.ID, r.Secret, key); left != (err == nil) || !left && !errors.Is(err, ErrDenied) {
				t.Errorf("the approving device exists: %v; the %s got %v; want ErrDenied only without it", left, r.Kind, err)
			}
		}
	}
}

// TestRemovedPersonsLinksAreOver removes a person who has an unused link, and makes another link in the same
// second. Only the other link must work, and be listed.
func TestRemovedPersonsLinksAreOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDirectory(t)
		link := func() (secret string) {
			secret, err := d.Invite(Invite{Person: owner(), Expires: time.Now().Add(time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			return secret
		}
		before, removed := link(), time.Now()
		d.Removed = func(one Device) bool { return one.Subject == "owner" && one.Added.Unix() <= removed.Unix() } // as revocations of subjects
		after := link()
		time.Sleep(2 * time.Second)
		if _, err := d.Accept(before, Device{Key: newKey(t)}); !errors.Is(err, ErrUsed) {
			t.Errorf("a link from before its person's removal: %v; want %v", err, ErrUsed)
		}
		if open, err := d.Invites("default"); len(open) != 1 || err != nil {
			t.Errorf("the open invitations are %+v, %v; want the one from after the removal", open, err)
		}
		if _, err := d.Accept(after, Device{Key: newKey(t)}); err != nil {
			t.Errorf("a link from after the removal: %v; want no error", err)
		}
	})
}

// TestSetupOfOneTenant makes setup links for two tenants. Both links must be accepted.
func TestSetupOfOneTenant(t *testing.T) {
	d := newDirectory(t)
	var secrets []string
	for _, tenant := range []string{"a", "b"} {
		who := owner()
		who.Tenant = tenant
		secret, err := d.Invite(Invite{Person: who, Setup: true, Expires: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	for _, secret := range secrets {
		if _, err := d.Accept(secret, Device{Key: newKey(t)}); err != nil {
			t.Error(err)
		}
	}
}

// TestForeignPollsSlowNobodyDown polls requests that do not exist, and polls an existing request with
// wrong secrets. A poll by the person who made that request must still be answered at once.
func TestForeignPollsSlowNobodyDown(t *testing.T) {
	d, key := newDirectory(t), newKey(t)
	r, err := d.Ask(Request{Kind: OfDevice, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 * maxPolled {
		if _, _, err := d.Poll(fmt.Sprint("none", i), "x", key); !errors.Is(err, ErrGone) {
			t.Fatal(err)
		}
		if _, _, err := d.Poll(r.ID, fmt.Sprint("x", i), key); !errors.Is(err, ErrNone) {
			t.Fatal(err)
		}
	}
	if _, _, err := d.Poll(r.ID, r.Secret, key); !errors.Is(err, ErrPending) {
		t.Errorf("a poll with the request's own secret, after many with wrong secrets: %v; want ErrPending", err)
	}
}

// TestRequestEndsWithItsTime polls a request from its beginning to its end. The request must be
// pending, then approved, also for a device whose answer was lost, and unknown after the device's
// removal and after its time. After a lost answer, the host-agent must get the same credential again.
func TestRequestEndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, who := newDirectory(t), owner()
		if err := update(d.store, personKey(who.Tenant, who.Subject), func(*Person) (*Person, error) { return &who, nil }); err != nil {
			t.Fatal(err)
		}
		key := newKey(t)
		r, err := d.Ask(Request{Kind: OfDevice, Key: key, Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		poll := func(secret, key string, want error) Approval {
			t.Helper()
			got, _, err := d.Poll(r.ID, secret, key)
			if !errors.Is(err, want) {
				t.Errorf("poll: %v; want %v", err, want)
			}
			return *cmp.Or(got.Approved, &Approval{})
		}
		poll(r.Secret, key, ErrPending)
		poll(r.Secret, key, ErrSlowDown)
		poll(r.Secret, newKey(t), ErrNone) // this slows down only the other key
		time.Sleep(PollEvery - time.Millisecond)
		poll(r.Secret, key, ErrSlowDown)
		time.Sleep(PollEvery)
		poll(r.Secret, key, ErrPending)
		if _, err := d.Decide(r.ID, &who, Decision{Approve: true, Code: r.Code}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Decide(r.ID, &who, Decision{Approve: true, Code: r.Code}); !errors.Is(err, ErrNone) {
			t.Errorf("approving a request twice: %v; want ErrNone", err)
		}
		time.Sleep(PollEvery)
		poll(r.Secret, key, nil)
		time.Sleep(PollEvery)
		poll(r.Secret, key, nil)
		poll(r.Secret, newKey(t), ErrNone)
		if _, err := d.Find(r.ID, &who); !errors.Is(err, ErrNone) {
			t.Errorf("finding an approved request: %v; want ErrNone", err)
		}
		devices, err := d.Devices(who.Tenant, "")
		if err != nil || len(devices) != 1 {
			t.Fatalf("there are the devices %+v, %v; want one", devices, err)
		}
		if err := d.Remove(devices[0].ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(PollEvery)
		poll(r.Secret, key, ErrGone)

		if r, err = d.Ask(Request{Kind: OfHost, Key: key}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Decide(r.ID, &who, Decision{Approve: true, Code: r.Code, Host: "desk"}); err != nil {
			t.Fatal(err)
		}
		first := poll(r.Secret, key, nil)
		time.Sleep(PollEvery)
		if again := poll(r.Secret, key, nil); first.Credential == "" || again.Credential != first.Credential || !again.Issued.Equal(first.Issued) {
			t.Errorf("the second answer has the credential %q of %v; want %q of %v", again.Credential, again.Issued, first.Credential, first.Issued)
		}
		poll(r.Secret, newKey(t), ErrNone)
		time.Sleep(RequestTTL)
		poll(r.Secret, key, ErrGone)

		if r, err = d.Ask(Request{Kind: OfDevice, Key: key}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Find(strings.ToLower(ShowCode(r.Code)), &who); err != nil {
			t.Errorf("finding a request by its code: %v; want no error", err)
		}
		time.Sleep(RequestTTL)
		if _, err := d.Find(r.ID, &who); !errors.Is(err, ErrNone) {
			t.Errorf("finding a request after its time: %v; want ErrNone", err)
		}
		if _, err := d.Decide(r.ID, &who, Decision{Approve: true, Code: r.Code}); !errors.Is(err, ErrNone) {
			t.Errorf("Decide after the request's time: %v; want ErrNone", err)
		}
		poll(r.Secret, key, ErrGone)
	})
}

// A flakyStore fails the next write of a record whose key has the prefix fails.
type flakyStore struct {
	memstore.Store
	fails string
}

// Update implements [Store].
func (s *flakyStore) Update(key string, change func([]byte) ([]byte, error)) error {
	return s.Store.Update(key, func(old []byte) ([]byte, error) {
		next, err := change(old)
		if err == nil && s.fails != "" && strings.HasPrefix(key, s.fails) && string(next) != string(old) {
			s.fails = ""
			return nil, ErrAway
		}
		return next, err
	})
}

// TestApprovalSurvivesAnOutage polls an approved request while the store fails once: at the new
// device, or at the request. The next poll must return the device, of which there is one.
func TestApprovalSurvivesAnOutage(t *testing.T) {
	for _, fails := range []string{devicePrefix, requestPrefix} {
		synctest.Test(t, func(t *testing.T) {
			store := &flakyStore{}
			d, who, key := NewDirectory(store), owner(), newKey(t)
			r, err := d.Ask(Request{Kind: OfDevice, Key: key})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := d.Decide(r.ID, &who, Decision{Approve: true, Code: r.Code}); err != nil {
				t.Fatal(err)
			}
			store.fails = fails
			if _, _, err := d.Poll(r.ID, r.Secret, key); !errors.Is(err, ErrAway) {
				t.Errorf("a poll while %s… cannot be written: %v; want %v", fails, err, ErrAway)
			}
			time.Sleep(PollEvery)
			_, device, err := d.Poll(r.ID, r.Secret, key)
			if err != nil || device.Key != key {
				t.Errorf("the next poll returns %+v, %v; want the device", device, err)
			}
			if all, err := d.Devices(who.Tenant, ""); err != nil || len(all) != 1 {
				t.Errorf("there are the devices %+v, %v; want one", all, err)
			}
		})
	}
}

// TestForeignRequestIsInvisible has a person decide about requests. A request for another tenant or
// person must look as if it did not exist.
func TestForeignRequestIsInvisible(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newDirectory(t)
		name := rapid.SampledFrom([]string{"", "a", "b"})
		r, err := d.Ask(Request{Kind: OfDevice, Key: newKey(t), Tenant: name.Draw(rt, "tenant"), Subject: name.Draw(rt, "subject")})
		if err != nil {
			rt.Fatal(err)
		}
		who := Person{Tenant: "a", Subject: "b", Access: auth.AccessTalk, Hosts: []string{"*"}}
		may := (r.Tenant == "" || r.Tenant == "a") && (r.Subject == "" || r.Subject == "b")
		typed := rapid.SampledFrom([]string{r.Code, ShowCode(r.Code), r.Code[4:], " " + strings.ToLower(r.Code), r.Code[:4], r.Code[1:], ""}).Draw(rt, "typed")
		right := ReadCode(typed) == r.Code || ReadCode(typed) == r.Code[4:]
		_, err = d.Decide(r.ID, &who, Decision{Approve: true, Code: typed})
		switch {
		case may && right && err != nil, may && !right && !errors.Is(err, ErrWrong), !may && !errors.Is(err, ErrNone):
			rt.Fatalf("%+v decides with the code %q about a request of %q, %q: %v; want ErrWrong for a wrong code, ErrNone if invisible", who, typed, r.Tenant, r.Subject, err)
		}
	})
}

// TestFloodOfRequestsKeepsNobodyOut sends requests without end from whole networks. A request from
// elsewhere must be accepted and stay until its time is over, and so must an approved request.
func TestFloodOfRequestsKeepsNobodyOut(t *testing.T) {
	tenant, all := roomOfTenant, roomOfAll
	t.Cleanup(func() { roomOfTenant, roomOfAll = tenant, all })
	// A quarter of the places is enough here, and much faster: each request reads all others.
	const ofNetwork = 16
	roomOfTenant = fair.Room{Places: tenant.Places / 4, Networks: [2]int{ofNetwork, 4}}
	roomOfAll = fair.Room{Places: all.Places / 4, Networks: roomOfTenant.Networks}
	synctest.Test(t, func(t *testing.T) {
		d, key, who := newDirectory(t), newKey(t), owner()
		ask := func(tenant, address string) Request {
			t.Helper()
			r, err := d.Ask(Request{Kind: OfDevice, Key: key, Tenant: tenant, Address: address})
			if err != nil {
				t.Fatalf("a request from %s: %v; want no error", address, err)
			}
			time.Sleep(time.Millisecond)
			return r
		}
		approved := ask("", "2001:db8::1")
		if _, err := d.Decide(approved.ID, &who, Decision{Approve: true, Code: approved.Code}); err != nil {
			t.Fatal(err)
		}
		before := ask("", "192.0.2.1")
		for i := range 6 * 6 {
			ask("", fmt.Sprintf("2001:db8:0:%x::1", i%6))
		}
		beside := ask("", "2001:db8:1::1")
		for i := range ofNetwork + 4 {
			ask("", fmt.Sprintf("2001:db8:0:%x::1", i))
			ask("", fmt.Sprint("198.51.100.", i%256))
			ask("default", fmt.Sprintf("2001:db8:2:%x::1", i)) // a flood may name any tenant
			ask(fmt.Sprint("t", i), fmt.Sprintf("2001:db8:3:%x::1", i))
		}
		for _, r := range []Request{before, beside} {
			if _, err := d.Find(r.ID, &who); err != nil {
				t.Errorf("finding the request from %s: %v; want no error", r.Address, err)
			}
		}
		if _, _, err := d.Poll(approved.ID, approved.Secret, key); err != nil {
			t.Errorf("polling a request approved before the flood: %v; want no error", err)
		}
		waiting, err := d.requests()
		if n := len(waiting); err != nil || n > 4*ofNetwork+3 { // with the approved one
			t.Errorf("%d requests of 4 networks wait, %v; want at most %d of each", n, err, ofNetwork)
		}
		// If each request comes from another network, a new request must still fit.
		for i := range roomOfTenant.Places + 8 {
			ask("", fmt.Sprintf("2001:db8:%x::1", i+16))
		}
		if late := ask("", "203.0.113.9"); late.ID == "" {
			t.Error("a request is refused after many from different networks; want it kept")
		}
		if waiting, err := d.requests(); err != nil || len(waiting) > roomOfAll.Places {
			t.Errorf("%d requests wait, %v; want at most %d", len(waiting), err, roomOfAll.Places)
		}
		time.Sleep(RequestTTL)
		if waiting, err := d.requests(); err != nil || len(waiting) > 0 {
			t.Errorf("after their time, %d requests wait, %v; want 0", len(waiting), err)
		}
	})
}

// TestApprovedRequestGivesNoWay approves a request while another request looks for room. The approved
// request must stay, so that its device gets access.
func TestApprovedRequestGivesNoWay(t *testing.T) {
	tenant := roomOfTenant
	t.Cleanup(func() { roomOfTenant = tenant })
	roomOfTenant = fair.Room{Places: 1, Networks: [2]int{1, 1}}
	store := &lateStore{Store: new(memstore.Store)}
	d, key, who := NewDirectory(store), newKey(t), owner()
	first, err := d.Ask(Request{Kind: OfDevice, Key: key, Address: "192.0.2.1"})
	if err != nil {
		t.Fatal(err)
	}
	store.after = func() {
		if _, err := d.Decide(first.ID, &who, Decision{Approve: true, Code: first.Code}); err != nil {
			t.Error(err)
		}
	}
	if _, err := d.Ask(Request{Kind: OfDevice, Key: newKey(t), Address: "192.0.2.1"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Poll(first.ID, first.Secret, key); err != nil {
		t.Errorf("polling the request that was approved meanwhile: %v; want no error", err)
	}
}

func TestCleanNamesArePrintable(t *testing.T) {
	for name, want := range map[string]string{
		"Ada's phone": "Ada's phone", "a\x1b[2Jb\nc": "a[2Jbc", "\xff\xfe": "", " x ": "x", "\u202eevil": "evil",
		strings.Repeat("ä", 200): strings.Repeat("ä", maxName/2),
	} {
		if got := Clean(name); got != want {
			t.Errorf("Clean(%q) = %q; want %q", name, got, want)
		}
	}
}
