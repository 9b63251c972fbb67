package sealed

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/auth"
)

// CheckSubject reports a subject or level that no grant may have.
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
	Relay string // base URL
	Host  string
	Code  Code
	Key   Fingerprint // of the host's key
}

// pairPrefix begins a link without a console.
const pairPrefix = "ahp-pair:"

// String returns the link. Its secret is behind #, so browsers send it to no server.
func (l PairLink) String() string {
	values := url.Values{"relay": {l.Relay}, "host": {l.Host}, "code": {l.Code.String()}, "key": {l.Key.String()}}
	return pairPrefix + "#" + values.Encode()
}

// errLink reports a text that is no link for pairing. It does not contain the text,
// which may have a code.
var errLink = errors.New("this is no link for pairing: want ahp-pair:#relay=…&host=…&code=…&key=…")

// ParsePairLink reads a link.
func ParsePairLink(text string) (l PairLink, err error) {
	_, fragment, ok := strings.Cut(text, "#")
	values, err := url.ParseQuery(fragment)
	if err != nil || !ok || len(text) > 4<<10 {
		return l, errLink
	}
	for _, name := range []string{"relay", "host", "code", "key"} {
		if len(values[name]) != 1 {
			return l, errLink
		}
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
