package people

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/fair"
)

// How long things are good.
const (
	AccessTTL  = 15 * time.Minute // tokens of devices
	RequestTTL = 10 * time.Minute
	MaxTries   = 5               // wrong codes of a request
	PollEvery  = 2 * time.Second // how often what asks may look whether it was approved

	seenEvery = time.Minute // how exactly it is known when a device was there last
)

// Bounds.
const (
	maxName       = 128  // bytes of what things are called by those who ask
	maxPolled     = 1024 // requests, of which is known when they were polled
	maxOfPerson   = 64   // devices
	maxInvitesOut = 256  // of a tenant
)

// Room for requests that wait: of one tenant, or of none, since most name none; and of all
// tenants together. A request names its tenant without proof, so both have the same parts
// for a network.
var (
	roomOfTenant = fair.Room{Places: 256, Networks: requestsOfNetworks}
	roomOfAll    = fair.Room{Places: 512, Networks: requestsOfNetworks}

	requestsOfNetworks = [2]int{64, 16}
)

// Reasons why something is refused.
var (
	ErrNone     = errors.New("there is no such thing, or it is over")
	ErrUsed     = errors.New("this link is used up, or its time is over; ask for another (relay setup-link, on the relay's machine)")
	ErrOther    = errors.New("a person of that name is in already, and may do something else; ask for a link with a different name")
	ErrWrong    = errors.New("that is not the code which the other side shows")
	ErrTries    = errors.New("too many wrong codes: the request is over")
	ErrTooMany  = errors.New("too many at a time; try again later")
	ErrPending  = errors.New("nobody has decided yet")
	ErrSlowDown = errors.New("asked too often; wait longer")
	ErrDenied   = errors.New("refused by who was asked")
	ErrGone     = errors.New("the code's time is over; begin anew")
)

// A Person is somebody who uses hosts of a tenant.
type Person struct {
	Tenant   string      `json:"tenant"`
	Subject  string      `json:"subject"`
	Access   auth.Access `json:"access"`
	Hosts    []string    `json:"hosts"`
	Channels []string    `json:"channels,omitempty"`
	Methods  []string    `json:"methods,omitempty"`
	Files    bool        `json:"files,omitempty"`
	Reverse  bool        `json:"reverse,omitempty"`
	Most     int         `json:"maxConnections,omitempty"` // at a time; 0: as the relay is set
	Added    time.Time   `json:"added"`

	// Origins are the grants from which those of the person are derived: of a record, those of the invitation by which
	// the person came in; of the holder of a token, those of every grant that the token makes.
	Origins []auth.Origin `json:"origins,omitempty"`

	// Of who has come by an identity provider.
	Name     string          `json:"name,omitempty"`   // as people call them
	Issuer   string          `json:"issuer,omitempty"` // the provider
	Claims   json.RawMessage `json:"claims,omitempty"` // what it has said that rules are about
	SignedIn time.Time       `json:"signedIn,omitzero"`
}

// Client returns what a token of the person's allows.
func (p *Person) Client() auth.Client {
	return auth.Client{
		Tenant: p.Tenant, Subject: p.Subject, Access: p.Access, Hosts: p.Hosts, Channels: p.Channels, Methods: p.Methods, Files: p.Files,
		Reverse: p.Reverse, MaxConnections: p.Most, Origins: p.Origins,
	}
}

// May has the person be allowed what a token allows, in its tenant.
func (p *Person) May(c auth.Client) {
	p.Tenant, p.Access, p.Hosts, p.Channels, p.Methods, p.Files = c.Tenant, c.Access, c.Hosts, c.Channels, c.Methods, c.Files
	p.Reverse, p.Most = c.Reverse, c.MaxConnections
}

// SameAuthority reports whether an invitation gives the person what the person already has.
func (p *Person) SameAuthority(invited *Person) bool {
	return p.Issuer == "" && p.Access == invited.Access && slices.Equal(p.Hosts, invited.Hosts) &&
		slices.Equal(p.Channels, invited.Channels) && slices.Equal(p.Methods, invited.Methods)
}

// Owns reports whether the person sees to who may use the tenant's hosts.
func (p *Person) Owns() bool { return p.Access.Includes(auth.AccessAdmin) }

// OwnsAll reports whether the person owns all hosts of the tenant, and so sees to everybody.
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
	Place   string    `json:"place"` // address that it was seen at

	Access auth.Access `json:"access,omitempty"` // what it may do at most; "": all that its person may

	Origins []auth.Origin `json:"origins,omitempty"` // the grants by which it came in
}

