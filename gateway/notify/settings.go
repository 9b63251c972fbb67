package notify

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/broker/store"
)

// Limits for a person's settings.
const (
	maxTargets = 16
	maxMutes   = 256
	maxName    = 64
	maxToken   = 512

	// MaxSettings bounds people with settings, of all tenants. A tenant may have as many as are free.
	MaxSettings = 16 << 10
	maxSize     = 64 << 10 // bytes of a person's settings
)

// A Mute suppresses notifications about a session or, if it names none, about a host.
type Mute struct {
	Host    string    `json:"host"`
	Session string    `json:"session,omitempty"`
	Until   time.Time `json:"until,omitzero"` // zero: forever
}

// Quiet are a person's quiet hours, which delay notifications to their end. An event that
// needs a person is then sent only if it is still open.
type Quiet struct {
	From string `json:"from"` // 22:00
	To   string `json:"to"`   // 07:00
	Zone string `json:"zone"` // Europe/Berlin
}

// A Person holds a person's settings.
type Person struct {
	Tenant  string   `json:"tenant"`
	Subject string   `json:"subject"`
	Targets []Target `json:"ways"`
	Mutes   []Mute   `json:"mutes"`
	Quiet   *Quiet   `json:"quiet,omitempty"`

	// TimesBy is the token with which Mutes and Quiet were set, or nil if both are empty.
	TimesBy *auth.Client `json:"timesBy,omitempty"`
}

// SettingsPrefix begins the keys of settings. The tenant follows.
const SettingsPrefix = "notify."

func personKey(tenant, subject string) string {
	sum := sha256.Sum256([]byte(subject))
	return SettingsPrefix + tenant + "." + hex.EncodeToString(sum[:])
}

// Settings errors.
var (
	ErrNoTarget = errors.New("no such notification target")
	ErrTooMany  = errors.New("too many notification targets or mutes")
	ErrLess     = errors.New("this setting was made with a token that has rights which this token lacks; change it with that token")
)

func (n *Notifier) change(tenant, subject string, change func(*Person) error) error {
	return n.cfg.Records.Update(personKey(tenant, subject), func(old []byte) ([]byte, error) {
		p := &Person{Tenant: tenant, Subject: subject}
		if old != nil {
			if err := json.Unmarshal(old, p); err != nil {
				return nil, err
			}
		}
		if err := change(p); err != nil {
			return nil, err
		}
		if len(p.Targets) == 0 && len(p.Mutes) == 0 && p.Quiet == nil {
			return nil, nil
		}
		next, err := json.Marshal(p)
		if len(next) > maxSize && len(next) > len(old) {
			return nil, ErrTooMany
		}
		return next, err
	}) // applyPerson receives the change
}

func (n *Notifier) putLocked(p *Person) {
	if n.people[p.Tenant] == nil {
		n.people[p.Tenant] = map[string]*Person{}
	}
	n.people[p.Tenant][p.Subject] = p
}

// Person returns a person's settings. The caller must not change them.
func (n *Notifier) Person(tenant, subject string) Person {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p := n.people[tenant][subject]; p != nil {
		return *p
	}
	return Person{Tenant: tenant, Subject: subject}
}

// SetTarget adds a target, or changes the target with the same ID or the same subscription
// of a browser. Omitted secrets keep their values; a token does so only for the same server.
func (n *Notifier) SetTarget(ctx context.Context, who auth.Client, t Target) (Target, error) {
	if t.ID != "" {
		for _, old := range n.Person(who.Tenant, who.Subject).Targets {
			if old.ID == t.ID && old.Kind == t.Kind {
				t.keep(&old)
			}
		}
	}
	if err := n.check(ctx, &t); err != nil {
		return t, err
	}
	t.Who, t.Created = who, time.Now().UTC()
	err := n.change(who.Tenant, who.Subject, func(p *Person) error {
		i := slices.IndexFunc(p.Targets, func(old Target) bool { return old.ID == t.ID })
		if i < 0 && t.ID == "" {
			i = slices.IndexFunc(p.Targets, func(old Target) bool { return t.sameSubscription(&old) })
		}
		switch {
		case t.ID != "" && i < 0:
			return ErrNoTarget
		case i >= 0 && !n.mayChange(who, &p.Targets[i]):
			return ErrLess
		case i >= 0:
			t.ID = p.Targets[i].ID
			p.Targets[i] = t
		case len(p.Targets) >= maxTargets:
			return ErrTooMany
		default:
			t.ID = strings.ToLower(rand.Text()[:13])
			p.Targets = append(p.Targets, t)
		}
		return nil
	})
	if err == nil {
		n.endBackoff(t.ID)
	}
	return t, err
}

