package hostagent

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/broker/notice"
	"ahprelay/hostagent/watch"
	"ahprelay/internal/sealed"
	"ahprelay/routing"
)

// A sealed host's notifications: see docs/sealed.md. The host-agent encrypts them to the
// browsers of its devices, and relays forward them.

// A vaultBrowser is a browser that receives notifications for a device.
type vaultBrowser struct {
	Key      []byte      `json:"key"`
	Verifier []byte      `json:"verifier"`
	Grants   []string    `json:"grants,omitempty"`
	Wanted   auth.Access `json:"wanted,omitempty"` // highest level that the device asked for
	Name     string      `json:"name"`
	Target   string      `json:"way"` // the browser's notification target at the relay
	Details  bool        `json:"details,omitempty"`
	sealed.Subscription
}

func (b *vaultBrowser) identity() sealed.Identity {
	return sealed.Identity{Key: sealed.Key(b.Key), Verifier: sealed.Verifier(b.Verifier)}
}

// A vaultAsked is an event that needs a person, under the ID that relays and devices know.
type vaultAsked struct {
	Event   string    `json:"event"` // the event's ID in the ledger
	Digest  string    `json:"digest"`
	Session string    `json:"session"`
	At      time.Time `json:"at"`
	ID      string    `json:"id"`    // the random ID that relays and devices know
	Nonce   string    `json:"nonce"` // an answer must contain the nonce, which permits one answer
	Used    bool      `json:"used,omitempty"`
	Ended   bool      `json:"ended,omitempty"` // the event has ended, and relays have not yet confirmed the end
}

// A browser is a vaultBrowser with the present authority of its device.
type browser struct {
	vaultBrowser
	open   routing.Open
	policy gate.Policy
}

// authority returns what a device may do at the host: an Open made by the host-agent
// instead of a relay, and a policy. wanted, if set, lowers the level.
func (s *seals) authority(d *sealed.Authority, wanted auth.Access) (routing.Open, gate.Policy) {
	open := routing.Open{
		Subject: d.Subject, Token: d.Chain[len(d.Chain)-1].String(), Access: string(d.Level),
		Expires: &d.End, Reverse: d.Level.Includes(auth.AccessWrite), Sealed: true,
	}
	policy := s.agent.policy(open)
	if wanted != "" {
		policy = policy.Narrow(gate.NewPolicy(wanted, nil, nil, true))
	}
	for _, channels := range d.Limits {
		policy = policy.Narrow(gate.NewPolicy(d.Level, channels, nil, true))
	}
	return open, policy
}

// signer returns the host's key for signatures outside of connections. The first call
// creates the key.
func (v *vault) signer() (*sealed.Device, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.state.Signer) > 0 {
		return sealed.ReadDevice(v.state.Signer)
	}
	signer, err := sealed.NewDevice()
	if err != nil {
		return nil, err
	}
	private, err := signer.Private()
	if err == nil {
		err = v.changeLocked(func(s *vaultState) { s.Signer = private })
	}
	return signer, err
}

// maxBrowserName bounds the name of a browser's device, and maxTarget the ID of its target, in bytes.
const (
	maxBrowserName = 100
	maxTarget      = 64
)

// subscribe stores a device's browser in place of its previous one, and returns the key
// that verifies the host's signatures. A browser without a target is removed.
func (s *seals) subscribe(of sealed.Identity, b vaultBrowser) (verifier string, err error) {
	signer, err := s.signer()
	if err != nil {
		return "", err
	}
	if b.Target != "" {
		switch _, err := b.Encrypt([]byte("{}")); {
		case err != nil:
			return "", fmt.Errorf("the browser's keys: %w", err)
		case len(b.P256dh) > notice.MaxKey:
			return "", fmt.Errorf("the browser's keys: p256dh has %d bytes; want at most %d", len(b.P256dh), notice.MaxKey)
		case len(b.Target) > maxTarget || strings.Trim(b.Target, "abcdefghijklmnopqrstuvwxyz0123456789") != "":
			return "", errors.New("way: want the id of the browser's notification target")
		}
	}
	b.Key, b.Verifier, b.Name = of.Key[:], of.Verifier[:], notice.Cut(b.Name, maxBrowserName)
	point := signer.Identity().Verifier
	verifier = base64.RawURLEncoding.EncodeToString(point[:])
	_, ended := s.browsers(time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(s.state.Browsers), func(old vaultBrowser) bool { return old.identity() == of })
	if b.Target != "" {
		others = append(others, b)
	}
	if len(others) > notice.MaxPushes { // devices that are not admitted any more cannot turn notifications off
		others = slices.DeleteFunc(others, func(one vaultBrowser) bool { return one.identity() != of && slices.Contains(ended, one.identity()) })
	}
	if len(others) > notice.MaxPushes {
		return "", fmt.Errorf("this host notifies %d browsers at most: turn notifications off on one of them", notice.MaxPushes)
	}
	return verifier, s.changeLocked(func(s *vaultState) { s.Browsers = others })
}

