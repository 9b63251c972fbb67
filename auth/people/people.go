package people

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/fair"
)

// Lifetimes and intervals.
const (
	AccessTTL  = 15 * time.Minute // lifetime of devices' tokens
	RequestTTL = 10 * time.Minute
	MaxTries   = 5               // a request ends after this number of wrong codes
	PollEvery  = 2 * time.Second // shortest interval at which a device may poll its request

	seenEvery = time.Minute // a device's last visit is recorded with this precision
)

const (
	maxName       = 128  // bytes of names that devices claim
	maxPolled     = 1024 // requests with a known time of the next allowed poll
	maxOfPerson   = 64   // devices of a person
	maxInvitesOut = 256  // invitations in a tenant
)

// Limits for waiting requests: in one tenant, and in all tenants together. Requests that
// name no tenant count as one tenant. The limits for a network are equal in both, because a
// request can name any tenant without proof.
var (
	roomOfTenant = fair.Room{Places: 256, Networks: requestsOfNetworks}
	roomOfAll    = fair.Room{Places: 512, Networks: requestsOfNetworks}

	requestsOfNetworks = [2]int{64, 16}
)

// Reasons for a refusal.
var (
	ErrNone     = errors.New("not found, or expired")
	ErrUsed     = errors.New("this link is used up or has expired; ask for a new link (relay setup-link, on the relay's machine)")
	ErrBegun    = errors.New("a different setup link is being used; open this link again after 10 minutes, or ask the owner for an invitation")
	ErrOther    = errors.New("a person with that name already exists and has different rights; ask for a link with a different name")
	ErrWrong    = errors.New("wrong code: type the code that the other device shows")
	ErrTries    = errors.New("too many wrong codes: the request has ended")
	ErrTooMany  = errors.New("too many at the same time; try again later")
	ErrPending  = errors.New("not decided yet")
	ErrSlowDown = errors.New("polled too often; wait longer")
	ErrDenied   = errors.New("the request was refused")
	ErrGone     = errors.New("the code has expired; start again")
)

// A Person is a user of a tenant's hosts.
type Person struct {
	Tenant   string      `json:"tenant"`
	Subject  string      `json:"subject"`
	Access   auth.Access `json:"access"`
	Hosts    []string    `json:"hosts"`
	Channels []string    `json:"channels,omitempty"`
	Methods  []string    `json:"methods,omitempty"`
	Files    bool        `json:"files,omitempty"`
	Reverse  bool        `json:"reverse,omitempty"`
	Most     int         `json:"maxConnections,omitempty"` // simultaneous connections of a token; 0: the relay's limit
	Added    time.Time   `json:"added"`

	// Origins are the grants from which the person's own grants are derived. In a record,
	// they come from the person's invitation. For a caller with a token, they are the
	// origins for grants made with that token.
	Origins []auth.Origin `json:"origins,omitempty"`

	// Set after a sign-in at an identity provider.
	Name     string          `json:"name,omitempty"`   // display name
	Issuer   string          `json:"issuer,omitempty"` // the provider
	Claims   json.RawMessage `json:"claims,omitempty"` // the claims in its ID token that rules mention
	SignedIn time.Time       `json:"signedIn,omitzero"`
}

// Client returns the authority of the person's tokens.
func (p *Person) Client() auth.Client {
	return auth.Client{
		Tenant: p.Tenant, Subject: p.Subject, Access: p.Access, Hosts: p.Hosts, Channels: p.Channels, Methods: p.Methods, Files: p.Files,
		Reverse: p.Reverse, MaxConnections: p.Most, Origins: p.Origins,
	}
}

// May sets the person's tenant and authority to those of a token.
func (p *Person) May(c auth.Client) {
	p.Tenant, p.Access, p.Hosts, p.Channels, p.Methods, p.Files = c.Tenant, c.Access, c.Hosts, c.Channels, c.Methods, c.Files
	p.Reverse, p.Most = c.Reverse, c.MaxConnections
}

// SameAuthority reports whether an invitation gives the authority that the person already
// has. It returns false for a person from an identity provider.
func (p *Person) SameAuthority(invited *Person) bool {
	return p.Issuer == "" && p.Client().SameAuthority(invited.Client())
}

