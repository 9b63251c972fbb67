package notify

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/mail"
	"net/url"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/broker/store"
)

// A WayKind says how somebody is told.
type WayKind string

// The ways.
const (
	WebPush WayKind = "webpush" // a browser's push service (RFC 8030), encrypted to the browser
	Ntfy    WayKind = "ntfy"
	Slack   WayKind = "slack"   // an incoming webhook
	Webhook WayKind = "webhook" // signed, by standardwebhooks.com
	Mail    WayKind = "mail"
)

// Bounds of what people set.
const (
	maxWays  = 16
	maxMutes = 256
	maxName  = 64
	maxToken = 512
)

// A Way is how a person is told. Secrets of it are not shown again.
type Way struct {
	ID      string        `json:"id"`
	Kind    WayKind       `json:"kind"`
	Name    string        `json:"name,omitempty"`
	URL     string        `json:"url,omitempty"`     // the endpoint of webpush, and of all others but mail
	Keys    *PushKeys     `json:"keys,omitempty"`    // of webpush
	PushKey string        `json:"pushKey,omitempty"` // of webpush: the relays' key that the browser has subscribed to
	Token   string        `json:"token,omitempty"`   // of ntfy: an access token, if it wants one
	Secret  string        `json:"secret,omitempty"`  // of webhook: whsec_…; made by the relay if none is given
	To      string        `json:"to,omitempty"`      // of mail
	Kinds   []notice.Kind `json:"kinds,omitempty"`   // of events; none: all
	Details bool          `json:"details"`           // titles and what is asked are told, too
	Paused  bool          `json:"paused,omitempty"`
	Created time.Time     `json:"created"`
	Who     auth.Client   `json:"who"` // who set it, as of then: what that token may hear is told

	ofTenant bool // it is a TenantWay
}

// PushKeys are those of a browser's subscription.
type PushKeys struct {
	P256dh string `json:"p256dh"`
	Auth   string `json:"auth"`
}

// A Mute keeps a session, or a host if no session is named, from being told of.
type Mute struct {
	Host    string    `json:"host"`
	Session string    `json:"session,omitempty"`
	Until   time.Time `json:"until,omitzero"` // zero: for ever
}

// Quiet are hours in which nothing is told; then all that is still open is.
type Quiet struct {
	From string `json:"from"` // 22:00
	To   string `json:"to"`   // 07:00
	Zone string `json:"zone"` // Europe/Berlin
}

// A Person is what somebody has set.
type Person struct {
	Tenant  string `json:"tenant"`
	Subject string `json:"subject"`
	Ways    []Way  `json:"ways"`
	Mutes   []Mute `json:"mutes"`
	Quiet   *Quiet `json:"quiet,omitempty"`

	// TimesBy is the token with which Mutes and Quiet were set; nil: a relay of an older version set them.
	TimesBy *auth.Client `json:"timesBy,omitempty"`
}

const personPrefix = "notify."

func personKey(tenant, subject string) string {
	sum := sha256.Sum256([]byte(subject))
	return personPrefix + tenant + "." + hex.EncodeToString(sum[:])
}

// Errors of what people set.
var (
	ErrNoWay   = errors.New("there is no such way")
	ErrTooMany = errors.New("too many of them")
	ErrLess    = errors.New("this was set with a token that allows more than yours, or another: change it with that")
)

// check completes a way that somebody sets, or says what is wrong with it.
func (t *Teller) check(ctx context.Context, w *Way) error {
	w.Name = notice.Cut(w.Name, maxName)
	for _, k := range w.Kinds {
		if !slices.Contains(notice.Kinds, k) {
			return fmt.Errorf("kinds: %.30q is none", k)
		}
	}
	if len(w.Token) > maxToken || strings.ContainsAny(w.Token, " \r\n") {
		return errors.New("token: too long, or not one word")
	}
	if w.Kind == Mail {
		return t.checkMail(w)
	}
	if err := checkTarget(ctx, w.URL, t.cfg.Private); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	switch w.Kind {
	case WebPush:
		if w.PushKey == "" {
			w.PushKey = t.PushKey()
		}
		return w.Keys.check()
	case Ntfy:
		u, _ := url.Parse(w.URL) // it was parsed
		if topic := strings.Trim(u.Path, "/"); topic == "" || strings.Contains(topic, "/") || u.RawQuery != "" {
			return errors.New("url: want that of an ntfy topic, such as https://ntfy.sh/my-topic")
		}
	case Slack:
	case Webhook:
		if w.Secret == "" {
			var key [24]byte
			rand.Read(key[:]) // never fails
			w.Secret = secretPrefix + base64.StdEncoding.EncodeToString(key[:])
		}
		return checkSecret(w.Secret)
	default:
		return fmt.Errorf("kind: %.30q is none; want webpush, ntfy, slack, webhook or mail", w.Kind)
	}
	return nil
}