// Letterbox returns the current authority for a browser's target. Only the target's person
// knows the target's ID. ok is false if there is no such target, or if its token is no
// longer valid. often is true if the target was used too often.
func Letterbox(n *Notifier, id string) (who auth.Client, often, ok bool) {
	var t Target
	n.mu.Lock()
	for _, people := range n.people {
		for _, p := range people {
			if i := slices.IndexFunc(p.Targets, func(t Target) bool { return t.ID == id && t.Kind == WebPush }); i >= 0 {
				t = p.Targets[i]
			}
		}
	}
	n.mu.Unlock()
	if t.ID == "" {
		return who, false, false
	}
	who, ok, err := n.standing(&t)
	ok = ok || err != nil // if it is unknown, the host judges the letter alone
	return who, ok && !n.letters.Allow(t.ID), ok
}

// standing returns the current authority for a target, and whether it is valid. An error
// means that this is unknown at present.
func (n *Notifier) standing(t *Target) (auth.Client, bool, error) {
	if t.ofTenant {
		return t.Who, true, nil
	}
	return n.cfg.Standing(t.Who)
}

// mayChange reports whether a token may change a target. As long as the token that set the
// target is valid, the new token needs at least the same authority.
func (n *Notifier) mayChange(who auth.Client, t *Target) bool {
	now, good, err := n.standing(t)
	return !good && err == nil || who.Covers(now)
}

// RemoveTarget removes a target.
func (n *Notifier) RemoveTarget(who auth.Client, id string) error {
	return n.remove(who.Tenant, who.Subject, id, func(t *Target) bool { return n.mayChange(who, t) })
}

// remove removes a target, if may returns true for it.
func (n *Notifier) remove(tenant, subject, id string, may func(*Target) bool) error {
	return n.change(tenant, subject, func(p *Person) error {
		i := slices.IndexFunc(p.Targets, func(t Target) bool { return t.ID == id })
		switch {
		case i < 0:
			return ErrNoTarget
		case !may(&p.Targets[i]):
			return ErrLess
		}
		p.Targets = slices.Delete(p.Targets, i, i+1)
		return nil
	})
}

// SetTimes sets a person's quiet hours and mutes. They apply to present and later targets
// within the token's authority; see [Notifier.TimesFor].
func (n *Notifier) SetTimes(who auth.Client, quiet *Quiet, mutes []Mute) error {
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
			return errors.New("mutes: the name of a host or session is too long")
		}
	}
	return n.change(who.Tenant, who.Subject, func(p *Person) error {
		for i := range p.Targets {
			if !n.mayChange(who, &p.Targets[i]) {
				return ErrLess
			}
		}
		if p.TimesBy != nil && !n.mayChange(who, &Target{Who: *p.TimesBy}) {
			return ErrLess
		}
		p.Quiet, p.Mutes, p.TimesBy = quiet, mutes, nil
		if quiet != nil || len(mutes) > 0 {
			p.TimesBy = &who
		}
		return nil
	})
}

// TimesFor returns the quiet hours and mutes that apply to a token's targets. They count only if
// they were set with a valid token that has at least the same authority. So a person with a link
// to a session cannot silence the devices of the session's owner.
func (n *Notifier) TimesFor(p *Person, who auth.Client) (*Quiet, []Mute) {
	if p.TimesBy == nil {
		return nil, nil
	}
	now, good, err := n.cfg.Standing(*p.TimesBy)
	if !good && err == nil || !now.Covers(who) {
		return nil, nil
	}
	return p.Quiet, p.Mutes
}

// until reports whether a time is in the quiet hours, and returns when these end.
func (q *Quiet) until(now time.Time) (end time.Time, quiet bool, err error) {
	zone, err := time.LoadLocation(q.Zone)
	if err != nil || len(q.Zone) > maxName {
		return end, false, errors.New("quiet: unknown time zone; want a zone such as Europe/Berlin")
	}
	from, err1 := time.Parse("15:04", q.From)
	to, err2 := time.Parse("15:04", q.To)
	if err1 != nil || err2 != nil || from.Equal(to) {
		return end, false, errors.New("quiet: want different times such as 22:00 for from and to")
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

func muted(mutes []Mute, host string, e *notice.Event, now time.Time) bool {
	return slices.ContainsFunc(mutes, func(m Mute) bool {
		return m.Host == host && (m.Session == "" || m.Session == e.Session) && (m.Until.IsZero() || now.Before(m.Until))
	})
}

// applyPerson handles a change to a person's record by any relay.
func (n *Notifier) applyPerson(r store.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if r.Data == nil {
		for _, people := range n.people {
			maps.DeleteFunc(people, func(subject string, p *Person) bool { return personKey(p.Tenant, subject) == r.Key })
		}
		return
	}
	p := &Person{}
	if err := json.Unmarshal(r.Data, p); err != nil {
		n.cfg.Log.Error("notification settings unreadable", "key", r.Key, "error", err)
		return
	}
	n.putLocked(p)
	n.signal()
}