// Owns reports whether the person owns at least one host, and so manages its users.
func (p *Person) Owns() bool { return p.Access.Includes(auth.AccessAdmin) }

// OwnsAll reports whether the person owns all hosts in the tenant, and so manages all
// users.
func (p *Person) OwnsAll() bool {
	return p.Owns() && slices.Contains(p.Hosts, auth.AllHosts) && len(p.Channels) == 0 && len(p.Methods) == 0
}

func (p *Person) check() error {
	if err := errors.Join(ahp.CheckName("tenant", p.Tenant), auth.CheckSubject(p.Subject)); err != nil {
		return err
	}
	c := p.Client()
	return c.CheckAuthority()
}

// A Device acts for a person.
type Device struct {
	ID      string    `json:"id"`
	Tenant  string    `json:"tenant"`
	Subject string    `json:"subject"`
	Name    string    `json:"name"`
	Key     string    `json:"key"` // thumbprint
	Added   time.Time `json:"added"`
	Seen    time.Time `json:"seen"`
	Place   string    `json:"place"` // address where it was last seen

	Access auth.Access `json:"access,omitempty"` // its maximum level; "": the person's

	Origins []auth.Origin `json:"origins,omitempty"` // the grants by which the device got access
}

// Narrow reduces the person's authority to the device's own level.
func (d *Device) Narrow(may *auth.Client) {
	if d.Access != "" {
		may.Access = may.Access.Less(d.Access)
	}
}

// roomFor returns an error if tokens for a device of the subject would be too long with
// these origins.
func roomFor(subject string, origins []auth.Origin) error {
	device := Device{ID: deviceID(subject), Subject: subject, Origins: origins}
	return auth.CheckOrigins(device.Derive())
}

// deviceID returns the ID of the device that gets access by a grant, such as the key of an
// invitation. Overlapping attempts of the device thus store it once.
func deviceID(grant string) string { return "device-" + hashed("device " + grant)[:16] }

// Derive returns the origins for a grant made by the device.
func (d *Device) Derive() []auth.Origin {
	return auth.DeriveFromDevice(d.ID, d.Subject, d.Added, d.Origins)
}

// An Invite gives access to the first device that presents its secret.
type Invite struct {
	Person  Person    `json:"person"`
	Setup   bool      `json:"setup,omitempty"`  // for a new relay: invalid when the tenant has an owner
	Relay   string    `json:"relay,omitempty"`  // the relay that made it, for setup
	Key     string    `json:"key,omitempty"`    // thumbprint of the first device that opened it, the only one that may use it
	Device  string    `json:"device,omitempty"` // the ID of that device, once it has access
	By      string    `json:"by,omitempty"`     // the device that made the invitation, which ends when this device is removed; "": none
	Expires time.Time `json:"expires"`
}

// A Directory gives people and devices access. It keeps their records in a [Store], with
// invitations, requests for access, and links to sessions. It is safe for concurrent use.
type Directory struct {
	// Removed reports whether a device's tokens are revoked. Such a device has no access,
	// even if it could not be deleted because the store was unreachable. The field must be
	// set before the first use. By default, no device is removed.
	Removed func(Device) bool

	// Revoked reports whether one of the origins is revoked. The field must be set before
	// the first use. By default, none is revoked.
	Revoked func(tenant string, origins []auth.Origin) bool

	store Store
	now   func() time.Time

	mu     sync.Mutex           // guards polled
	polled map[string]time.Time // time of the next allowed poll by request ID
}

// NewDirectory returns a Directory that uses store.
func NewDirectory(store Store) *Directory {
	return &Directory{
		store: store, now: time.Now, polled: map[string]time.Time{},
		Removed: func(Device) bool { return false }, Revoked: func(string, []auth.Origin) bool { return false },
	}
}

// Prefixes of records' keys. In a key, secrets and texts of any length are hashed.
const (
	personPrefix  = "person."
	devicePrefix  = "device."
	invitePrefix  = "invite."
	requestPrefix = "request."
	setupPrefix   = "setup."
)