const secretPrefix = "whsec_"

// checkSecret wants the form that Standard Webhooks have for keys.
func checkSecret(secret string) error {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	key, err := base64.StdEncoding.DecodeString(text)
	if !ok || err != nil || len(key) < 24 || len(key) > 64 {
		return errors.New("secret: want whsec_ and 24 to 64 bytes in base64")
	}
	return nil
}

func (k *PushKeys) check() error {
	if k == nil {
		return errors.New("keys: none; want those of the browser's subscription")
	}
	point, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(k.P256dh, "="))
	if err == nil {
		_, err = ecdh.P256().NewPublicKey(point)
	}
	secret, err2 := base64.RawURLEncoding.DecodeString(strings.TrimRight(k.Auth, "="))
	if err != nil || err2 != nil || len(secret) != 16 {
		return errors.New("keys: not those of a browser's subscription")
	}
	return nil
}

func (t *Teller) checkMail(w *Way) error {
	if t.cfg.Mail == nil {
		return errors.New("kind: this relay sends no mail (--notify-smtp)")
	}
	a, err := mail.ParseAddress(w.To)
	if err != nil || a.Address != w.To || len(w.To) > 254 {
		return errors.New("to: no address of mail")
	}
	return nil
}

// change changes what somebody has set.
func (t *Teller) change(tenant, subject string, change func(*Person) error) error {
	return t.cfg.Records.Update(personKey(tenant, subject), func(old []byte) ([]byte, error) {
		p := &Person{Tenant: tenant, Subject: subject}
		if old != nil {
			if err := json.Unmarshal(old, p); err != nil {
				return nil, err
			}
		}
		if err := change(p); err != nil {
			return nil, err
		}
		if len(p.Ways) == 0 && len(p.Mutes) == 0 && p.Quiet == nil {
			return nil, nil
		}
		return json.Marshal(p)
	}) // takePerson takes it
}

func (t *Teller) putLocked(p *Person) {
	if t.people[p.Tenant] == nil {
		t.people[p.Tenant] = map[string]*Person{}
	}
	t.people[p.Tenant][p.Subject] = p
}

// Person returns what somebody has set. It is not to be changed.
func (t *Teller) Person(tenant, subject string) Person {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.people[tenant][subject]; p != nil {
		return *p
	}
	return Person{Tenant: tenant, Subject: subject}
}

// SetWay adds a way, or changes the one with its ID. Secrets that are not given stay.
func (t *Teller) SetWay(ctx context.Context, who auth.Client, w Way) (Way, error) {
	if w.ID != "" {
		for _, old := range t.Person(who.Tenant, who.Subject).Ways {
			if old.ID == w.ID && old.Kind == w.Kind {
				w.keep(&old)
			}
		}
	}
	if err := t.check(ctx, &w); err != nil {
		return w, err
	}
	w.Who, w.Created = who, time.Now().UTC()
	err := t.change(who.Tenant, who.Subject, func(p *Person) error {
		i := slices.IndexFunc(p.Ways, func(old Way) bool { return old.ID == w.ID })
		if i < 0 && w.Kind == WebPush && w.ID == "" { // the browser has one subscription
			i = slices.IndexFunc(p.Ways, func(old Way) bool { return old.Kind == WebPush && old.URL == w.URL })
		}
		switch {
		case w.ID != "" && i < 0:
			return ErrNoWay
		case i >= 0 && !t.mayChange(who, &p.Ways[i]):
			return ErrLess
		case i >= 0:
			w.ID = p.Ways[i].ID
			p.Ways[i] = w
		case len(p.Ways) >= maxWays:
			return ErrTooMany
		default:
			w.ID = strings.ToLower(rand.Text()[:13])
			p.Ways = append(p.Ways, w)
		}
		return nil
	})
	if err == nil {
		t.mend(w.ID)
	}
	return w, err
}

// keep takes over what is not shown. The token is sent to no other server than the one
// that it was given for: who changes the way may be another who is called the same,
// and may do less.
func (w *Way) keep(old *Way) {
	if w.Token == "" && (w.URL == "" || serverOf(w.URL) == serverOf(old.URL)) {
		w.Token = old.Token
	}
	for _, s := range []struct{ to, from *string }{{&w.URL, &old.URL}, {&w.Secret, &old.Secret}, {&w.To, &old.To}} {
		if *s.to == "" {
			*s.to = *s.from
		}
	}
	if w.Keys == nil {
		w.Keys, w.PushKey = old.Keys, old.PushKey
	}
}

// serverOf is what of a URL names the server, with the scheme.
func serverOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return u.Scheme + "://" + u.Host
}

// mayChange reports whether a token may change a way: one that allows less than that with which it
// was set may not, while that is good.
func (t *Teller) mayChange(who auth.Client, w *Way) bool {
	now, good := t.standing(w)
	return !good || who.Covers(now)
}

