package sealed

import (
	"net/url"
	"strings"
	"testing"
)

// TestPairLinksKeepTheirSecretFromServers checks that code and key stand behind #, which no
// browser sends, and that no link leads to a page of the relay.
func TestPairLinksKeepTheirSecretFromServers(t *testing.T) {
	l := PairLink{"https://console.example.net/ahp/", "https://relay.example.com", "laptop", Code(fixed(1, 16)), Fingerprint(fixed(2, 16))}
	u, err := url.Parse(l.String())
	if err != nil {
		t.Fatal(err)
	}
	if sent := u.Host + u.RequestURI(); sent != "console.example.net/ahp/" || !strings.Contains(u.Fragment, l.Code.String()) {
		t.Errorf("a server receives %s; the secret is in %s", sent, u.Fragment)
	}
	for console, ok := range map[string]bool{
		"https://console.example.net":        true,
		"https://console.example.net/ahp/":   true,
		"http://127.0.0.1:8000/":             true,
		"http://localhost:8000":              true,
		"https://relay.example.com/":         false, // the relay's own page
		"https://RELAY.example.com":          false,
		"http://console.example.net":         false, // a browser gives it no keys
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