// BriefRecords returns the prefixes of keys whose removed records do no harm if they return: a request
// for access is useless after RequestTTL, and a removed link has expired or its token is revoked.
func BriefRecords() []string { return []string{requestPrefix, sharePrefix} }

func personKey(tenant, subject string) string { return personPrefix + tenant + "." + hashed(subject) }

func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// update applies change to a record. The argument of change is nil if the record is
// missing; a nil result deletes it.
func update[T any](s Store, key string, change func(old *T) (*T, error)) error {
	return s.Update(key, func(raw []byte) ([]byte, error) {
		var old *T
		if raw != nil {
			old = new(T)
			if err := json.Unmarshal(raw, old); err != nil {
				return nil, fmt.Errorf("record %s: %w", key, err)
			}
		}
		changed, err := change(old)
		if err != nil || changed == nil {
			return nil, err
		}
		return json.Marshal(changed)
	})
}

// errDamaged reports a record that this relay cannot read.
var errDamaged = errors.New("unreadable")

// all returns the records of a type by their keys. It skips damaged records, which the
// error names; it then wraps errDamaged.
func all[T any](s Store, prefix string) (list map[string]T, err error) {
	raws, err := s.All(prefix)
	list = make(map[string]T, len(raws))
	for key, raw := range raws {
		var one T
		if e := json.Unmarshal(raw, &one); e != nil {
			err = errors.Join(err, fmt.Errorf("record %s is %w: %w", key, errDamaged, e))
			continue
		}
		list[key] = one
	}
	return list, err
}

// exceptDamaged returns an error of [all], but nil for damaged records: a damaged record must not stop
// the others.
func exceptDamaged(err error) error {
	if errors.Is(err, errDamaged) {
		return nil
	}
	return err
}

func get[T any](s Store, key string) (one T, err error) {
	raw, err := s.Get(key)
	switch {
	case err != nil:
		return one, err
	case raw == nil:
		return one, ErrNone
	}
	if err := json.Unmarshal(raw, &one); err != nil {
		return one, fmt.Errorf("record %s: %w", key, err)
	}
	return one, nil
}

// Invite stores an invitation and returns its secret. A setup invitation replaces earlier
// ones by the same relay for the same tenant.
func (d *Directory) Invite(i Invite) (secret string, err error) {
	i.date(d)
	if err := errors.Join(i.Person.check(), roomFor(i.Person.Subject, i.Person.Origins)); err != nil {
		return "", err
	}
	there, err := all[Invite](d.store, invitePrefix)
	if err := exceptDamaged(err); err != nil {
		return "", err
	}
	out := 0
	for key, other := range there {
		if other.Setup && i.Setup && other.Relay == i.Relay && other.Person.Tenant == i.Person.Tenant {
			if err := d.store.Update(key, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
				return "", err
			}
		} else if other.Person.Tenant == i.Person.Tenant && other.Device == "" && !d.now().After(other.Expires) {
			out++
		}
	}
	if out >= maxInvitesOut {
		return "", ErrTooMany
	}
	if err := d.roomOf(&i)(i.Person.Tenant); err != nil {
		return "", err
	}
	secret = rand.Text()
	return secret, update(d.store, invitePrefix+hashed(secret), func(*Invite) (*Invite, error) { return &i, nil })
}

// roomIn returns ErrFull if a tenant has as many records as are free, so that no tenant leaves
// no room for others. Requests for access do not count: they have a bound of their own, and
// name any tenant without proof.
func (d *Directory) roomIn(tenant string) error {
	raws, err := d.store.All("")
	own := 0
	for key, raw := range raws {
		var one struct {
			Tenant string
			Person struct{ Tenant string } // in an invitation
		}
		_ = json.Unmarshal(raw, &one) // a damaged record takes room, whoever has it
		if !strings.HasPrefix(key, requestPrefix) && (one.Tenant == tenant || one.Person.Tenant == tenant) {
			own++
		}
	}
	if own >= MaxRecords-len(raws) {
		return ErrFull
	}
	return err
}

