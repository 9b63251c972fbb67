package people

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/fair"
)

// A Kind says whether a device or a host-agent requests access.
type Kind string

const (
	OfDevice Kind = "device" // a browser or a command-line client, which will act for the approving person
	OfHost   Kind = "host"   // a host-agent, whose host the approving person names
)

// A Request waits for a person's approval.
type Request struct {
	ID      string            `json:"id"` // in links; not secret
	Kind    Kind              `json:"kind"`
	Tenant  string            `json:"tenant,omitempty"`  // the only tenant that may approve; "": any
	Subject string            `json:"subject,omitempty"` // the only person who may approve; "": anyone with the code
	Key     string            `json:"key"`               // thumbprint
	HostKey ed25519.PublicKey `json:"hostKey,omitempty"` // a host-agent's key
	Name    string            `json:"name"`              // proposed name
	Machine string            `json:"machine,omitempty"` // claimed by the device, unverified
	User    string            `json:"user,omitempty"`
	Address string            `json:"address"` // source address at the relay
	Made    time.Time         `json:"made"`
	Expires time.Time         `json:"expires"`

	Code   string `json:"code"` // the code that a person types
	Secret string `json:"secret"`
	Wrong  int    `json:"wrong,omitempty"` // wrong codes so far

	Denied   bool      `json:"denied,omitempty"`
	Approved *Approval `json:"approved,omitempty"`
	Device   string    `json:"device,omitempty"` // the ID of the approved device, once it has access
}

// An Approval records who has approved a request, and the granted authority.
type Approval struct {
	Tenant  string `json:"tenant"`
	Subject string `json:"by"`
	Device  string `json:"device,omitempty"` // the approving device; "": none
	Host    string `json:"host,omitempty"`   // the host's name, for a host-agent

	// For a host-agent that has been answered: the ID and time of its credential.
	Credential string    `json:"credential,omitempty"`
	Issued     time.Time `json:"issued,omitzero"`

	Access  auth.Access   `json:"access,omitempty"`  // maximum level of a device; "": its person's
	Origins []auth.Origin `json:"origins,omitempty"` // the grants of the approving person or device
}

// A Decision is a person's decision about a request.
type Decision struct {
	Approve bool
	Code    string      // what the person typed: the whole code, or its end
	Device  string      // the deciding device; "": none
	Host    string      // the host's name, to approve a host-agent
	Access  auth.Access // maximum level of the approved device; "": the same as its person's
}

// Fingerprint returns the fingerprint of the key, which the device shows too.
func (r *Request) Fingerprint() string { return auth.Fingerprint(r.Key) }

// A code has eight letters that are hard to confuse and form no words (RFC 8628, section
// 6.1).
const (
	codeLetters = "BCDFGHJKLMNPQRSTVWXZ"
	codeLength  = 8
	typedLength = 4 // with a link to the request, this number of letters from the end is enough
)

func newCode() string {
	var b strings.Builder
	for b.Len() < codeLength {
		n, err := rand.Int(rand.Reader, big.NewInt(int64(len(codeLetters))))
		if err != nil {
			panic(err) // crypto/rand never fails
		}
		b.WriteByte(codeLetters[n.Int64()])
	}
	return b.String()
}

// ShowCode formats a code for people: BCDF-GHJK.
func ShowCode(code string) string {
	return code[:codeLength-typedLength] + "-" + code[codeLength-typedLength:]
}

// ReadCode normalizes a typed code: it changes letters to upper case, and drops all
// characters that no code has, such as spaces and hyphens.
func ReadCode(typed string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(codeLetters, r) {
			return r
		}
		return -1
	}, strings.ToUpper(typed))
}

