package sealed

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	webpush "github.com/SherClockHolmes/webpush-go"
)

// A sealed host notifies a device while the device has no connection: see docs/sealed.md,
// Notifications.

// A Subscription has the keys of a device's browser, which its push service does not know.
type Subscription struct {
	P256dh string `json:"p256dh"`
	Auth   string `json:"auth"`
}

// A capture stores the body of the library's request, and does not send it.
type capture struct{ body []byte }

func (c *capture) Do(r *http.Request) (*http.Response, error) {
	var err error
	c.body, err = io.ReadAll(r.Body)
	return &http.Response{Body: http.NoBody}, err
}

// Encrypt encrypts a message for a browser's push service (RFC 8291). The library also
// signs the request and needs a key for that, but the relay later signs its own request.
func (s Subscription) Encrypt(message []byte) ([]byte, error) {
	private, public, err := webpush.GenerateVAPIDKeys()
	if err != nil {
		return nil, err
	}
	var c capture
	response, err := webpush.SendNotification(message, &webpush.Subscription{
		Endpoint: "https://push.invalid/", Keys: webpush.Keys{P256dh: s.P256dh, Auth: s.Auth},
	}, &webpush.Options{HTTPClient: &c, Subscriber: "https://push.invalid/", VAPIDPublicKey: public, VAPIDPrivateKey: private, VapidExpiration: time.Now().Add(time.Minute)})
	if err != nil {
		return nil, err
	}
	return c.body, response.Body.Close()
}

// Purposes of signatures by a host outside of connections.
const (
	PushNote    = "push"
	OutcomeNote = "outcome"
)

func note(purpose string, text []byte) []byte {
	return append([]byte(label+purpose+"\x00"), text...)
}

// SignNote signs a text sent outside of a connection.
func (d *Device) SignNote(purpose string, text []byte) ([]byte, error) {
	return d.sign(note(purpose, text))
}

// IsNote reports whether a host has signed a text for a purpose.
func (v Verifier) IsNote(purpose string, text, signature []byte) bool {
	return v.verify(note(purpose, text), signature)
}

// A Reply is a device's answer to a notification, inside its letter. Set either Option or
// Text.
type Reply struct {
	Nonce  string `json:"nonce"` // of the notification
	Option string `json:"option,omitempty"`
	Text   string `json:"text,omitempty"`
}

// A ReplyLetter is an encrypted [Reply].
type ReplyLetter struct {
	Device string `json:"device"` // fingerprint
	Event  string `json:"event"`  // id of the notification
	Letter Letter `json:"letter"`
}

// MaxReply bounds a reply's JSON, in bytes.
const MaxReply = 8 << 10

func (l *ReplyLetter) head(host Fingerprint) string {
	return strings.Join([]string{"reply", host.String(), l.Device, l.Event}, "\n")
}

// WriteReply encrypts a reply to an event for a host, and encodes it.
func (d *Device) WriteReply(host Key, event string, r Reply) ([]byte, error) {
	content, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	to := HostFingerprint(host)
	l := ReplyLetter{Device: d.Identity().Fingerprint().String(), Event: event}
	letter, err := d.SealLetter(l.head(to), content, map[Fingerprint]Key{to: host})
	if err != nil {
		return nil, err
	}
	l.Letter = *letter
	return json.Marshal(l)
}

// ErrReply reports a malformed reply.
var ErrReply = errors.New("reply of a wrong form")

// ReadReply decodes a reply. The caller finds the device's keys, and then calls Open.
func ReadReply(data []byte) (l ReplyLetter, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if decoder.Decode(&l) != nil || decoder.InputOffset() != int64(len(data)) {
		return l, ErrReply
	}
	if _, err := ParseFingerprint(l.Device); err != nil {
		return l, ErrReply
	}
	return l, l.Letter.Check(MaxReply, 1)
}

// Open verifies that a device has written a reply, and decrypts it.
func (l *ReplyLetter) Open(host Secret, by Identity) (r Reply, err error) {
	if by.Fingerprint().String() != l.Device {
		return r, ErrLetter
	}
	own := HostFingerprint(host.Public())
	content, err := host.OpenLetter(&l.Letter, l.head(own), by.Verifier, own)
	if err != nil {
		return r, err
	}
	if json.Unmarshal(content, &r) != nil || (r.Option == "") == (r.Text == "") {
		return r, ErrReply
	}
	return r, nil
}

// OutcomeText returns the text which a host signs to confirm a reply.
func OutcomeText(reply []byte, result string) []byte {
	sum := sha256.Sum256(reply)
	return []byte(hex.EncodeToString(sum[:]) + "\n" + result)
}