// roomOf returns the function that checks whether there is room for what an invitation adds. An
// operator's invitation, which derives from no grant, needs no room in the tenant: it is the way
// into a tenant whose people have used up all room.
func (d *Directory) roomOf(i *Invite) func(tenant string) error {
	if len(i.Person.Origins) == 0 {
		return func(string) error { return nil }
	}
	return d.roomIn
}

// newPerson returns room's error if a person is new.
func (d *Directory) newPerson(tenant, subject string, room func(tenant string) error) error {
	_, err := get[Person](d.store, personKey(tenant, subject))
	if errors.Is(err, ErrNone) {
		return room(tenant)
	}
	return err
}

// HasOwner reports whether a tenant has an owner.
func (d *Directory) HasOwner(tenant string) (bool, error) {
	people, err := d.People(tenant)
	return slices.ContainsFunc(people, func(p Person) bool { return p.Owns() }), err
}

// Accept gives a device access with an invitation's secret, which is then used up. Only
// the first device that presents the secret gets access. That device may try again if the
// store was unreachable, or if no answer has reached it.
func (d *Directory) Accept(secret string, device Device) (Device, error) {
	key := invitePrefix + hashed(secret)
	var invite Invite
	var again bool
	err := update(d.store, key, func(old *Invite) (*Invite, error) {
		if old == nil || d.now().After(old.Expires) || old.Key != "" && old.Key != device.Key {
			return nil, ErrUsed
		}
		again = old.Key != ""
		old.Key = device.Key
		invite = *old
		return old, nil
	})
	if err != nil {
		return Device{}, err
	}
	if invite.Device != "" {
		known, _, err := d.Device(invite.Device)
		if errors.Is(err, ErrNone) { // it was removed
			err = ErrUsed
		}
		return known, err
	}
	if err := invite.stands(d); errors.Is(err, errByRemoved) {
		return Device{}, errors.Join(err, ErrUsed)
	} else if err != nil {
		return Device{}, err
	}
	if err := d.enter(&invite, key, again); err != nil {
		return Device{}, err
	}
	device.ID, device.Tenant, device.Subject, device.Origins = deviceID(key), invite.Person.Tenant, invite.Person.Subject, invite.Person.Origins
	if device, err = d.add(device, d.roomOf(&invite)); err != nil {
		return Device{}, err
	}
	_ = update(d.store, key, func(old *Invite) (*Invite, error) { // after an error, a further attempt does all this again
		if old != nil {
			old.Device = device.ID
		}
		return old, nil
	})
	return device, nil
}

// A setup lets one invitation at a time set up a tenant. Otherwise two relays could each store an
// owner before either knows of the other's.
type setup struct {
	Invite string    `json:"invite"` // the record's key
	Until  time.Time `json:"until"`
}

// begin stores the setup of an invitation, or returns ErrBegun.
func (d *Directory) begin(tenant, invite string) error {
	return update(d.store, setupPrefix+tenant, func(old *setup) (*setup, error) {
		if old != nil && old.Invite != invite && d.now().Before(old.Until) {
			return nil, ErrBegun
		}
		return &setup{invite, d.now().Add(RequestTTL)}, nil
	})
}

// maySetUp returns ErrUsed if a tenant has an owner, also if a different relay has just stored the
// owner. If again is set, the same device repeats its attempt, and the first attempt may have stored
// the owner; the error is then ErrUsed only if the tenant also has a device.
func (d *Directory) maySetUp(tenant string, again bool) error {
	if err := d.store.CatchUp(); err != nil {
		return err
	}
	owned, err := d.HasOwner(tenant)
	if err == nil && owned && again {
		var devices []Device
		devices, err = d.allDevices(tenant, "")
		owned = len(devices) > 0
	}
	if err == nil && owned {
		err = ErrUsed
	}
	return err
}

