package hostagent

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/routing"
)

// maxBlocked bounds the blocked subjects and tokens.
const maxBlocked = 10_000

// errTooManyBlocked reports a full blocklist.
var errTooManyBlocked = errors.New("too many blocked subjects and tokens; restart the host-agent to clear them")

// A blockedKey identifies a blocked subject, or a blocked token.
type blockedKey struct{ subject, token string }

// blocklist holds the subjects and tokens that may not connect until a given
// time, because the host's owner has kicked them. It is not stored: a new
// host-agent starts with an empty list.
type blocklist struct {
	mu    sync.Mutex
	until map[blockedKey]time.Time
}

// add blocks a key until a time, unless it is already blocked for longer.
func (b *blocklist) add(who blockedKey, until time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until == nil {
		b.until = map[blockedKey]time.Time{}
	}
	if now := time.Now(); len(b.until) >= maxBlocked {
		maps.DeleteFunc(b.until, func(_ blockedKey, end time.Time) bool { return !now.Before(end) })
	}
	if _, again := b.until[who]; !again && len(b.until) >= maxBlocked {
		return errTooManyBlocked
	}
	if until.After(b.until[who]) {
		b.until[who] = until
	}
	return nil
}

// has reports whether a client is blocked, with the close reason.
func (b *blocklist) has(open routing.Open) (reason string, yes bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	until := b.until[blockedKey{subject: open.Subject}]
	if token := b.until[blockedKey{token: open.Token}]; open.Token != "" && token.After(until) {
		until = token
	}
	if !time.Now().Before(until) {
		return "", false
	}
	return kickedReason + ", until " + until.UTC().Format(time.RFC3339), true
}

const kickedReason = "the host's owner does not want this client"

// A Kick names what to end: the connection with an id, a subject's connections and previews, or a
// preview. It has exactly one of Conn, Subject and Preview.
type Kick struct {
	Conn    string        `json:"conn,omitempty"`
	Subject string        `json:"subject,omitempty"`
	Preview string        `json:"preview,omitempty"` // a preview's id, instead of Conn and Subject
	For     time.Duration `json:"for"`               // how long to block, in nanoseconds
}

func (k *Kick) valid() bool {
	ways := slices.DeleteFunc([]string{k.Conn, k.Subject, k.Preview}, func(way string) bool { return way == "" })
	return len(ways) == 1
}

// errNobody reports a kick that matches no connection and no preview.
var errNobody = errors.New("no such connection or preview")

// names reports whether the kick ends this connection: it names the connection or its subject.
func (k *Kick) names(open *routing.Open) bool {
	return k.Conn == open.ID || k.Subject != "" && k.Subject == open.Subject
}

func (k *Kick) endPreview(a *Agent) (ended int, err error) {
	ended = a.live.previews.end(func(one *openPreview) bool { return one.ID == k.Preview })
	if ended == 0 {
		return 0, errNobody
	}
	a.cfg.Log.Info(auditMessage, "event", "kick", "preview", k.Preview)
	return ended, nil
}

// kick ends the connections, or the preview, that k names. It blocks the kicked
// subject, or the connection's token, for k.For. It also closes the previews of the
// connections' subjects or of the kicked subject. It returns how many connections and
// previews it has ended. Each kind of target has its branch.
func (a *Agent) kick(k Kick) (ended int, err error) {
	if k.Preview != "" {
		return k.endPreview(a)
	}
	until := time.Now().Add(k.For)
	if k.Subject != "" && k.For > 0 { // block before listing connections: none opens in between
		if err := a.blocked.add(blockedKey{subject: k.Subject}, until); err != nil {
			return 0, err
		}
		a.cfg.Log.Info(auditMessage, "event", "bar", "subject", k.Subject, "until", until.UTC().Format(time.RFC3339))
	}
	for _, c := range a.clients.every() {
		if !k.names(&c.open) || c.kicked.Load() { // or already ending
			continue
		}
		if k.Conn != "" && k.For > 0 && c.open.Token != "" {
			if err := a.blocked.add(blockedKey{token: c.open.Token}, until); err != nil {
				return ended, err
			}
		}
		c.kicked.Store(true)
		ended += a.live.previews.end(func(one *openPreview) bool { return one.Subject == c.open.Subject })
		c.audit("kick", "code", ahp.CloseForbidden)
		c.conn.Abort(ahp.CloseForbidden, kickedReason)
		c.cancel()
		ended++
	}
	if k.Subject != "" { // a subject without a connection may have previews
		ended += a.live.previews.end(func(one *openPreview) bool { return one.Subject == k.Subject })
	}
	if ended == 0 && (k.Subject == "" || k.For == 0) {
		return 0, errNobody
	}
	return ended, nil
}

// list returns the current entries.
func (b *blocklist) list() []BlockedInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []BlockedInfo{}
	for who, until := range b.until {
		if time.Now().Before(until) {
			list = append(list, BlockedInfo{who.subject, who.token, until.UTC()})
		}
	}
	slices.SortFunc(list, func(a, b BlockedInfo) int {
		return cmp.Or(a.Until.Compare(b.Until), strings.Compare(a.Subject, b.Subject), strings.Compare(a.Token, b.Token))
	})
	return list
}
