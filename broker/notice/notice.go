package notice

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

// Subject returns the subject for a host's reports. Host may be *, for all hosts of a
// tenant.
func Subject(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.notice" }

// A Kind is the kind of an event.
type Kind string

// The kinds of events.
const (
	Approval Kind = "approval" // a tool asks for permission
	Question Kind = "question" // the agent asks a question
	SignIn   Kind = "signIn"   // a tool needs a person to sign in
	Input    Kind = "input"    // the session needs a person; the host gives no reason
	Done     Kind = "done"     // the agent has finished
	Failed   Kind = "failed"   // the agent has stopped with an error

	Undelivered Kind = "undelivered" // the host has not accepted an item left for it

	// Events of sealed hosts. Their content is encrypted in [Event.Pushes].
	Sealed     Kind = "sealed"     // the host needs a person
	SealedNews Kind = "sealedNews" // the host has news

	// Events that relays detect.
	Offline Kind = "offline" // the host cannot be reached
	Joined  Kind = "joined"  // a person joined a shared session
	Test    Kind = "test"    // a test of a notification target
)

// Kinds lists the kinds that a notification target may select, in display order.
var Kinds = []Kind{Approval, Question, SignIn, Input, Done, Failed, Undelivered, Offline, Joined}

// says has the words for an event, after the name of its session or host.
var says = map[Kind]string{
	Approval: "needs your approval", Question: "asks you something", SignIn: "needs you to sign in", Input: "needs you",
	Done: "is done", Failed: "has failed", Undelivered: "did not take what you left", Sealed: "needs you", SealedNews: "has news",
	Offline: "cannot be reached", Joined: "is being watched", Test: "this is a test",
}

// Says returns the words for an event of the kind, after the name of its session or host.
func (k Kind) Says() string { return says[k] }

// Line returns one line about an event, for display. The session's title may be "".
func Line(title, host string, k Kind) string {
	if title == "" {
		return host + ": " + k.Says()
	}
	return title + " on " + host + ": " + k.Says()
}

// Needs reports whether an event stays open until a person acts.
func (k Kind) Needs() bool {
	return k == Approval || k == Question || k == SignIn || k == Input || k == Sealed
}

// IsSealed reports whether the content of such events is encrypted.
func (k Kind) IsSealed() bool { return k == Sealed || k == SealedNews }

func (k Kind) fromHost() bool {
	return k.Needs() || k == Done || k == Failed || k == Undelivered || k == SealedNews
}

// A Form is how a question can be answered in a notification.
type Form string

// The forms of answers.
const (
	NoForm Form = ""       // the question can be answered only on the page
	Choice Form = "choice" // one of Options
	Text   Form = "text"   // text, or one of Options if there are any
)

// An Option is an answer that the host offers.
type Option struct {
	ID    string `json:"id"`
	Label string `json:"label"`
	Deny  bool   `json:"deny,omitempty"` // refuses the request
}

// An Event is something people may want to be notified of.
type Event struct {
	ID      string    `json:"id"`
	Kind    Kind      `json:"kind"`
	Session string    `json:"session,omitempty"` // URI; "": the event concerns the host
	Chat    string    `json:"chat,omitempty"`    // URI
	Title   string    `json:"title,omitempty"`   // title of the session
	Text    string    `json:"text,omitempty"`    // the question or error
	Detail  string    `json:"detail,omitempty"`  // the command or other action of the tool
	Answer  Form      `json:"answer,omitempty"`
	Options []Option  `json:"options,omitempty"`
	Risky   bool      `json:"risky,omitempty"` // the host does not consider the request safe, or has not decided yet
	Hidden  bool      `json:"edits,omitempty"` // the event does not show the whole request; the JSON name is historical
	Only    string    `json:"only,omitempty"`  // the only subject who may see the event; "": all
	At      time.Time `json:"at"`
	Pushes  []Push    `json:"pushes,omitempty"` // for a sealed kind
}

// A Push is an encrypted message from a sealed host to a browser, which alone can read it.
type Push struct {
	Target string `json:"way"`              // id of the browser's notification target at the relay
	P256dh string `json:"p256dh,omitempty"` // the browser's key that Data is encrypted for; "" from host-agents up to 1.0.0-rc.1
	Data   []byte `json:"data"`             // encrypted for the push service as aes128gcm (RFC 8291)
}

// Limits of events and reports.
const (
	MaxID      = 64
	MaxURI     = 4096
	MaxTitle   = 200 // bytes, like MaxText, MaxDetail and MaxLabel
	MaxText    = 500
	MaxDetail  = 1000
	MaxOptions = 8
	MaxLabel   = 100
	MaxOption  = 256 // bytes of an option's id

	MaxOpen   = 512       // a host's open events; also its unconfirmed closed events
	MaxEvents = 64        // events in one report
	MaxReport = 512 << 10 // bytes
	MaxPushes = 16        // for an event
	MaxPush   = 4096      // bytes of a push
	MaxKey    = 100       // bytes of a browser's key

	MaxSealed = 5 // events with pushes, and ends, in a sealed host's report
)

// ID returns the ID for an event which needs a person. The host names the event, within
// its session, by the text what.
func ID(session, what string) string {
	sum := sha256.Sum256([]byte(session + "\x00" + what))
	return hex.EncodeToString(sum[:16])
}

// Digest returns a digest of the event without At and Pushes. It changes if the host asks a
// different question under the same name.
func (e *Event) Digest() string {
	shown := *e
	shown.At, shown.Pushes = time.Time{}, nil
	data, _ := json.Marshal(shown) // cannot fail
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16])
}