// browsers returns the browsers whose devices are still admitted, and the devices of the
// other browsers.
func (s *seals) browsers(now time.Time) (list []browser, ended []sealed.Identity) {
	s.mu.Lock()
	all := slices.Clone(s.state.Browsers)
	s.mu.Unlock()
	for _, b := range all {
		d, err := sealed.Admit(s.vault, s.secret.Public(), b.identity(), b.Grants, now)
		if err != nil {
			ended = append(ended, b.identity())
			continue
		}
		open, policy := s.authority(d, b.Wanted)
		list = append(list, browser{b, open, policy})
	}
	return list, ended
}

// A sealedNote is a notification as a device reads it. Its members are named as in a
// relay's notification.
type sealedNote struct {
	ID        string        `json:"id"`
	To        string        `json:"to"` // fingerprint of the device that may read the note
	Nonce     string        `json:"nonce,omitempty"`
	Kind      notice.Kind   `json:"kind"`
	Host      string        `json:"host"`
	Session   string        `json:"session,omitempty"`
	Chat      string        `json:"chat,omitempty"` // of a question
	Title     string        `json:"title,omitempty"`
	Text      string        `json:"text,omitempty"`
	Detail    string        `json:"detail,omitempty"`
	Risky     bool          `json:"risky,omitempty"`
	At        time.Time     `json:"at"`
	Withdrawn bool          `json:"withdrawn,omitempty"`
	Answers   []sealedOffer `json:"answers,omitempty"`
	Says      string        `json:"says"`
}

// A sealedOffer is an answer that a notification offers.
type sealedOffer struct {
	Label  string `json:"label"`
	Deny   bool   `json:"deny,omitempty"`
	Option string `json:"option"` // the chosen option; "" for an answer in words
}

// A signedNote is the plaintext of an encrypted push message.
type signedNote struct {
	Sealed    string `json:"sealed"` // name of the host that has sealed the note
	Body      string `json:"body"`   // the note: JSON of a sealedNote
	Signature []byte `json:"signature"`
}

// maxNote bounds the plaintext of a push message, in bytes: push services accept 4,096,
// including the encryption's overhead.
const maxNote = 3900

type pending struct {
	event *notice.Event // the event; nil if it has ended
	asked vaultAsked    // the event's record; only its ID if the event needs no person
}

// note returns the notification of an event for a browser's device, or false if the device
// may not see the event.
func (p *pending) note(host string, b *browser) (n sealedNote, ok bool) {
	n = sealedNote{ID: p.asked.ID, To: b.identity().Fingerprint().String(), Host: host, At: time.Now().UTC()}
	e := p.event
	if e == nil {
		n.Withdrawn = true
		return n, b.policy.Sees(p.asked.Session)
	}
	n.Nonce, n.Kind, n.Session, n.Chat, n.At, n.Risky = p.asked.Nonce, e.Kind, e.Session, e.Chat, e.At, e.Risky
	if b.Details {
		n.Title, n.Text, n.Detail = e.Title, e.Text, e.Detail
	}
	n.Says = notice.Line(n.Title, host, e.Kind)
	if letsAnswer(b.policy, e) {
		n.Answers = b.offers(e)
	}
	return n, b.policy.Sees(e.Session) && (e.Only == "" || e.Only == b.open.Subject)
}

// offers returns the answers that a notification offers. Without details, a notification
// offers refusals only, because a person should not approve an unseen request.
func (b *browser) offers(e *notice.Event) (list []sealedOffer) {
	form, options := e.FromAfar()
	if form == notice.NoForm {
		return nil
	}
	for _, o := range options {
		if b.Details || o.Deny {
			list = append(list, sealedOffer{o.Label, o.Deny, o.ID})
		}
	}
	if form == notice.Text && b.Details {
		list = append(list, sealedOffer{Label: "Reply"})
	}
	return list
}

