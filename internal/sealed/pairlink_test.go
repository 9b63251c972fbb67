package sealed

import (
	"net/url"
	"strings"
	"testing"
)

// TestPairLinksKeepTheirSecretFromServers makes a link for pairing. Its code and key must stand
// after #, because browsers send nothing after # to a server. CheckConsole must refuse a console's
// address on the relay, without TLS, or with further parts.
func TestPairLinksKeepTheirSecretFromServers(t *testing.T) {
	l := PairLink{"https://console.example.net/ahp/", "https://relay.example.com", "laptop", Code(fixed(1, 16)), Fingerprint(fixed(2, 16))}
	u, err := url.Parse(l.String())
	if err != nil {
		t.Fatal(err)
	}
	if sent := u.Host + u.RequestURI(); sent != "console.example.net/ahp/" || !strings.Contains(u.Fragment, l.Code.String()) {
		t.Errorf("a server receives %s, and the fragment is %s; want the secret only in the fragment", sent, u.Fragment)
	}
	for console, ok := range map[string]bool{
		"https://console.example.net":        true,
		"https://console.example.net/ahp/":   true,
		"http://127.0.0.1:8000/":             true,
		"http://localhost:8000":              true,
		"https://relay.example.com/":         false, // a page of the relay itself
		"https://RELAY.example.com":          false,
		"http://console.example.net":         false, // without TLS, browsers offer no cryptography
		"http://192.0.2.1":                   false,
		"https://console.example.net/?a=b":   false,
		"https://console.example.net/#":      false,
		"https://console.example.net/#a":     false,
		"https://ada:pw@console.example.net": false,
		"console.example.net":                false,
		"javascript:alert(1)":                false,
	} {
		if err := CheckConsole(console, "https://relay.example.com"); (err == nil) != ok {
			t.Errorf("%s: %v; want %v", console, err, ok)
		}
	}
}

// TestShareLinksKeepTheirKeysFromServers makes a link to a session. Its keys must stand after #,
// because browsers send nothing after # to a server. Links with missing parts or damaged keys must
// be refused, with errors that do not contain the keys.
func TestShareLinksKeepTheirKeysFromServers(t *testing.T) {
	l := ShareLink{Console: "https://console.example.net/", Relay: "https://relay.example.com", Host: "laptop", Session: "mock:/1", Key: Key(fixed(3, KeySize)), Device: vectorDevice(t, 1), Join: "share.1"}
	keys, err := LinkKeys(l.Device)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(l.String())
	if err != nil {
		t.Fatal(err)
	}
	if sent := u.Host + u.RequestURI(); sent != "console.example.net/" || !strings.Contains(u.Fragment, keys) {
		t.Errorf("a server receives %s, and the fragment is %s; want the keys only in the fragment", sent, u.Fragment)
	}
	if got, err := ParseShareLink(l.String()); err != nil || got.String() != l.String() || got.Device.Identity() != l.Device.Identity() || !IsShareLink(l.String()) {
		t.Errorf("the link is read as %+v, %v; want the same link", got, err)
	}
	if IsShareLink((PairLink{"", l.Relay, l.Host, Code{}, Fingerprint{}}).String()) {
		t.Error("IsShareLink of a pairing link = true; want false")
	}
	other, err := LinkKeys(vectorDevice(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", keys[:len(keys)-1], keys + "A", other[:86] + keys[86:], strings.Repeat("A", len(keys))} {
		if d, err := ReadLinkKeys(bad); err == nil {
			t.Errorf("the damaged keys %q are read as %v; want an error", bad, d.Identity().Fingerprint())
		}
	}
	for _, part := range []string{"relay", "host", "session", "hostkey", "link", "join"} {
		values, err := url.ParseQuery(u.Fragment)
		if err != nil {
			t.Fatal(err)
		}
		values.Del(part)
		if _, err := ParseShareLink("ahp-link:#" + values.Encode()); err == nil || strings.Contains(err.Error(), keys) {
			t.Errorf("a link without %s: %v; want an error without its keys", part, err)
		}
	}
}