// Ask stores a request, and returns it with its code and secret. r.Key is the thumbprint
// of the key that requests access. If there are too many requests, the oldest one from
// the busiest network is dropped.
func (d *Directory) Ask(r Request) (Request, error) {
	if err := auth.CheckThumbprint(r.Key); err != nil {
		return Request{}, err
	}
	if r.Tenant != "" {
		if err := ahp.CheckName("tenant", r.Tenant); err != nil {
			return Request{}, err
		}
	}
	if err := d.makeRoom(&r); err != nil {
		return Request{}, err
	}
	r.ID, r.Secret, r.Code = strings.ToLower(rand.Text()[:10]), rand.Text(), newCode()
	r.Name, r.Machine, r.User = Clean(r.Name), Clean(r.Machine), Clean(r.User)
	r.Made = d.now().UTC()
	r.Expires = r.Made.Add(RequestTTL)
	r.Wrong, r.Denied, r.Approved = 0, false, nil
	kept := r
	kept.Secret = hashed(r.Secret)
	return r, update(d.store, requestPrefix+r.ID, func(*Request) (*Request, error) { return &kept, nil })
}

// makeRoom drops requests from the busiest networks until r fits, in its tenant and in
// total. Approved requests are not dropped.
func (d *Directory) makeRoom(r *Request) error {
	waiting, err := d.requests()
	if err != nil {
		return err
	}
	list := slices.SortedFunc(maps.Values(waiting), func(a, b Request) int { return a.Made.Compare(b.Made) })
	comes, _ := netip.ParseAddr(r.Address)
	evict := func(room fair.Room, counts func(*Request) bool) error {
		for {
			var there []netip.Addr
			var index []int
			for i := range list {
				if list[i].Approved == nil && counts(&list[i]) {
					at, _ := netip.ParseAddr(list[i].Address)
					there, index = append(there, at), append(index, i)
				}
			}
			out := room.GivesWay(there, comes)
			if out < 0 {
				return nil
			}
			gone := list[index[out]]
			list = slices.Delete(list, index[out], index[out]+1)
			err := update(d.store, requestPrefix+gone.ID, func(old *Request) (*Request, error) {
				if old != nil && old.Approved != nil { // meanwhile
					return old, nil
				}
				return nil, nil
			})
			if err != nil {
				return err
			}
		}
	}
	err = evict(roomOfTenant, func(other *Request) bool { return other.Tenant == r.Tenant })
	if err == nil {
		err = evict(roomOfAll, func(*Request) bool { return true })
	}
	return err
}

