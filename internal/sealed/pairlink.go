package sealed

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// CheckSubject rejects a subject or level which no grant may have.
func CheckSubject(subject string, level auth.Access) error {
	if !slices.Contains(auth.Levels(), level) {
		return fmt.Errorf("unknown level %q: want look, talk, approve, operate or own", string(level))
	}
	if subject == "" || len(subject) > auth.MaxSubjectLen || !printable(subject) {
		return fmt.Errorf("subject %q: want 1 to %d printable bytes", subject, auth.MaxSubjectLen)
	}
	return nil
}

// A PairLink is the content of a QR code for pairing.
type PairLink struct {
	Console string // address of a console not served by the relay; "": none
	Relay   string // base URL
	Host    string
	Code    Code
	Key     Fingerprint // of the host's key
}

// pairPrefix begins a link without a console address.
const pairPrefix = "ahp-pair:"

// String returns the link. The secret follows #, so browsers never send it to a server.
func (l PairLink) String() string {
	values := url.Values{"relay": {l.Relay}, "host": {l.Host}, "code": {l.Code.String()}, "key": {l.Key.String()}}
	return cmp.Or(l.Console, pairPrefix) + "#" + values.Encode()
}

// CheckConsole rejects an address which must not begin a pairing link for a relay. It rejects
// the relay's own address, because a page served by the relay could read the secret after #.
func CheckConsole(console, relay string) error {
	u, err := url.Parse(console)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.HasSuffix(console, "#") {
		return fmt.Errorf("console %q: want an address such as https://console.example.net", console)
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme != "https" && (u.Scheme != "http" || u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback())) {
		return fmt.Errorf("console %q: want https, or http on this machine: browsers give keys to no other page", console)
	}
	if r, err := url.Parse(relay); err == nil && strings.EqualFold(r.Host, u.Host) {
		return fmt.Errorf("console %q comes from the relay, which could change it and read the code: serve it elsewhere (make console-site)", console)
	}
	return nil
}

// errLink reports a text which is no pairing link. It does not quote the text, which may
// contain a code.
var errLink = errors.New("this is no link for pairing: want ahp-pair:#relay=…&host=…&code=…&key=…")

// ParsePairLink reads a link.
func ParsePairLink(text string) (l PairLink, err error) {
	console, fragment, ok := strings.Cut(text, "#")
	values, err := url.ParseQuery(fragment)
	if err != nil || !ok || len(text) > 4<<10 {
		return l, errLink
	}
	for _, name := range []string{"relay", "host", "code", "key"} {
		if len(values[name]) != 1 {
			return l, errLink
		}
	}
	if console != pairPrefix {
		l.Console = console
	}
	l.Relay, l.Host = values.Get("relay"), values.Get("host")
	if u, err := url.Parse(l.Relay); err != nil || u.Host == "" || ahp.CheckName("host", l.Host) != nil {
		return l, errLink
	}
	var err1, err2 error
	l.Code, err1 = ParseCode(values.Get("code"))
	l.Key, err2 = ParseFingerprint(values.Get("key"))
	return l, errors.Join(err1, err2)
}
