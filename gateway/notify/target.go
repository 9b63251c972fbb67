package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/notice"
	"ahprelay/internal/retryafter"
)

// A TargetKind names the service that a target uses.
type TargetKind string

// TargetKind values.
const (
	WebPush TargetKind = "webpush" // a browser's push service (RFC 8030), encrypted to the browser
	Ntfy    TargetKind = "ntfy"
	Slack   TargetKind = "slack"   // an incoming webhook
	Webhook TargetKind = "webhook" // signed as in standardwebhooks.com
	Mail    TargetKind = "mail"
)

// updates reports whether a target of this kind also gets a message at the end of an event.
func (k TargetKind) updates() bool { return k == WebPush || k == Webhook }

// A Target is where a person's notifications go. Its secrets are shown only when it is
// created.
type Target struct {
	ID      string        `json:"id"`
	Kind    TargetKind    `json:"kind"`
	Name    string        `json:"name,omitempty"`
	URL     string        `json:"url,omitempty"`     // for all kinds but mail; for webpush the endpoint
	Keys    *PushKeys     `json:"keys,omitempty"`    // for webpush
	PushKey string        `json:"pushKey,omitempty"` // for webpush: the relays' key of the browser's subscription
	Token   string        `json:"token,omitempty"`   // for ntfy: an optional access token
	Secret  string        `json:"secret,omitempty"`  // for webhook: whsec_…; generated if empty
	To      string        `json:"to,omitempty"`      // for mail
	Kinds   []notice.Kind `json:"kinds,omitempty"`   // of events; empty for all
	Details bool          `json:"details"`           // includes titles and questions
	Paused  bool          `json:"paused,omitempty"`
	Created time.Time     `json:"created"`
	Who     auth.Client   `json:"who,omitzero"` // the token that set the target, as it was then, never shown; see Notifier.standing

	ofTenant bool // the target is a TenantTarget
}

// A service delivers notifications to one kind of target. Its methods are safe for
// concurrent use.
type service interface {
	// check completes a target, and returns an error if a field is invalid.
	check(ctx context.Context, t *Target) error

	// send makes a delivery attempt.
	send(ctx context.Context, job *Job, t *Target, m *Message) outcome

	// redact removes secrets from the target's URL.
	redact(t *Target)
}

func services(cfg *Config, client *http.Client, keys *pushKeyring) map[TargetKind]service {
	web := sender{client, cfg.Private}
	return map[TargetKind]service{
		WebPush: &webPush{sender: web, contact: cfg.Contact, keys: keys},
		Ntfy:    &ntfy{sender: web},
		Slack:   &slack{sender: web},
		Webhook: &webhook{sender: web},
		Mail:    newMailer(cfg.Mail),
	}
}

// check completes a target, and returns an error if a field is invalid.
func (n *Notifier) check(ctx context.Context, t *Target) error {
	t.Name = notice.Cut(t.Name, maxName)
	for _, k := range t.Kinds {
		if !slices.Contains(notice.Kinds, k) {
			return fmt.Errorf("kinds: unknown kind %.30q", k)
		}
	}
	if len(t.Token) > maxToken || strings.ContainsAny(t.Token, " \r\n") {
		return errors.New("token: want a single word of at most 512 bytes")
	}
	s := n.services[t.Kind]
	if s == nil {
		return fmt.Errorf("kind: unknown kind %.30q; want webpush, ntfy, slack, webhook or mail", t.Kind)
	}
	return s.check(ctx, t)
}

// missing lists what notifications to a target lack, each with a remedy.
func (n *Notifier) missing(t *Target) (list []string) {
	if n.public.get() == "" {
		switch t.Kind {
		case Ntfy:
			list = append(list, "No link and no buttons: the relay does not know its public address. Set --public-url, or sign in the owner's device at the relay's https address.")
		case Slack, Mail, Webhook:
			list = append(list, "No link: the relay does not know its public address. Set --public-url, or sign in the owner's device at the relay's https address.")
		}
	}
	if !t.Details {
		list = append(list, "No question, and no button to allow: the target is set without details.")
	}
	if !t.Who.Access.Includes(auth.AccessApprove) {
		list = append(list, "No approvals: the token that set the target does not permit them.")
	}
	if len(t.Kinds) > 0 && !slices.ContainsFunc(t.Kinds, notice.Kind.Needs) {
		list = append(list, "No questions: the target excludes all events that need you.")
	}
	if t.Paused {
		list = append(list, "No notifications: the target is paused.")
	}
	return list
}

// Redacted returns a target without its secrets, for a client of the target's person. A client that
// may not change the target does not get an ntfy topic either: whoever knows the topic can read its
// messages, and give the answers in them.
func (n *Notifier) Redacted(t Target, who auth.Client) Target {
	s := n.services[t.Kind]
	if !n.mayChange(who, &t) {
		s = &webhook{} // redacts any URL
	}
	if s != nil {
		s.redact(&t)
	}
	t.Keys, t.Secret, t.Token, t.Who = nil, "", "", auth.Client{}
	return t
}