// requests returns the requests that have not expired, decided or not. It deletes the
// expired requests.
func (d *Directory) requests() (waiting map[string]Request, err error) {
	found, err := all[Request](d.store, requestPrefix)
	if err := exceptDamaged(err); err != nil {
		return nil, err
	}
	for key, r := range found {
		if d.now().Before(r.Expires) {
			continue
		}
		delete(found, key)
		if err := d.store.Update(key, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// CatchUp returns when Find knows every request that was made before, at any relay.
func (d *Directory) CatchUp() error { return d.store.CatchUp() }

// Find returns a request that a person may decide about, by its ID or code. It may lack a request
// that a different relay has just stored.
func (d *Directory) Find(idOrCode string, who *Person) (Request, error) {
	waiting, err := d.requests()
	if err != nil {
		return Request{}, err
	}
	code := ReadCode(idOrCode)
	for _, r := range waiting {
		byCode := len(code) == codeLength && subtle.ConstantTimeCompare([]byte(code), []byte(r.Code)) == 1
		if (r.ID == idOrCode || byCode) && r.isFor(who) && r.Approved == nil && !r.Denied {
			return r, nil
		}
	}
	return Request{}, ErrNone
}

func (r *Request) isFor(who *Person) bool {
	return (r.Tenant == "" || r.Tenant == who.Tenant) && (r.Subject == "" || r.Subject == who.Subject)
}

// Decide approves or denies a request. An approval needs the typed code, or its end.
// The caller has checked that the person may grant the level and the host.
func (d *Directory) Decide(id string, who *Person, say Decision) (Request, error) {
	var decided Request
	var wrong error
	err := update(d.store, requestPrefix+id, func(r *Request) (*Request, error) {
		wrong = nil
		if r == nil || !r.isFor(who) || r.Approved != nil || r.Denied || d.now().After(r.Expires) {
			return nil, ErrNone
		}
		code := ReadCode(say.Code)
		switch {
		case !say.Approve:
			r.Denied = true
		case code != r.Code && code != r.Code[codeLength-typedLength:]:
			if r.Wrong++; r.Wrong >= MaxTries {
				r.Denied = true
				wrong = ErrTries
			} else {
				wrong = ErrWrong
			}
		case roomFor(who.Subject, who.Origins) != nil:
			return nil, roomFor(who.Subject, who.Origins)
		case r.Kind == OfHost && ahp.CheckName("host", say.Host) != nil:
			return nil, ahp.CheckName("host", say.Host)
		default:
			r.Approved = &Approval{Tenant: who.Tenant, Subject: who.Subject, Device: say.Device, Host: say.Host, Access: say.Access, Origins: who.Origins}
		}
		decided = *r
		return r, nil
	})
	if err == nil {
		err = wrong
	}
	return decided, err
}

// Asked returns the key's thumbprint in a request, whether it is decided or not. The
// caller must present the request's secret.
func (d *Directory) Asked(id, secret string) (key string, err error) {
	asked, err := get[Request](d.store, requestPrefix+id)
	switch {
	case errors.Is(err, ErrNone):
		return "", ErrGone
	case err != nil:
		return "", err
	case subtle.ConstantTimeCompare([]byte(asked.Secret), []byte(hashed(secret))) != 1:
		return "", ErrNone
	}
	return asked.Key, nil
}

// Poll returns an approved request. The caller must present its secret, and the thumbprint of
// the proved key. For a device, it also returns the new device. It returns the same again until the request's time
// ends, because the answer may be lost. A host-agent's credential has the same ID and time each time, so
// that its revocation ends all copies.
func (d *Directory) Poll(id, secret, key string) (r Request, device Device, err error) {
	if r, err = d.approved(id, secret, key); err != nil {
		return r, device, err
	}
	if r.Device != "" {
		if device, _, err = d.Device(r.Device); errors.Is(err, ErrNone) { // it was removed
			err = ErrGone
		}
		return r, device, err
	}
	if err = d.stillIn(r.Approved.Tenant, r.Approved.Device, r.Approved.Origins); errors.Is(err, errByRemoved) {
		err = errors.Join(err, ErrDenied)
	}
	if err == nil && r.Kind == OfDevice { // before the request ends, so that another poll can follow a failure
		device, err = d.add(Device{
			ID: deviceID(requestPrefix + id), Tenant: r.Approved.Tenant, Subject: r.Approved.Subject, Access: r.Approved.Access, Name: r.Name,
			Key: key, Place: r.Address, Origins: r.Approved.Origins,
		}, d.roomIn)
	}
	if err != nil {
		return r, device, err
	}
	err = update(d.store, requestPrefix+id, func(old *Request) (*Request, error) {
		switch {
		case old == nil || old.Approved == nil:
			return nil, ErrGone
		case r.Kind == OfDevice:
			old.Device = device.ID
		case old.Approved.Credential == "":
			old.Approved.Credential, old.Approved.Issued = rand.Text(), d.now().UTC()
		}
		r = *old
		return old, nil
	})
	return r, device, err
}

// approved returns an approved request for a poll, or an error, see Poll.
func (d *Directory) approved(id, secret, key string) (r Request, err error) {
	switch asked, err := d.Asked(id, secret); {
	case err != nil:
		return r, err
	case asked != key:
		return r, ErrNone
	}
	if err := d.mayPoll(id); err != nil {
		return r, err
	}
	err = update(d.store, requestPrefix+id, func(old *Request) (*Request, error) { // changes nothing, but has the newest record
		switch {
		case old == nil, d.now().After(old.Expires):
			return nil, ErrGone
		case old.Denied:
			return nil, ErrDenied
		case old.Approved == nil:
			return nil, ErrPending
		}
		r = *old
		return old, nil
	})
	return r, err
}

// mayPoll returns an error if a request is polled too often.
func (d *Directory) mayPoll(id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.now()
	next, ok := d.polled[id]
	if !ok && len(d.polled) >= maxPolled {
		maps.DeleteFunc(d.polled, func(_ string, next time.Time) bool { return !now.Before(next) })
	}
	if !ok && len(d.polled) >= maxPolled {
		return ErrSlowDown
	}
	d.polled[id] = now.Add(PollEvery)
	if ok && now.Before(next) {
		return ErrSlowDown
	}
	return nil
}