// enter stores an invited person. key is the invitation's. It refuses a setup invitation with the
// error of maySetUp, which also explains again, or with that of begin.
func (d *Directory) enter(invite *Invite, key string, again bool) error {
	person := &invite.Person
	if invite.Setup {
		begun := d.begin(person.Tenant, key)
		if err := cmp.Or(d.maySetUp(person.Tenant, again), begun); err != nil {
			return err
		}
	}
	if err := d.newPerson(person.Tenant, person.Subject, d.roomOf(invite)); err != nil {
		return err
	}
	return update(d.store, personKey(person.Tenant, person.Subject), func(old *Person) (*Person, error) {
		if invite.Setup && !again && old != nil {
			return nil, ErrUsed // a different person was first, at another relay
		}
		if old != nil && len(person.Origins) > 0 && !d.Revoked(old.Tenant, old.Origins) {
			if !old.SameAuthority(person) {
				return nil, ErrOther
			}
			return old, nil // the person keeps the grants of the first invitation
		}
		return person, nil
	})
}

// SignIn gives a device access after its person has signed in at an identity provider.
func (d *Directory) SignIn(p Person, device Device) (Device, error) {
	p.Name = Clean(p.Name)
	if err := errors.Join(p.check(), d.newPerson(p.Tenant, p.Subject, d.roomIn)); err != nil {
		return Device{}, err
	}
	err := update(d.store, personKey(p.Tenant, p.Subject), func(old *Person) (*Person, error) {
		if p.Added = d.now().UTC(); old != nil {
			p.Added = old.Added
		}
		if old != nil && old.Issuer != p.Issuer {
			return nil, errors.New("that name belongs to an invited person; the relay's owner must remove that person first")
		}
		return &p, nil
	})
	if err != nil {
		return Device{}, err
	}
	device.ID, device.Tenant, device.Subject = deviceID(rand.Text()), p.Tenant, p.Subject
	return d.add(device, d.roomIn)
}

// date sets the time at which an invitation is made, unless it is set. If its person was removed in the
// same second, the time is a second later, because the removal ends earlier invitations only.
func (i *Invite) date(d *Directory) {
	if i.Person.Added.IsZero() {
		i.Person.Added = d.now().UTC()
	}
	if i.personRemoved(d) {
		i.Person.Added = i.Person.Added.Add(time.Second)
	}
}

// personRemoved reports whether an invitation's person was removed after it was made.
func (i *Invite) personRemoved(d *Directory) bool {
	return d.Removed(Device{Tenant: i.Person.Tenant, Subject: i.Person.Subject, Added: i.Person.Added})
}

// stands returns an error if an invitation's person or giver was removed.
func (i *Invite) stands(d *Directory) error {
	if i.personRemoved(d) {
		return ErrUsed
	}
	return d.stillIn(i.Person.Tenant, i.By, i.Person.Origins)
}

// errByRemoved reports that the device that gave access was removed, or that an origin of
// the access is revoked.
var errByRemoved = errors.New("the device that let you in was removed")

// stillIn returns errByRemoved if one of the origins is revoked, or if the device that gave
// access was removed. An empty device means that no device was involved.
func (d *Directory) stillIn(tenant, device string, origins []auth.Origin) error {
	if d.Revoked(tenant, origins) {
		return errByRemoved
	}
	if device == "" {
		return nil
	}
	by, err := get[Device](d.store, devicePrefix+device)
	if errors.Is(err, ErrNone) || err == nil && d.Removed(by) {
		return errByRemoved
	}
	return err
}

// add stores a new device with its ID, if there is room for it. If the person already has a device with the same key, that
// device gets the new level instead.
func (d *Directory) add(device Device, room func(tenant string) error) (Device, error) {
	if err := auth.CheckThumbprint(device.Key); err != nil {
		return Device{}, err
	}
	theirs, err := d.Devices(device.Tenant, device.Subject)
	if err != nil {
		return Device{}, err
	}
	for _, known := range theirs {
		if known.Key != device.Key {
			continue
		}
		if known.Access == device.Access {
			return known, nil
		}
		known.Access = device.Access
		return known, update(d.store, devicePrefix+known.ID, func(old *Device) (*Device, error) {
			if old == nil {
				return nil, ErrNone
			}
			old.Access = device.Access
			return old, nil
		})
	}
	if len(theirs) >= maxOfPerson {
		return Device{}, ErrTooMany
	}
	if err := room(device.Tenant); err != nil {
		return Device{}, err
	}
	device.Added, device.Name = d.now().UTC(), Clean(device.Name)
	device.Seen = device.Added
	err = update(d.store, devicePrefix+device.ID, func(old *Device) (*Device, error) {
		if old != nil { // another attempt has just stored it
			device = *old
		}
		return &device, nil
	})
	return device, err
}