// Fit makes texts printable and shortens long ones. An approval is marked Hidden if it
// loses text. If an option does not fit, all options and the form are removed.
func (e *Event) Fit() {
	title, text, detail := Cut(e.Title, MaxTitle), Cut(e.Text, MaxText), Cut(e.Detail, MaxDetail)
	if e.Kind == Approval && (!slices.Equal(strings.Fields(text), strings.Fields(e.Text)) || detail != strings.TrimSpace(e.Detail)) {
		e.Hidden = true // in a command, a line break has a meaning; in a sentence, it equals a space
	}
	e.Title, e.Text, e.Detail = title, text, detail
	whole := len(e.Options) <= MaxOptions
	for i := range e.Options {
		o := &e.Options[i]
		whole = whole && o.ID != "" && len(o.ID) <= MaxOption
		o.Label = cmp.Or(Cut(o.Label, MaxLabel), Cut(o.ID, MaxLabel))
	}
	if !whole {
		e.Options, e.Answer = nil, NoForm
	}
}

// Cut makes s printable, on one line, and at most limit bytes long.
func Cut(s string, limit int) string {
	if len(s) > 4*limit {
		s = s[:4*limit] // the rest is cut anyway
	}
	s = strings.ToValidUTF8(strings.Map(printable, s), "\uFFFD")
	s = strings.TrimSpace(s)
	const more = "…"
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit-len(more)], "") + more
}

// printable removes characters which could disguise a text: control characters and
// changes of text direction. It replaces line breaks and tabs by spaces.
func printable(r rune) rune {
	switch {
	case r == '\n' || r == '\t' || r == '\r':
		return ' '
	case unicode.IsControl(r) || unicode.Is(unicode.Cf, r) && r != '\u200d', r == '\u2028', r == '\u2029':
		return -1
	}
	return r
}