// keep copies omitted fields from the target's previous version. The token is copied only if
// the server stays the same. Otherwise a token with less authority could redirect the secret
// to its own server.
func (t *Target) keep(old *Target) {
	if t.Token == "" && (t.URL == "" || serverOf(t.URL) == serverOf(old.URL)) {
		t.Token = old.Token
	}
	for _, s := range []struct{ to, from *string }{{&t.URL, &old.URL}, {&t.Secret, &old.Secret}, {&t.To, &old.To}} {
		if *s.to == "" {
			*s.to = *s.from
		}
	}
	if t.Keys == nil {
		t.Keys, t.PushKey = old.Keys, old.PushKey
	}
}

func serverOf(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return text
	}
	return u.Scheme + "://" + u.Host
}

// limitKey returns the key under which concurrent attempts are counted: the server or,
// without a URL, the kind.
func (t *Target) limitKey() string {
	if u, err := url.Parse(t.URL); err == nil && t.URL != "" {
		return u.Host
	}
	return string(t.Kind)
}

// sameSubscription reports whether two targets are the same subscription of a browser.
func (t *Target) sameSubscription(o *Target) bool {
	return t.Kind == o.Kind && t.Keys != nil && o.Keys != nil && t.URL == o.URL
}

// wants reports whether a target receives a kind of event. For a sealed host the relay
// does not know the exact kind, so the kinds with the same urgency count.
func (t *Target) wants(kind notice.Kind) bool {
	return !t.Paused && (len(t.Kinds) == 0 || slices.ContainsFunc(t.Kinds, func(k notice.Kind) bool {
		return k == kind || kind.IsSealed() && kind.Needs() == k.Needs()
	}))
}

// reads reports whether a target can show an event. A browser can show a sealed host's events only
// if the host has encrypted them for it. Until the host has the keys of a renewed subscription, the browser
// shows that an agent needs the person. All other targets show a line without content.
func (t *Target) reads(e *notice.Event) bool {
	if !e.Kind.IsSealed() || t.Kind != WebPush {
		return true
	}
	push := e.Push(t.ID)
	return push != nil && (e.Kind.Needs() || t.decrypts(push))
}

// decrypts reports whether a sealed host has encrypted a push for the target's present
// subscription. A renewed subscription has new keys, which the relay may get before the host.
func (t *Target) decrypts(p *notice.Push) bool {
	trimmed := func(key string) string { return strings.TrimRight(key, "=") }
	return p.P256dh == "" || trimmed(p.P256dh) == trimmed(t.Keys.P256dh)
}

// A Result classifies a delivery attempt.
type Result string

const (
	Delivered Result = "ok"
	Retry     Result = "retry"
	Refused   Result = "refused"
	Gone      Result = "gone" // the target no longer exists
	Expired   Result = "expired"
)

// An outcome is the result of a delivery attempt.
type outcome struct {
	result Result
	why    string
	after  time.Duration // shortest pause before a Retry
}

// A sender sends HTTP requests to servers that people choose.
type sender struct {
	client  *http.Client
	private []netip.Prefix
}

// checkURL returns an error if a target's URL may not be used.
func (s *sender) checkURL(ctx context.Context, t *Target) error {
	if err := checkURL(ctx, t.URL, s.private); err != nil {
		return fmt.Errorf("url: %w", err)
	}
	return nil
}

// redact implements service. It removes the path, because that may be the secret.
func (*sender) redact(t *Target) {
	if u, err := url.Parse(t.URL); err == nil && t.URL != "" {
		t.URL = u.Scheme + "://" + u.Host + "/…"
	}
}

func (s *sender) post(ctx context.Context, to string, header http.Header, data []byte) outcome {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(data))
	if err != nil {
		return failed(err)
	}
	if header != nil {
		r.Header = header
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "ahp-relay")
	response, err := s.client.Do(r)
	return judge(response, err, http.StatusGone)
}

// maxAnswer is the longest part of a response that is read, in bytes.
const maxAnswer = 4 << 10

// failed returns the outcome of an attempt that got no response. The target's owner sees its
// text, which does not reveal the address to which a name resolves.
func failed(err error) outcome {
	if errors.Is(err, errPrivate) {
		return outcome{result: Refused, why: errPrivate.Error()}
	}
	return outcome{result: Retry, why: "no response"}
}

// judge returns the outcome for a response. The statuses in gone mean that the target no longer
// exists.
func judge(response *http.Response, err error, gone ...int) outcome {
	if err != nil {
		return failed(err)
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, maxAnswer) // so that the connection can be used again
	why := "HTTP " + strconv.Itoa(response.StatusCode)
	switch status := response.StatusCode; {
	case status >= 200 && status < 300:
		return outcome{result: Delivered}
	case slices.Contains(gone, status):
		return outcome{result: Gone, why: why}
	case status == http.StatusTooManyRequests, status >= 500, status == http.StatusRequestTimeout:
		return outcome{result: Retry, why: why, after: retryafter.Of(response.Header, mostObeyed)}
	}
	return outcome{result: Refused, why: why}
}