// pushes encrypts an event for each browser that may see it. Once the question is answered,
// it encrypts only the event's end.
func (p *pending) pushes(host string, signer *sealed.Device, browsers []browser) (list []notice.Push, err error) {
	if p.asked.Used && p.event != nil {
		return nil, nil
	}
	for i := range browsers {
		b := &browsers[i]
		n, ok := p.note(host, b)
		if !ok {
			continue
		}
		text, err := n.sign(signer)
		if len(text) > maxNote { // a long title may be the cause
			n.Detail, n.Text, n.Answers, n.Chat = notice.Cut(n.Detail, 200), notice.Cut(n.Text, 200), nil, ""
			text, err = n.sign(signer)
		}
		if err != nil {
			return nil, err
		}
		data, err := b.Encrypt(text)
		if err != nil {
			return nil, err // too long, although all parts have bounds
		}
		list = append(list, notice.Push{Target: b.Target, P256dh: b.P256dh, Data: data})
	}
	return list, nil
}

func (n *sealedNote) sign(signer *sealed.Device) ([]byte, error) {
	body, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	signature, err := signer.SignNote(sealed.PushNote, body)
	if err != nil {
		return nil, err
	}
	return json.Marshal(signedNote{n.Host, string(body), signature})
}

// report translates a ledger's report into one for relays, and returns the IDs of the ended
// events in it. When it returns, the question behind each ID and nonce is on disk.
func (s *seals) report(r notice.Report) (out notice.Report, ends []string, err error) {
	out = notice.Report{Instance: r.Instance, Seq: r.Seq, Open: []string{}, Events: []notice.Event{}, Ends: map[string][]notice.Push{}}
	list, err := s.ask(&r, &out)
	if err != nil || len(list) == 0 {
		return out, nil, err
	}
	signer, err := s.signer()
	if err != nil {
		return out, nil, err
	}
	browsers, _ := s.browsers(time.Now())
	for i := range list {
		p := &list[i]
		pushes, err := p.pushes(s.agent.host, signer, browsers)
		switch {
		case err != nil:
			return out, nil, err
		case p.event == nil:
			out.Ends[p.asked.ID] = pushes
			ends = append(ends, p.asked.ID)
		default:
			kind := notice.SealedNews
			if p.event.Kind.Needs() {
				kind = notice.Sealed
			}
			out.Events = append(out.Events, notice.Event{ID: p.asked.ID, Kind: kind, At: p.event.At, Pushes: pushes})
		}
	}
	return out, ends, nil
}

// maxEnds bounds the ended events in a report.
const maxEnds = 2

// ask gives IDs and nonces to the events of a report, and lists the open ones in out. It
// returns the events to report now, including ended ones.
func (s *seals) ask(r, out *notice.Report) (list []pending, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.unsaved // by an earlier report, whose question is not on disk
	for i := range s.state.Asked {
		if a := &s.state.Asked[i]; !a.Ended && !slices.Contains(r.Open, a.Event) {
			a.Ended, changed = true, true
		}
	}
	for i := range r.Events {
		e := &r.Events[i]
		if !e.Kind.Needs() {
			list = append(list, pending{e, vaultAsked{ID: s.newsID(r.Instance, e.ID)}})
			continue
		}
		a, fresh := s.askLocked(e)
		changed = changed || fresh
		list = append(list, pending{e, *a})
	}
	for len(s.state.Asked) > notice.MaxOpen { // relays refuse longer reports; they take an absent question as ended
		i := slices.IndexFunc(s.state.Asked, func(a vaultAsked) bool { return a.Ended })
		if i < 0 {
			break
		}
		s.state.Asked = slices.Delete(s.state.Asked, i, i+1)
	}
	ends := 0
	for _, a := range s.state.Asked {
		if a.Ended && ends < maxEnds {
			ends++
			list = append(list, pending{nil, a})
		} else { // for relays, an ended event stays open until its end is reported
			out.Open = append(out.Open, a.ID)
		}
	}
	if changed {
		err = s.saveLocked()
	}
	return list, err
}