// Clean makes a name that a device claims fit for display: it shortens the name and
// removes unprintable characters.
func Clean(name string) string {
	name = strings.Map(func(r rune) rune {
		if auth.CheckSubject(string(r)) != nil || r == '\ufffd' {
			return -1
		}
		return r
	}, name)
	for len(name) > maxName {
		runes := []rune(name)
		name = string(runes[:len(runes)-1])
	}
	return strings.TrimSpace(name)
}

// Device returns a device and its person.
func (d *Directory) Device(id string) (Device, Person, error) {
	if strings.ContainsAny(id, " ") || len(id) > maxName {
		return Device{}, Person{}, ErrNone
	}
	device, err := get[Device](d.store, devicePrefix+id)
	if err == nil && d.Removed(device) {
		err = ErrNone
	}
	if err != nil {
		return Device{}, Person{}, err
	}
	person, err := get[Person](d.store, personKey(device.Tenant, device.Subject))
	return device, person, err
}

// Seen records a device's address and the time, at most once per seenEvery for the same
// address.
func (d *Directory) Seen(id, place string) error {
	if known, err := get[Device](d.store, devicePrefix+id); err != nil || d.now().Sub(known.Seen) < seenEvery && known.Place == place {
		return err
	}
	return update(d.store, devicePrefix+id, func(old *Device) (*Device, error) {
		if old == nil {
			return nil, ErrNone
		}
		if now := d.now().UTC(); now.Sub(old.Seen) >= seenEvery || old.Place != place {
			old.Seen, old.Place = now, place
		}
		return old, nil
	})
}

// Devices returns a person's devices, newest first. If subject is "", it returns all
// devices in the tenant. It omits devices that this relay cannot read.
func (d *Directory) Devices(tenant, subject string) ([]Device, error) {
	list, err := d.allDevices(tenant, subject)
	return list, exceptDamaged(err)
}

// allDevices is Devices, with an error that wraps errDamaged if devices are omitted.
func (d *Directory) allDevices(tenant, subject string) ([]Device, error) {
	found, err := all[Device](d.store, devicePrefix)
	list := slices.DeleteFunc(slices.Collect(maps.Values(found)), func(one Device) bool {
		return one.Tenant != tenant || subject != "" && one.Subject != subject || d.Removed(one)
	})
	slices.SortFunc(list, func(a, b Device) int { return b.Added.Compare(a.Added) })
	return list, err
}

// Remove deletes a device. The device gets no more tokens, and its open invitations and
// approvals end. The caller must revoke its existing tokens.
func (d *Directory) Remove(id string) error {
	return update(d.store, devicePrefix+id, func(old *Device) (*Device, error) {
		if old == nil {
			return nil, ErrNone
		}
		return nil, nil
	})
}

// Forget deletes a person with all devices that this relay can read. The caller must revoke their tokens,
// which also ends the other devices.
func (d *Directory) Forget(tenant, subject string) error {
	devices, err := forget(d.store, devicePrefix, func(one *Device) bool { return one.Tenant == tenant && one.Subject == subject })
	if err != nil {
		return err
	}
	return d.store.Update(personKey(tenant, subject), func(old []byte) ([]byte, error) {
		if old == nil && len(devices) == 0 {
			return nil, ErrNone
		}
		return nil, nil
	})
}

// People returns the people in a tenant, sorted by subject, except those with a revoked
// origin.
func (d *Directory) People(tenant string) ([]Person, error) {
	found, err := all[Person](d.store, personPrefix+tenant+".")
	list := slices.DeleteFunc(slices.Collect(maps.Values(found)), func(one Person) bool { return d.Revoked(tenant, one.Origins) })
	slices.SortFunc(list, func(a, b Person) int { return strings.Compare(a.Subject, b.Subject) })
	return list, err
}