// RemoveWay removes a way.
func (t *Teller) RemoveWay(who auth.Client, id string) error {
	return t.remove(who.Tenant, who.Subject, id, func(w *Way) bool { return t.mayChange(who, w) })
}

// remove removes a way if that may be.
func (t *Teller) remove(tenant, subject, id string, may func(*Way) bool) error {
	return t.change(tenant, subject, func(p *Person) error {
		i := slices.IndexFunc(p.Ways, func(w Way) bool { return w.ID == id })
		switch {
		case i < 0:
			return ErrNoWay
		case !may(&p.Ways[i]):
			return ErrLess
		}
		p.Ways = slices.Delete(p.Ways, i, i+1)
		return nil
	})
}

// SetTimes sets when, and of what, a person is not told. It counts for the ways that the token
// covers, also for those that are set later; see [Person.TimesFor].
func (t *Teller) SetTimes(who auth.Client, quiet *Quiet, mutes []Mute) error {
	if quiet != nil {
		if _, _, err := quiet.until(time.Now()); err != nil {
			return err
		}
	}
	now := time.Now()
	mutes = slices.DeleteFunc(slices.Clone(mutes), func(m Mute) bool { return !m.Until.IsZero() && m.Until.Before(now) })
	if len(mutes) > maxMutes {
		return ErrTooMany
	}
	for _, m := range mutes {
		if len(m.Session) > notice.MaxURI || len(m.Host) > maxName {
			return errors.New("mutes: a host or session is too long")
		}
	}
	return t.change(who.Tenant, who.Subject, func(p *Person) error {
		for i := range p.Ways {
			if !t.mayChange(who, &p.Ways[i]) {
				return ErrLess
			}
		}
		if p.TimesBy != nil && !t.mayChange(who, &Way{Who: *p.TimesBy}) {
			return ErrLess
		}
		p.Quiet, p.Mutes, p.TimesBy = quiet, mutes, nil
		if quiet != nil || len(mutes) > 0 {
			p.TimesBy = &who
		}
		return nil
	})
}

// TimesFor returns the quiet hours and mutes that count for a token: those that were set with a
// token that covers it. A link to look at a session silences no device of its owner's.
func (p *Person) TimesFor(who auth.Client) (*Quiet, []Mute) {
	if p.TimesBy != nil && !p.TimesBy.Covers(who) {
		return nil, nil
	}
	return p.Quiet, p.Mutes
}

// until reports whether the hours are quiet now, and until when.
func (q *Quiet) until(now time.Time) (end time.Time, quiet bool, err error) {
	zone, err := time.LoadLocation(q.Zone)
	if err != nil || len(q.Zone) > maxName {
		return end, false, errors.New("quiet: zone is none, such as Europe/Berlin")
	}
	from, err1 := time.Parse("15:04", q.From)
	to, err2 := time.Parse("15:04", q.To)
	if err1 != nil || err2 != nil || from.Equal(to) {
		return end, false, errors.New("quiet: want from and to as 22:00, and not the same")
	}
	now = now.In(zone)
	at := func(day int, clock time.Time) time.Time {
		return time.Date(now.Year(), now.Month(), now.Day()+day, clock.Hour(), clock.Minute(), 0, 0, zone)
	}
	for _, day := range []int{-1, 0} {
		begin, end := at(day, from), at(day, to)
		if !end.After(begin) {
			end = at(day+1, to)
		}
		if !now.Before(begin) && now.Before(end) {
			return end, true, nil
		}
	}
	return end, false, nil
}

// muted reports whether mutes keep an event from being told.
func muted(mutes []Mute, host string, e *notice.Event, now time.Time) bool {
	return slices.ContainsFunc(mutes, func(m Mute) bool {
		return m.Host == host && (m.Session == "" || m.Session == e.Session) && (m.Until.IsZero() || now.Before(m.Until))
	})
}

// wants reports whether an event is told in a way.
func (w *Way) wants(kind notice.Kind) bool {
	return !w.Paused && (len(w.Kinds) == 0 || slices.Contains(w.Kinds, kind))
}

// takePerson takes what somebody has set, at any relay.
func (t *Teller) takePerson(r store.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Data == nil {
		for _, people := range t.people {
			for subject, p := range people {
				if personKey(p.Tenant, subject) == r.Key {
					delete(people, subject)
				}
			}
		}
		return
	}
	p, err := readPerson(r.Data)
	if err != nil {
		t.cfg.Log.Error("what somebody has set", "key", r.Key, "error", err)
		return
	}
	t.putLocked(p)
	t.signal()
}

func readPerson(raw []byte) (*Person, error) {
	p := &Person{}
	if err := json.Unmarshal(raw, p); err != nil {
		return nil, fmt.Errorf("what somebody has set cannot be read: %w", err)
	}
	return p, nil
}
