package canvas

import (
	"strings"
	"testing"
)

// Each pair is a canvas domain and the relay's host name. Shares explains how a pair
// could share cookies, and returns the empty string for a safe pair.
func TestCanvasDomainIsNotTheRelays(t *testing.T) {
	for _, test := range []struct{ canvases, relay, want string }{
		{"canvas.relay.example.com", "relay.example.com", "is below the relay's domain"},
		{"relay.example.com", "relay.example.com", "is below the relay's domain"},
		{"canvas.example.com", "relay.example.com", "shares its registrable domain example.com"},
		{"canvas.example.co.uk", "Relay.Example.co.uk.", "shares its registrable domain example.co.uk"},
		{"example.com", "relay.example.com", "shares its registrable domain example.com"},
		{"canvas.corp", "relay.canvas.corp", "shares its registrable domain canvas.corp"},
		{"example-canvases.com", "relay.example.com", ""},
		{"canvas.co.uk", "relay.co.uk", ""},
		{"github.io", "relay.github.io", ""}, // public suffix: browsers accept no cookies for it
		{"a.github.io", "b.github.io", ""},
		{"localhost", "relay.example.com", ""},
		{"canvas.example.com", "127.0.0.1", ""},
		{"canvas.example.com", "[::1]", ""},
		{"canvas.example.com", "localhost", ""},
		{"canvas.example.com", "", ""},
	} {
		origin, err := ParseDomain(test.canvases)
		if err != nil {
			t.Fatal(err)
		}
		if got := origin.Shares(test.relay); (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("the check of the canvas domain %s for a relay at %s = %q; want %q", test.canvases, test.relay, got, test.want)
		}
	}
}
