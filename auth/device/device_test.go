package device

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestRefusedLoginReturnsNoDevice refuses a device. Run must return no device beside the error.
func TestRefusedLoginReturnsNoDevice(t *testing.T) {
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/auth/device" {
			fmt.Fprint(w, `{"device_code":"d","user_code":"BCDF-GHJK","expires_in":60,"interval":1}`)
			return
		}
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"access_denied","error_description":"the request was refused"}`)
	}))
	defer relay.Close()
	d, err := Login{Relay: relay.URL, Show: func(Code) {}}.Run(t.Context())
	if d != nil || err == nil {
		t.Errorf("Run of a refused device = %v, %v; want no device, and an error", d, err)
	}
}

// TestLoginNamesAServerThatIsNoRelay logs in at a different server, and at a path of a relay. The error
// must name the address, and not repeat only the server's words.
func TestLoginNamesAServerThatIsNoRelay(t *testing.T) {
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
		other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, http.StatusText(status), status)
		}))
		_, err := Login{Relay: other.URL, Show: func(Code) {}}.Run(t.Context())
		other.Close()
		if err == nil || !strings.Contains(err.Error(), other.URL) || !strings.Contains(err.Error(), "check the URL") {
			t.Errorf("Run at a server that answers %d = %v; want an error with the address and the remedy", status, err)
		}
	}
}

// TestRelayHasNoPath checks addresses of relays. Device proofs, the console's service worker and links need the relay at the root of
// its host name. An error shows no text that may contain a secret.
func TestRelayHasNoPath(t *testing.T) {
	for text, want := range map[string]string{
		"https://relay.example.com": "https://relay.example.com", "https://relay.example.com/": "https://relay.example.com", "https://relay.example.com//": "https://relay.example.com",
		"http://127.0.0.1:8484": "http://127.0.0.1:8484", "http://[::1]:8484/": "http://[::1]:8484", "https://[fe80::1%25eth0]": "https://[fe80::1%25eth0]",
		"https://example.com/relay": `"https://example.com/relay"`, "https://relay.example.com/device": "without a path", "relay.example.com": `"relay.example.com"`, "": `""`, " https://a.b": `" https://a.b"`,
		"HTTPS://a.b": "want http://", "ws://a.b": "want http://", "https://": "want http://", "http://:8484": "want http://", "http://relay:port": "want http://",
		"https://a.b/#host=laptop&token=secret": `"…"`, "https://ada:secret@a.b": `"…"`, "https://a.b?tkn=secret": `"…"`,
	} {
		base, err := BaseURL(text)
		switch {
		case err == nil && base != want:
			t.Errorf("BaseURL(%q) = %q; want %q", text, base, want)
		case err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret")):
			t.Errorf("BaseURL(%q): %v; want %q in the error, and no secret", text, err, want)
		}
		if err := CheckRelay(text, true); (err == nil) != (base != "") {
			t.Errorf("CheckRelay(%q) = %v; want the verdict of BaseURL", text, err)
		}
	}
}

// TestAccessExpiresWhileTheMachineSleeps takes a relay's answer with an access token. The time until
// which the device uses the token must have no reading of the monotonic clock: that clock stops while
// a laptop sleeps, so the device would use the token after its expiry.
func TestAccessExpiresWhileTheMachineSleeps(t *testing.T) {
	d := newDevice("https://relay.example.com", nil)
	d.took(answer{Access: "token", Seconds: 600})
	if d.until != d.until.Round(0) {
		t.Errorf("the token is used until %v; want a time without a monotonic reading", d.until)
	}
}