// Narrow lowers what its person may do to the device's own level.
func (d *Device) Narrow(may *auth.Client) {
	if d.Access != "" {
		may.Access = may.Access.Less(d.Access)
	}
}

// roomFor reports why a device of the subject cannot come in by grants: its tokens could not carry them.
func roomFor(subject string, origins []auth.Origin) error {
	device := Device{ID: newDeviceID(), Subject: subject, Origins: origins}
	return auth.CheckOrigins(device.Derive())
}

func newDeviceID() string { return "device-" + strings.ToLower(rand.Text()[:16]) }

// Derive returns the origins of a grant that the device makes.
func (d *Device) Derive() []auth.Origin {
	return auth.DeriveFromDevice(d.ID, d.Subject, d.Added, d.Origins)
}

// An Invite lets a device in that has its secret.
type Invite struct {
	Person  Person    `json:"person"`
	Setup   bool      `json:"setup,omitempty"` // of a new relay: over as soon as somebody is in
	Relay   string    `json:"relay,omitempty"` // that has made it, for setup
	Key     string    `json:"key,omitempty"`   // thumbprint of the device that has opened it: nobody else's any more
	By      string    `json:"by,omitempty"`    // device that made it, and without which it is over; "": none
	Expires time.Time `json:"expires"`
}

// A Directory lets people and devices in. It is safe for concurrent use.
type Directory struct {
	// Removed reports a device whose tokens are revoked: it is out, whatever the store has, which may
	// have been away. Set it before anything else uses the Directory. Default: none is.
	Removed func(Device) bool

	// Revoked reports whether a grant is revoked among the origins of another. As Removed.
	Revoked func(tenant string, origins []auth.Origin) bool

	store Store
	now   func() time.Time

	mu     sync.Mutex           // guards polled
	polled map[string]time.Time // when it may be looked again, by requests' IDs
}

// NewDirectory returns a Directory.
func NewDirectory(store Store) *Directory {
	return &Directory{
		store: store, now: time.Now, polled: map[string]time.Time{},
		Removed: func(Device) bool { return false }, Revoked: func(string, []auth.Origin) bool { return false },
	}
}

// Keys of records. What is secret, or of any length, is in them as a hash.
const (
	personPrefix  = "person."
	devicePrefix  = "device."
	invitePrefix  = "invite."
	requestPrefix = "request."
)

func personKey(tenant, subject string) string { return personPrefix + tenant + "." + hashed(subject) }

func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// update changes a record of a type; change gets nil for none, and returns nil for
// none.
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

// all returns the records of a type.
func all[T any](s Store, prefix string) (list map[string]T, err error) {
	raws, err := s.All(prefix)
	list = make(map[string]T, len(raws))
	for key, raw := range raws {
		var one T
		if e := json.Unmarshal(raw, &one); e != nil {
			err = errors.Join(err, fmt.Errorf("record %s: %w", key, e))
			continue
		}
		list[key] = one
	}
	return list, err
}

// get returns one record.
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

// Invite makes an invitation, and returns its secret. For setup, it takes the place of those
// that there were for the tenant from the same relay.
func (d *Directory) Invite(i Invite) (secret string, err error) {
	if i.Person.Added.IsZero() {
		i.Person.Added = d.now().UTC()
	}
	if err := errors.Join(i.Person.check(), roomFor(i.Person.Subject, i.Person.Origins)); err != nil {
		return "", err
	}
	there, err := all[Invite](d.store, invitePrefix)
	if err != nil {
		return "", err
	}
	out := 0
	for key, other := range there {
		if other.Setup && i.Setup && other.Relay == i.Relay && other.Person.Tenant == i.Person.Tenant {
			if err := d.store.Update(key, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
				return "", err
			}
		} else if other.Person.Tenant == i.Person.Tenant && !d.now().After(other.Expires) {
			out++
		}
	}
	if out >= maxInvitesOut {
		return "", ErrTooMany
	}
	secret = rand.Text()
	return secret, update(d.store, invitePrefix+hashed(secret), func(*Invite) (*Invite, error) { return &i, nil })
}

// HasOwner reports whether somebody owns a tenant.
func (d *Directory) HasOwner(tenant string) (bool, error) {
	people, err := d.People(tenant)
	return slices.ContainsFunc(people, func(p Person) bool { return p.Owns() }), err
}

