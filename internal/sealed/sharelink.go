package sealed

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/url"
	"strings"

	"ahprelay/ahp"
)

// A ShareLink is a link to one session of a sealed host. It contains the private keys of a
// device which the host has created for the link. All viewers act as that device.
type ShareLink struct {
	Console string // address of a console not served by the relay; "": none
	Relay   string // base URL
	Host    string
	Session string // URI
	Key     Key    // the host's key
	Device  *Device
	Join    string // secret which admits viewers to the relay; "": none
}

// sharePrefix begins a link without a console address.
const sharePrefix = "ahp-link:"

// linkKeysSize is the size of a link's keys: the private keys and the verifier.
const linkKeysSize = 2*KeySize + VerifierSize

// LinkKeys encodes the keys of a link's device.
func LinkKeys(d *Device) (string, error) {
	private, err := d.Private()
	if err != nil {
		return "", err
	}
	verifier := d.Identity().Verifier
	return base64.RawURLEncoding.EncodeToString(append(private, verifier[:]...)), nil
}

// ReadLinkKeys decodes the keys of a link's device.
func ReadLinkKeys(text string) (*Device, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != linkKeysSize {
		return nil, errShareLink
	}
	d, err := ReadDevice(b[:2*KeySize])
	if err != nil || d.Identity().Verifier != Verifier(b[2*KeySize:]) {
		return nil, errShareLink
	}
	return d, nil
}

// String returns the link. Its secrets follow #, so browsers never send them to a server.
func (l ShareLink) String() string {
	keys, err := LinkKeys(l.Device)
	if err != nil {
		return ""
	}
	values := url.Values{
		"relay": {l.Relay}, "host": {l.Host}, "session": {l.Session}, "hostkey": {base64.RawURLEncoding.EncodeToString(l.Key[:])}, "link": {keys}, "join": {l.Join},
	}
	return cmp.Or(l.Console, sharePrefix) + "#" + values.Encode()
}

// errShareLink reports a text which is no link to a session. It does not quote the text, which
// may contain keys.
var errShareLink = errors.New("this is no link to a session of a sealed host: want #relay=…&host=…&session=…&hostkey=…&link=…&join=…")

// IsShareLink reports whether a text looks like a link to a session of a sealed host.
func IsShareLink(text string) bool {
	_, fragment, _ := strings.Cut(text, "#")
	values, err := url.ParseQuery(fragment)
	return err == nil && values.Has("link")
}

// ParseShareLink reads a link.
func ParseShareLink(text string) (l ShareLink, err error) {
	console, fragment, ok := strings.Cut(text, "#")
	values, err := url.ParseQuery(fragment)
	if err != nil || !ok || len(text) > 4<<10 {
		return l, errShareLink
	}
	for _, name := range []string{"relay", "host", "session", "hostkey", "link", "join"} {
		if len(values[name]) != 1 {
			return l, errShareLink
		}
	}
	if console != sharePrefix {
		l.Console = console
	}
	l.Relay, l.Host, l.Session, l.Join = values.Get("relay"), values.Get("host"), values.Get("session"), values.Get("join")
	key, err := base64.RawURLEncoding.Strict().DecodeString(values.Get("hostkey"))
	if u, bad := url.Parse(l.Relay); bad != nil || u.Host == "" || ahp.CheckName("host", l.Host) != nil || err != nil || len(key) != KeySize {
		return l, errShareLink
	}
	l.Key = Key(key)
	l.Device, err = ReadLinkKeys(values.Get("link"))
	return l, err
}

// NewViewer returns a random secret by which a host-agent recognizes a viewer.
func NewViewer() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// ViewerName returns a viewer's name for display. It does not reveal the secret.
func ViewerName(viewer string) string {
	return base64.RawURLEncoding.EncodeToString(digest("viewer", []byte(viewer)))[:10]
}