// Check rejects an event which host-agents must not report. Each field has its branch and
// its message.
func (e *Event) Check() error {
	if e.Kind.IsSealed() {
		return e.checkSealed()
	}
	bad := func(what string) error { return fmt.Errorf("event %.70q: %s", e.ID, what) }
	fit := *e
	fit.Options = append([]Option(nil), e.Options...)
	fit.Fit()
	switch {
	case !isID(e.ID):
		return bad("id is not 1 to 64 characters a-z and 0-9")
	case !e.Kind.fromHost():
		return bad("kind is not one that host-agents report")
	case e.Session == "" || len(e.Session) > MaxURI || len(e.Chat) > MaxURI:
		return bad("session or chat is missing or too long")
	case e.Answer != NoForm && e.Answer != Choice && e.Answer != Text:
		return bad("unknown answer form")
	case fit.Title != e.Title || fit.Text != e.Text || fit.Detail != e.Detail || len(fit.Options) != len(e.Options):
		return bad("a text is too long or not printable")
	case e.At.IsZero():
		return bad("no time")
	case len(e.Pushes) > 0:
		return bad("pushes of a host that is not sealed")
	}
	for i := range e.Options {
		if fit.Options[i] != e.Options[i] {
			return bad("an option is too long or not printable")
		}
	}
	return nil
}

// checkSealed rejects an event of a sealed kind if it has more than ID, kind, time and
// pushes.
func (e *Event) checkSealed() error {
	bare := Event{ID: e.ID, Kind: e.Kind}
	if !isID(e.ID) || e.Digest() != bare.Digest() || e.At.IsZero() {
		return fmt.Errorf("event %.70q: a sealed event has content, a bad id, or no time", e.ID)
	}
	return checkPushes(e.Pushes)
}

func checkPushes(pushes []Push) error {
	if len(pushes) > MaxPushes {
		return fmt.Errorf("%d pushes of an event; want at most %d", len(pushes), MaxPushes)
	}
	for _, p := range pushes {
		if !isID(p.Target) || len(p.Data) == 0 || len(p.Data) > MaxPush || len(p.P256dh) > MaxKey {
			return fmt.Errorf("push of %d bytes for %.70q", len(p.Data), p.Target)
		}
	}
	return nil
}

// Push returns the push for a notification target, or nil.
func (e *Event) Push(way string) *Push {
	for i := range e.Pushes {
		if p := &e.Pushes[i]; p.Target == way {
			return p
		}
	}
	return nil
}

func isID(id string) bool {
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return 0 < len(id) && len(id) <= MaxID
}

// A Report lists a host's events, from its host-agent to relays.
type Report struct {
	Instance string   `json:"instance"` // the host-agent's instance
	Seq      uint64   `json:"seq"`      // rises with each report
	Open     []string `json:"open"`     // IDs of all open events
	Events   []Event  `json:"events"`   // events not confirmed yet: open events, then closed events

	// Ends contains the pushes which tell browsers that events of a sealed host are
	// closed, by event ID.
	Ends map[string][]Push `json:"ends,omitempty"`
}

// An Ack confirms a report.
type Ack struct {
	Seq   uint64 `json:"seq"`             // Seq of the report that this answers
	Again bool   `json:"again,omitempty"` // the relay needs all open events in full
}

// ReadReport decodes and checks a report.
func ReadReport(data []byte) (r Report, err error) {
	if len(data) > MaxReport {
		return r, fmt.Errorf("report of %d bytes; want at most %d", len(data), MaxReport)
	}
	if json.Unmarshal(data, &r) != nil {
		return r, errors.New("report: invalid JSON")
	}
	if err := ahp.CheckName("instance", r.Instance); err != nil {
		return r, err
	}
	if len(r.Open) > MaxOpen || len(r.Events) > MaxEvents {
		return r, fmt.Errorf("report of %d open and %d new events; want at most %d and %d", len(r.Open), len(r.Events), MaxOpen, MaxEvents)
	}
	for _, id := range r.Open {
		if !isID(id) {
			return r, fmt.Errorf("report has a bad id %.70q", id)
		}
	}
	sealed := len(r.Ends)
	for i := range r.Events {
		if err := r.Events[i].Check(); err != nil {
			return r, err
		}
		if len(r.Events[i].Pushes) > 0 { // a relay's report of open events has none
			sealed++
		}
	}
	if sealed > MaxSealed {
		return r, fmt.Errorf("report of %d events with pushes and ends; want at most %d", sealed, MaxSealed)
	}
	for _, pushes := range r.Ends {
		if err := checkPushes(pushes); err != nil {
			return r, err
		}
	}
	return r, nil
}