// newsID returns the ID that relays and devices know for an event that needs no person. It depends on the
// host's key: a relay could otherwise compute it from a session's URI, and so test which session it is.
func (s *seals) newsID(instance, id string) string {
	mac := hmac.New(sha256.New, s.secret.Private())
	mac.Write([]byte("news\x00" + instance + id))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

// askLocked returns the entry of an event that needs a person, and whether the entry is
// new. If the host repeats a question, the entry keeps its nonce unless the question was
// answered.
func (s *seals) askLocked(e *notice.Event) (a *vaultAsked, fresh bool) {
	digest := e.Digest()
	for i := range s.state.Asked {
		a := &s.state.Asked[i]
		switch {
		case a.Event != e.ID || a.Ended:
		case a.Digest == digest && (!a.Used || a.At.Equal(e.At)):
			return a, false
		default:
			a.Ended = true
		}
	}
	s.state.Asked = append(s.state.Asked, vaultAsked{
		Event: e.ID, Digest: digest, Session: e.Session, At: e.At, ID: strings.ToLower(rand.Text()), Nonce: rand.Text(),
	})
	return &s.state.Asked[len(s.state.Asked)-1], true
}

// reported removes the ended events that relays have confirmed, and reports whether others
// are left.
func (s *seals) reported(ends []string) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(ends) > 0 {
		s.state.Asked = slices.DeleteFunc(s.state.Asked, func(a vaultAsked) bool { return slices.Contains(ends, a.ID) })
		if err := s.saveLocked(); err != nil {
			s.agent.cfg.Log.Error("ended questions not forgotten", "error", err)
		}
	}
	return slices.ContainsFunc(s.state.Asked, func(a vaultAsked) bool { return a.Ended })
}

// answer gives a device's answer to the host. It refuses answers that a relay made itself
// or could read.
func (s *seals) answer(ctx context.Context, given notice.Answer) *notice.Outcome {
	out := &notice.Outcome{Nonce: given.Nonce, Result: notice.Forbidden}
	if len(given.Letter) == 0 {
		s.agent.cfg.Log.Warn(auditMessage, "event", "refuse", "reason", "answer that is not sealed", "subject", given.Subject, "address", given.Remote)
		return out
	}
	sum := sha256.Sum256(given.Letter)
	once := hex.EncodeToString(sum[:])
	known, fresh := s.replies.begin(once)
	switch {
	case fresh:
		out.Result = s.reply(ctx, &given)
		if out.Result == notice.Away {
			s.replies.forget(once) // so that the device can try again
		} else {
			s.replies.end(&notice.Outcome{Nonce: once, Result: out.Result})
		}
	case known == nil: // in progress
		out.Result = notice.Away
	default:
		out.Result = known.Result
	}
	signer, err := s.signer()
	if err == nil {
		out.Proof, err = signer.SignNote(sealed.OutcomeNote, sealed.OutcomeText(given.Letter, string(out.Result)))
	}
	if err != nil {
		s.agent.cfg.Log.Error("outcome of an answer not signed", "error", err)
	}
	return out
}

// reply reads a device's sealed answer and gives it to the host. Each reason for a refusal
// has its branch.
func (s *seals) reply(ctx context.Context, given *notice.Answer) notice.Result {
	letter, err := sealed.ReadReply(given.Letter)
	if err != nil {
		return notice.NoAnswer
	}
	browsers, _ := s.browsers(time.Now())
	i := slices.IndexFunc(browsers, func(b browser) bool { return b.identity().Fingerprint().String() == letter.Device })
	if i < 0 {
		return notice.Forbidden
	}
	b := &browsers[i]
	reply, err := letter.Open(s.secret, b.identity())
	if err != nil {
		return notice.Forbidden
	}
	asked, ok := s.asked(letter.Event, reply.Nonce)
	if !ok {
		return notice.Unknown
	}
	open := b.open
	open.ID, open.Remote, open.Access = "answer-"+asked.ID[:12], given.Remote, string(b.policy.Access)
	e, known := s.agent.ledger.Open(asked.Event)
	out := &notice.Outcome{Result: notice.Unknown}
	_, blocked := s.agent.blocked.has(open)
	switch {
	case !known:
	case blocked || !letsAnswer(b.policy, &e):
		out.Result = notice.Forbidden
		auditAnswer(s.agent.cfg.Log, open, &e, out)
	case !slices.ContainsFunc(b.offers(&e), func(o sealedOffer) bool { return o.Option == reply.Option }):
		out.Result = notice.NoAnswer
	default:
		give(ctx, s.agent, out, open, b.Name, &e, asked.Digest, watch.Reply{Option: reply.Option, Text: reply.Text})
	}
	if out.Result == notice.Given {
		s.used(asked.ID)
	}
	return out.Result
}

// asked returns the open question with an ID and a nonce, unless it was answered.
func (s *seals) asked(id, nonce string) (vaultAsked, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.state.Asked {
		if a.ID == id && a.Nonce == nonce && !a.Used && !a.Ended {
			return a, true
		}
	}
	return vaultAsked{}, false
}

// used marks a question as answered, durably.
func (s *seals) used(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.state.Asked {
		if s.state.Asked[i].ID == id {
			s.state.Asked[i].Used = true
		}
	}
	if err := s.saveLocked(); err != nil {
		s.agent.cfg.Log.Error("answered question not marked", "error", err)
	}
}
