package waiting

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/broker/link"
	"ahprelay/broker/remember"
	"ahprelay/internal/sealed"
)

// Subject returns the subject for a host's requests. Host may be *, for all hosts of a
// tenant.
func Subject(tenant, host string) string { return link.HostPrefix(tenant, host) + "ctl.waiting" }

// NewsSubject returns the subject on which a host-agent learns of new items.
func NewsSubject(tenant, host string) string {
	return link.HostPrefix(tenant, host) + "ctl.waitingnews"
}

const (
	MaxContent = 32 << 10 // bytes of an item's content before encryption
	MaxText    = 16 << 10 // bytes of a message
	MaxBoxes   = 17       // recipients of an item: the host and 16 devices
	MaxLife    = 7 * 24 * time.Hour
	MaxItem    = 64 << 10  // bytes of an item in JSON
	MaxBatch   = 384 << 10 // bytes of the offers in a batch
	MaxDevices = 256       // devices whose keys a host-agent keeps
	MaxOwn     = MaxBoxes - 1

	MaxWithout = 32 << 10 // bytes of the authors listed in a request

	maxRequest = 64 << 10
	maxWhy     = 200 // bytes of a reason in a result
)

// An Item is one version of something left for a host.
type Item struct {
	ID        string        `json:"id"`
	Session   string        `json:"session"` // ID of its session: remember.IDOf, or BlindID at a sealed host
	Version   uint64        `json:"version"`
	Expires   int64         `json:"expires"`        // ms
	Wake      int64         `json:"wake,omitempty"` // when to wake the host, in ms; 0: never
	Cancelled bool          `json:"cancelled,omitempty"`
	Device    string        `json:"device"` // fingerprint of the device which has signed the item
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

// IsID reports whether a text is a valid item ID: 16 bytes in hexadecimal.
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

// A Kind is the effect of an item.
type Kind string

// The kinds of items.
const (
	Message Kind = "message" // starts a turn, or is queued after the running turn
	Session Kind = "session" // creates a session, and starts a turn if there is a text
	Approve Kind = "approve" // answers a tool call which waits for approval
	Reply   Kind = "answer"  // answers a question
	Stop    Kind = "stop"    // cancels the running turn
)

// A Content is the encrypted part of an item. The author's device chooses the IDs in it. So
// the host-agent can find out whether the host has the item already.
type Content struct {
	Kind    Kind   `json:"kind"`
	Session string `json:"session"`        // URI
	Chat    string `json:"chat,omitempty"` // URI; "": the session's first chat
	Turn    string `json:"turn,omitempty"` // Message, Session: id for the new turn; Stop: the turn to cancel; Approve: the turn with the tool call

	Text  string          `json:"text,omitempty"`
	Model json.RawMessage `json:"model,omitempty"`

	// For Session:
	Provider  string `json:"provider,omitempty"`
	Directory string `json:"directory,omitempty"`

	// For answers:
	Request  string          `json:"request,omitempty"` // ID of the tool call or question
	Input    string          `json:"input,omitempty"`   // digest of the tool call or question, see DigestOf
	Approved bool            `json:"approved,omitempty"`
	Option   string          `json:"option,omitempty"`
	Response string          `json:"response,omitempty"` // accept or decline
	Answers  json.RawMessage `json:"answers,omitempty"`
}

// DigestOf returns the digest of what an answer refers to. For a tool call, the texts are its
// ID, name, input and message. For a question they are its ID and message, and the ID, kind
// and message of each part.
func DigestOf(texts ...string) string {
	sum := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(sum, "%d:%s\n", len(text), text)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// BlindID returns the ID of a session in the items of a sealed host. Relays lack the key.
func BlindID(key []byte, session string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(session))
	return hex.EncodeToString(mac.Sum(nil))
}

// ReadContent decodes and checks the content of an item for the session that has this ID.
func ReadContent(data []byte, session string, idOf func(session string) string) (c Content, err error) {
	if json.Unmarshal(data, &c) != nil {
		return c, errors.New("content: invalid JSON")
	}
	switch {
	case c.Session == "" || idOf(c.Session) != session:
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

// A State is what has become of an item.
type State string

const (
	Done      State = "done"      // the host has accepted it
	Refused   State = "refused"   // not delivered; the result has the reason
	Late      State = "late"      // not delivered, because what it refers to no longer exists, or it has expired
	Unknown   State = "unknown"   // perhaps delivered: the host ended at that moment
	Cancelled State = "cancelled" // the host has confirmed the cancellation
)

// A Result is a host-agent's report about an item.
type Result struct {
	ID      string `json:"id"`
	Version uint64 `json:"version"` // the version which the host-agent has handled
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

// Because returns a result with a reason for display.
func Because(state State, why string) Result {
	why = strings.ToValidUTF8(why, "")
	if len(why) > maxWhy {
		why = strings.ToValidUTF8(why[:maxWhy], "") + "…"
	}
	return Result{State: state, Why: why}
}

// An Op is what a request asks for.
type Op string

const (
	List   Op = "list"
	Report Op = "report"
)

// A Request is a request from a host-agent.
type Request struct {
	Instance string   `json:"instance"`
	Op       Op       `json:"op"`
	Nonce    string   `json:"nonce,omitempty"`   // for List: the answer repeats it
	Devices  []string `json:"devices,omitempty"` // for List: IDs of the devices whose keys the host-agent has
	Without  []string `json:"without,omitempty"` // for List: authors whose items the answer leaves out, because the host does not accept an earlier item now
	Result   *Result  `json:"result,omitempty"`  // what Report reports
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

// An Answer answers a Request. If Error is empty, the request has succeeded.
type Answer struct {
	Error string       `json:"error,omitempty"`
	Batch *auth.Signed `json:"batch,omitempty"` // answer to List: a Batch (auth.WaitingItems)
}

// A Batch contains the next items for a host, in order.
type Batch struct {
	Tenant   string    `json:"tenant"`
	Host     string    `json:"host"`
	Instance string    `json:"instance"` // the host-agent's instance
	Nonce    string    `json:"nonce"`    // nonce from the request
	Now      time.Time `json:"now"`      // the relay's time, by which items expire
	Items    []Offer   `json:"items"`
	More     bool      `json:"more,omitempty"`
	Removed  []string  `json:"removed,omitempty"` // which of the request's devices are removed
}

// An Offer is an item with the present authority of its author.
type Offer struct {
	Item    Item   `json:"item"`
	Subject string `json:"subject"`
	Device  string `json:"device"` // ID of the device which has left the item

	Out      string   `json:"out,omitempty"` // why the author has lost all authority
	Token    string   `json:"token"`
	Access   string   `json:"access"`
	Channels []string `json:"channels,omitempty"`
	Methods  []string `json:"methods,omitempty"`
	Name     string   `json:"name,omitempty"` // name of the device, for display
}

// ReadBatch decodes a batch and checks its items.
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
