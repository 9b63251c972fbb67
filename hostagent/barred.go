package hostagent

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// maxBarred bounds how many subjects and tokens are barred at a time.
const maxBarred = 10_000

// errTooManyBarred reports that there are maxBarred of them.
var errTooManyBarred = errors.New("too many subjects and tokens are barred already")

// A barredKey names who may not connect: a subject, or who has one token.
type barredKey struct{ subject, token string }

// barredClients say who may not connect for a while, because the host's owner has
// kicked them. They end with the host-agent.
type barredClients struct {
	mu    sync.Mutex
	until map[barredKey]time.Time
}

// add bars somebody until a time, if that is later than it was before.
func (b *barredClients) add(who barredKey, until time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until == nil {
		b.until = map[barredKey]time.Time{}
	}
	now := time.Now()
	for one, end := range b.until {
		if !now.Before(end) {
			delete(b.until, one)
		}
	}
	if _, again := b.until[who]; !again && len(b.until) >= maxBarred {
		return errTooManyBarred
	}
	if until.After(b.until[who]) {
		b.until[who] = until
	}
	return nil
}

// has reports whether a client may not connect, and why.
func (b *barredClients) has(open routing.Open) (reason string, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	until := b.until[barredKey{subject: open.Subject}]
	if token := b.until[barredKey{token: open.Token}]; open.Token != "" && token.After(until) {
		until = token
	}
	if !time.Now().Before(until) {
		return "", false
	}
	return kickedReason + ", until " + until.UTC().Format(time.RFC3339), true
}

// kickedReason is what a client hears that the host's owner has kicked.
const kickedReason = "the host's owner does not want this client"

// A kick says whom the host's owner does not want: a connection by its id, or
// all of a subject.
type kick struct {
	Conn    string        `json:"conn,omitempty"`
	Subject string        `json:"subject,omitempty"`
	Preview string        `json:"preview,omitempty"` // or one of these, by its id
	For     time.Duration `json:"for"`               // for which they may not come back, in nanoseconds
}

// names reports whether it says whom, and in one way only.
func (k *kick) names() bool {
	ways := 0
	for _, way := range []string{k.Conn, k.Subject, k.Preview} {
		if way != "" {
			ways++
		}
	}
	return ways == 1
}

// errNobody reports a kick that meets nobody.
var errNobody = errors.New("nobody is connected so")

// kick ends connections, and returns how many. Those who were kicked, the
// subject or who has the token of the connection, may not come back for a while.
func (a *Agent) kick(k kick) (ended int, err error) {
	if k.Preview != "" {
		ended = a.live.previews.end(func(one *openPreview) bool { return one.ID == k.Preview })
		if ended == 0 {
			return 0, errNobody
		}
		a.cfg.Log.Info(auditMessage, "event", "kick", "preview", k.Preview)
		return ended, nil
	}
	until := time.Now().Add(k.For)
	if k.Subject != "" && k.For > 0 { // before looking who is there
		if err := a.barred.add(barredKey{subject: k.Subject}, until); err != nil {
			return 0, err
		}
		a.cfg.Log.Info(auditMessage, "event", "bar", "subject", k.Subject, "until", until.UTC().Format(time.RFC3339))
	}
	for _, c := range a.clients.every() {
		if k.Conn != c.open.ID && (k.Subject == "" || k.Subject != c.open.Subject) {
			continue
		}
		if c.kicked.Load() { // and about to end
			continue
		}
		if k.Conn != "" && k.For > 0 && c.open.Token != "" {
			if err := a.barred.add(barredKey{token: c.open.Token}, until); err != nil {
				return ended, err
			}
		}
		c.kicked.Store(true)
		a.live.previews.end(func(one *openPreview) bool { return one.Subject == c.open.Subject })
		c.audit("kick", "code", ahp.CloseForbidden)
		c.conn.Abort(ahp.CloseForbidden, kickedReason)
		c.cancel()
		ended++
	}
	if k.Subject != "" { // those of who is away just now
		ended += a.live.previews.end(func(one *openPreview) bool { return one.Subject == k.Subject })
	}
	if ended == 0 && (k.Subject == "" || k.For == 0) {
		return 0, errNobody
	}
	return ended, nil
}

// list returns who is barred now.
func (b *barredClients) list() []BarredInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []BarredInfo{}
	for who, until := range b.until {
		if time.Now().Before(until) {
			list = append(list, BarredInfo{who.subject, who.token, until.UTC()})
		}
	}
	slices.SortFunc(list, func(a, b BarredInfo) int {
		return cmp.Or(a.Until.Compare(b.Until), strings.Compare(a.Subject, b.Subject), strings.Compare(a.Token, b.Token))
	})
	return list
}