// Accept lets a device in that has the secret of an invitation, which is used up: of
// several, the first. It may try again where the store went away in the middle.
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
	if err := d.stillIn(invite.Person.Tenant, invite.By, invite.Person.Origins); errors.Is(err, errByRemoved) {
		return Device{}, errors.Join(err, ErrUsed)
	} else if err != nil {
		return Device{}, err
	}
	if err := d.enter(&invite, again); err != nil {
		return Device{}, err
	}
	device.Tenant, device.Subject, device.Origins = invite.Person.Tenant, invite.Person.Subject, invite.Person.Origins
	if device, err = d.add(device); err != nil {
		return Device{}, err
	}
	_ = d.store.Update(key, func([]byte) ([]byte, error) { return nil, nil }) // else it stays used up, until its time is over
	return device, nil
}

// enter makes somebody known who was invited. For setup, that is the first only, unless it is
// the same device again, and no other has come in.
func (d *Directory) enter(invite *Invite, again bool) error {
	person := &invite.Person
	if invite.Setup {
		owned, err := d.HasOwner(person.Tenant)
		if err == nil && owned && again {
			var devices []Device
			devices, err = d.Devices(person.Tenant, "")
			owned = len(devices) > 0
		}
		if err != nil {
			return err
		}
		if owned {
			return ErrUsed
		}
	}
	return update(d.store, personKey(person.Tenant, person.Subject), func(old *Person) (*Person, error) {
		if invite.Setup && !again && old != nil {
			return nil, ErrUsed // somebody was first, at another relay
		}
		if old != nil && len(person.Origins) > 0 && !d.Revoked(old.Tenant, old.Origins) {
			if !old.SameAuthority(person) {
				return nil, ErrOther
			}
			return old, nil // the first invitation stays that of the person
		}
		return person, nil
	})
}

// SignIn lets a device in of somebody who has signed in at an identity provider.
func (d *Directory) SignIn(p Person, device Device) (Device, error) {
	p.Name = Clean(p.Name)
	if err := p.check(); err != nil {
		return Device{}, err
	}
	err := update(d.store, personKey(p.Tenant, p.Subject), func(old *Person) (*Person, error) {
		if p.Added = d.now().UTC(); old != nil {
			p.Added = old.Added
		}
		if old != nil && old.Issuer != p.Issuer {
			return nil, errors.New("somebody was invited by that name; who owns the relay removes them first")
		}
		return &p, nil
	})
	if err != nil {
		return Device{}, err
	}
	device.Tenant, device.Subject = p.Tenant, p.Subject
	return d.add(device)
}

// errByRemoved reports what a device has said yes to that is not in any more.
var errByRemoved = errors.New("the device that let you in was removed")

// stillIn reports whether a device may still let others in, and what it came in by; "" stands for no device.
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

// add keeps a new device. A key that the person has already is the same device, with the
// level that it is given now.
func (d *Directory) add(device Device) (Device, error) {
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
	device.ID, device.Added = newDeviceID(), d.now().UTC()
	device.Seen, device.Name = device.Added, Clean(device.Name)
	return device, update(d.store, devicePrefix+device.ID, func(*Device) (*Device, error) { return &device, nil })
}

// Clean makes of what somebody calls a thing what can be shown: of a bounded length, and
// without characters that cannot be printed.
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

// Device returns a device, and its person.
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

// Seen notes where a device was, now and then.
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

// Devices returns the devices of a person, or of all of a tenant for "", the newest
// first.
func (d *Directory) Devices(tenant, subject string) (list []Device, err error) {
	found, err := all[Device](d.store, devicePrefix)
	for _, one := range found {
		if one.Tenant == tenant && (subject == "" || one.Subject == subject) && !d.Removed(one) {
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b Device) int { return b.Added.Compare(a.Added) })
	return list, err
}

// Remove forgets a device: it gets no more tokens, and whom it has let in who has not come
// yet does not come in. The tokens that it has, the caller revokes.
func (d *Directory) Remove(id string) error {
	return update(d.store, devicePrefix+id, func(old *Device) (*Device, error) {
		if old == nil {
			return nil, ErrNone
		}
		return nil, nil
	})
}

// Forget forgets a person with their devices. Their tokens the caller revokes.
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

// People returns those of a tenant, by their names.
func (d *Directory) People(tenant string) (list []Person, err error) {
	found, err := all[Person](d.store, personPrefix+tenant+".")
	for _, one := range found {
		if !d.Revoked(tenant, one.Origins) {
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b Person) int { return strings.Compare(a.Subject, b.Subject) })
	return list, err
}
