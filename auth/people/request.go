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

// A Kind is what asks to be let in.
type Kind string

// The kinds.
const (
	OfDevice Kind = "device" // a browser, or a command-line client: it acts for who approves
	OfHost   Kind = "host"   // a host-agent, for the credential of a host that who approves names
)

// A Request waits until somebody approves it.
type Request struct {
	ID      string            `json:"id"` // of links, no secret
	Kind    Kind              `json:"kind"`
	Tenant  string            `json:"tenant,omitempty"`  // that alone may approve; "": any
	Subject string            `json:"subject,omitempty"` // who alone may; "": whoever knows the code
	Key     string            `json:"key"`               // thumbprint
	HostKey ed25519.PublicKey `json:"hostKey,omitempty"` // of a host-agent
	Name    string            `json:"name"`              // that it would like
	Machine string            `json:"machine,omitempty"` // as it says of itself: nobody has looked
	User    string            `json:"user,omitempty"`
	Address string            `json:"address"` // where it asks from, as the relay sees it
	Made    time.Time         `json:"made"`
	Expires time.Time         `json:"expires"`

	Code   string `json:"code"` // as it is typed
	Secret string `json:"secret"`
	Wrong  int    `json:"wrong,omitempty"` // codes that were typed

	Denied   bool      `json:"denied,omitempty"`
	Approved *Approval `json:"approved,omitempty"`
}

// An Approval is what was said to a request.
type Approval struct {
	Tenant  string `json:"tenant"`
	Subject string `json:"by"`
	Device  string `json:"device,omitempty"` // that said so; "": none
	Host    string `json:"host,omitempty"`   // the name, of a host-agent

	Access  auth.Access   `json:"access,omitempty"`  // of a device, at most; "": what its person may
	Origins []auth.Origin `json:"origins,omitempty"` // the grants that said so
}

// A Decision is the answer of who decides about a request.
type Decision struct {
	Approve bool
	Code    string      // as it was typed: all of it, or its end
	Device  string      // of who decides; "": none
	Host    string      // to approve a host-agent: the host's name
	Access  auth.Access // to approve a device: its level at most; "": what its person may
}

// Fingerprint is that of the key, which the other side shows too.
func (r *Request) Fingerprint() string { return auth.Fingerprint(r.Key) }

// Codes have eight letters that are not mistaken for each other, and spell nothing
// (RFC 8628, section 6.1).
const (
	codeLetters = "BCDFGHJKLMNPQRSTVWXZ"
	codeLength  = 8
	typedLength = 4 // of its end, which are typed by who came with a link
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

// ShowCode writes a code as people read it: BCDF-GHJK.
func ShowCode(code string) string {
	return code[:codeLength-typedLength] + "-" + code[codeLength-typedLength:]
}

// ReadCode is a code as it was typed, without what does not matter.
func ReadCode(typed string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(codeLetters, r) {
			return r
		}
		return -1
	}, strings.ToUpper(typed))
}

// Ask keeps a request, and returns it with its code and secret. Key is the thumbprint
// of what asks. If too many wait, the oldest request of the busiest network is forgotten.
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

// makeRoom forgets requests of the busiest networks, if there are too many to keep one more: of
// its tenant, or of all. Requests that were approved stay until they are handed out.
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
			if err := d.store.Update(requestPrefix+gone.ID, func([]byte) ([]byte, error) { return nil, nil }); err != nil {
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

// requests returns those that wait, and forgets those that are over.
func (d *Directory) requests() (waiting map[string]Request, err error) {
	found, err := all[Request](d.store, requestPrefix)
	if err != nil {
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

// Find returns a request that somebody may decide about, by its ID or its code.
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

// isFor reports whether it is somebody's to decide.
func (r *Request) isFor(who *Person) bool {
	return (r.Tenant == "" || r.Tenant == who.Tenant) && (r.Subject == "" || r.Subject == who.Subject)
}

// Decide approves a request, or denies it. To approve, the code is to be typed, or
// its end. The caller has checked that who may give the level and the host.
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

// Asked returns the thumbprint of the key of a request that waits, or was decided, to the
// asker that has its secret.
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

// Poll is how what asks looks whether it was approved: with its secret, and the
// thumbprint of the key that it has proved. A request that was approved is handed out
// once; of a device, as the device that it is now.
func (d *Directory) Poll(id, secret, key string) (r Request, device Device, err error) {
	switch asked, err := d.Asked(id, secret); {
	case err != nil:
		return r, device, err
	case asked != key:
		return r, device, ErrNone
	}
	if err := d.mayPoll(id); err != nil {
		return r, device, err
	}
	err = update(d.store, requestPrefix+id, func(old *Request) (*Request, error) {
		switch {
		case old == nil:
			return nil, ErrGone
		case d.now().After(old.Expires):
			return nil, ErrGone
		case old.Denied:
			return nil, ErrDenied
		case old.Approved == nil:
			return nil, ErrPending
		}
		r = *old
		return nil, nil // used up
	})
	if err == nil {
		if err = d.stillIn(r.Approved.Tenant, r.Approved.Device, r.Approved.Origins); errors.Is(err, errByRemoved) {
			err = errors.Join(err, ErrDenied)
		}
	}
	if err != nil || r.Kind != OfDevice {
		return r, device, err
	}

	device, err = d.add(Device{Tenant: r.Approved.Tenant, Subject: r.Approved.Subject, Access: r.Approved.Access, Name: r.Name, Key: key, Place: r.Address, Origins: r.Approved.Origins})
	return r, device, err
}

// mayPoll sees to it that nobody looks too often after a request.
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
