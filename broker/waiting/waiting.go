package waiting

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/broker/link"
	"ahprelay/broker/remember"
	"ahprelay/internal/sealed"
)

// Subject returns the subject for a host's requests; host may be *, for all hosts in a
// tenant.
func Subject(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.waiting" }

// NewsSubject returns the subject on which a host-agent hears of new items.
func NewsSubject(tenant, host string) string {
	return link.HostPrefix(tenant, host) + "ctl.waitingnews"
}

// Bounds.
const (
	MaxContent = 32 << 10 // bytes of an item's content before sealing
	MaxText    = 16 << 10 // bytes of a message
	MaxBoxes   = 17       // readers of an item: the host and 16 devices
	MaxLife    = 7 * 24 * time.Hour
	MaxItem    = 64 << 10  // bytes of an item in JSON
	MaxBatch   = 384 << 10 // bytes of the items in a batch
	MaxDevices = 256       // keys of devices that a host-agent keeps
	MaxOwn     = MaxBoxes - 1

	MaxWithout = 32 << 10 // bytes of the authors in a request

	maxRequest = 64 << 10
	maxWhy     = 200 // bytes of a result's reason
)

// An Item is a version of something that waits.
type Item struct {
	ID        string        `json:"id"`
	Session   string        `json:"session"` // ID of its session: see remember.IDOf
	Version   uint64        `json:"version"`
	Expires   int64         `json:"expires"`        // ms
	Wake      int64         `json:"wake,omitempty"` // when to wake the host, in ms; 0: never
	Cancelled bool          `json:"cancelled,omitempty"`
	Device    string        `json:"device"` // fingerprint of the device that has signed
	Letter    sealed.Letter `json:"letter"`
}

// Head returns the head of the item's letter.
func (i *Item) Head(tenant, host, subject string) string {
	cancelled := 0
	if i.Cancelled {
		cancelled = 1
	}
	return fmt.Sprintf("%s\n%s\n%s\n%s\n%s\n%d\n%d\n%d\n%d\n%s", tenant, host, subject, i.Session, i.ID, i.Version, i.Expires, i.Wake, cancelled, i.Device)
}

// IsID reports whether a text is the ID of an item: 16 bytes in hexadecimal.
func IsID(id string) bool {
	raw, err := hex.DecodeString(id)
	return err == nil && len(raw) == 16 && hex.EncodeToString(raw) == id
}

// Check rejects a malformed item.
func (i *Item) Check() error {
	switch {
	case !IsID(i.ID):
		return fmt.Errorf("item has a bad id %.70q", i.ID)
	case !remember.IsID(i.Session) || i.Session == remember.ListID:
		return fmt.Errorf("item has a bad session %.70q", i.Session)
	case i.Version == 0 || i.Version>>53 != 0: // exact in JavaScript
		return fmt.Errorf("item has version %d; want 1 to 2^53-1", i.Version)
	case i.Expires <= 0 || i.Expires>>53 != 0 || i.Wake < 0 || i.Wake > i.Expires:
		return errors.New("item has a bad time")
	}
	if _, err := sealed.ParseFingerprint(i.Device); err != nil {
		return fmt.Errorf("item's device: %w", err)
	}
	return i.Letter.Check(MaxContent, MaxBoxes)
}

// A Kind is the purpose of an item.
type Kind string

// The kinds of items.
const (
	Message Kind = "message" // begins a turn, or is queued behind the running turn
	Session Kind = "session" // creates a session, and begins a turn if there is a text
	Approve Kind = "approve" // answers a tool call that waits for an approval
	Reply   Kind = "answer"  // answers a question
	Stop    Kind = "stop"    // cancels the running turn
)

// A Content is the secret part of an item. IDs are fixed by the author's device, so the
// host can be asked whether it has the item already.
type Content struct {
	Kind    Kind   `json:"kind"`
	Session string `json:"session"`        // URI
	Chat    string `json:"chat,omitempty"` // URI; "": the session's first
	Turn    string `json:"turn,omitempty"` // of the message, or the turn to cancel or answer

	Text  string          `json:"text,omitempty"`
	Model json.RawMessage `json:"model,omitempty"`

	// Of a session.
	Provider  string `json:"provider,omitempty"`
	Directory string `json:"directory,omitempty"`

	// Of an answer.
	Request  string          `json:"request,omitempty"` // ID of the tool call or question
	Input    string          `json:"input,omitempty"`   // digest of the tool call, or of the question: see DigestOf
	Approved bool            `json:"approved,omitempty"`
	Option   string          `json:"option,omitempty"`
	Response string          `json:"response,omitempty"` // accept or decline
	Answers  json.RawMessage `json:"answers,omitempty"`
}

// DigestOf returns the digest of texts that an answer is for. The texts of a tool call are
// its ID, name, input and message; those of a question are its ID, message, and for each part
// its ID, kind and message.
func DigestOf(texts ...string) string {
	sum := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(sum, "%d:%s\n", len(text), text)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// ReadContent decodes and checks an item's content.
func ReadContent(data []byte, session string) (c Content, err error) {
	if json.Unmarshal(data, &c) != nil {
		return c, errors.New("content: invalid JSON")
	}
	switch {
	case c.Session == "" || remember.IDOf(c.Session) != session:
		return c, errors.New("content for a different session")
	case len(c.Text) > MaxText:
		return c, fmt.Errorf("message of %d bytes; want at most %d", len(c.Text), MaxText)
	case c.Kind == Reply && c.Response != "accept" && c.Response != "decline":
		return c, errors.New("answer without a response")
	}
	required, known := map[Kind][]string{
		Message: {c.Turn, c.Text}, Session: {c.Provider}, Stop: {c.Chat, c.Turn},
		Approve: {c.Chat, c.Turn, c.Request, c.Input}, Reply: {c.Chat, c.Request, c.Input},
	}[c.Kind]
	if c.Kind == Session && c.Text != "" {
		required = append(required, c.Turn)
	}
	switch {
	case !known:
		return c, fmt.Errorf("unknown kind %.20q", c.Kind)
	case slices.Contains(required, ""):
		return c, fmt.Errorf("%s without a required member", c.Kind)
	}
	return c, nil
}

// A State is the end of an item.
type State string

// The states.
const (
	Done      State = "done"      // the host has it
	Refused   State = "refused"   // not delivered, for the reason
	Late      State = "late"      // not delivered: what it was for no longer exists, or its time was over
	Unknown   State = "unknown"   // it may have been delivered: the host ended at that moment
	Cancelled State = "cancelled" // the host has confirmed that it will not be delivered
)

// A Result is the host-agent's report about an item.
type Result struct {
	ID      string `json:"id"`
	Version uint64 `json:"version"` // of the item that the host-agent has judged
	State   State  `json:"state"`
	Why     string `json:"why,omitempty"`
}

// Check rejects a malformed result.
func (r *Result) Check() error {
	switch r.State {
	case Done, Refused, Late, Unknown, Cancelled:
	default:
		return fmt.Errorf("unknown state %.20q", r.State)
	}
	if !IsID(r.ID) || r.Version == 0 || len(r.Why) > 4*maxWhy {
		return errors.New("malformed result")
	}
	return nil
}

// Because returns a result with a reason that people can read.
func Because(state State, why string) Result {
	why = strings.ToValidUTF8(why, "")
	if len(why) > maxWhy {
		why = strings.ToValidUTF8(why[:maxWhy], "") + "…"
	}
	return Result{State: state, Why: why}
}

// An Op is the operation of a request.
type Op string

// The requests of host-agents.
const (
	List   Op = "list"
	Report Op = "report"
)

// A Request is a host-agent's request.
type Request struct {
	Instance string   `json:"instance"`
	Op       Op       `json:"op"`
	Nonce    string   `json:"nonce,omitempty"`   // of List
	Devices  []string `json:"devices,omitempty"` // of List: IDs of the devices whose keys the host-agent has
	Without  []string `json:"without,omitempty"` // of List: authors whose items are not wanted now
	Result   *Result  `json:"result,omitempty"`  // of Report
}

// ReadRequest decodes and checks a request.
func ReadRequest(data []byte) (r Request, err error) {
	if len(data) > maxRequest {
		return r, fmt.Errorf("request of %d bytes; want at most %d", len(data), maxRequest)
	}
	if json.Unmarshal(data, &r) != nil {
		return r, errors.New("request: invalid JSON")
	}
	if err := ahp.CheckName("instance", r.Instance); err != nil {
		return r, err
	}
	switch {
	case r.Op == List && (r.Nonce == "" || len(r.Nonce) > 64 || len(r.Devices) > MaxDevices):
		return r, errors.New("list with a bad nonce, or with too many devices")
	case r.Op == Report && r.Result == nil:
		return r, errors.New("report without a result")
	case r.Op == Report:
		return r, r.Result.Check()
	case r.Op != List:
		return r, fmt.Errorf("unknown request %.20q", r.Op)
	}
	return r, nil
}

// An Answer answers a Request. Without an Error, the request is done.
type Answer struct {
	Error string  `json:"error,omitempty"`
	Batch *Signed `json:"batch,omitempty"` // of List
}

// A Signed is a Batch with the relay's signature (auth.WaitingItems), because NATS servers
// may be external.
type Signed struct {
	Body      []byte `json:"body"`
	Key       []byte `json:"key"`
	Signature []byte `json:"signature"`
}

// A Batch has the next items of a host, in order.
type Batch struct {
	Tenant   string    `json:"tenant"`
	Host     string    `json:"host"`
	Instance string    `json:"instance"` // of the host-agent
	Nonce    string    `json:"nonce"`    // of the request
	Now      time.Time `json:"now"`      // by the relay's clock, which judges expiry
	Items    []Offer   `json:"items"`
	More     bool      `json:"more,omitempty"`
	Removed  []string  `json:"removed,omitempty"` // of the request's devices, those that are removed
}

// An Offer is an item with its author's present authority.
type Offer struct {
	Item    Item   `json:"item"`
	Subject string `json:"subject"`
	Device  string `json:"device"` // ID of the device that left the item

	Out      string   `json:"out,omitempty"` // why the author has no authority any more
	Token    string   `json:"token"`
	Access   string   `json:"access"`
	Channels []string `json:"channels,omitempty"`
	Methods  []string `json:"methods,omitempty"`
	Name     string   `json:"name,omitempty"` // of the device, for display
}

// ReadBatch decodes a batch, and checks its items.
func ReadBatch(body []byte) (b Batch, err error) {
	if json.Unmarshal(body, &b) != nil {
		return b, errors.New("batch: invalid JSON")
	}
	for i := range b.Items {
		if err := b.Items[i].Item.Check(); err != nil {
			return b, err
		}
	}
	return b, nil
}
