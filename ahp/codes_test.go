package ahp_test

import (
	"testing"

	"ahprelay/ahp"
)

// closeCodes lists all close codes. reconnect is whether a client that knows only the ranges
// reconnects.
var closeCodes = []struct {
	code      ahp.CloseCode
	reason    string
	reconnect bool
}{
	{ahp.CloseShuttingDown, "relay shutting down", true},
	{ahp.CloseMessageTooBig, "message too big", false},
	{ahp.CloseResync, "resync", true},
	{ahp.CloseOverloaded, "overloaded", true},
	{ahp.CloseHostOffline, "host offline", true},
	{ahp.CloseBadMessage, "bad message", false},
	{ahp.CloseTokenEnded, "token expired", false},
	{ahp.CloseForbidden, "forbidden", false},
	{ahp.CloseUnknownHost, "unknown host", false},
}

func TestEachCloseCodeHasOneName(t *testing.T) {
	seen := map[ahp.CloseCode]bool{}
	for _, test := range closeCodes {
		if got := test.code.Reason(); got != test.reason {
			t.Errorf("CloseCode(%d).Reason() = %q; want %q", test.code, got, test.reason)
		}
		if seen[test.code] {
			t.Errorf("the close code %d has two names; want one", test.code)
		}
		seen[test.code] = true
		// Codes below 4000 belong to RFC 6455. The relay's codes have two ranges: below 4500 a
		// client reconnects.
		if test.code < 4000 {
			continue
		}
		if test.code > 4999 {
			t.Errorf("the close code %d is in no range of WebSocket; want at most 4999", test.code)
		}
		if inRange := test.code < 4500; inRange != test.reconnect {
			t.Errorf("close code %d says reconnect: %v; want %v", test.code, inRange, test.reconnect)
		}
	}
	if got := ahp.CloseCode(4999).Reason(); got != "" {
		t.Errorf("CloseCode(4999).Reason() = %q; want none", got)
	}
}

// TestErrorCodesDoNotCollide fails if an error code of the relay is in the range that JSON-RPC and
// AHP use.
func TestErrorCodesDoNotCollide(t *testing.T) {
	for _, code := range []int{ahp.CodeHostOffline, ahp.CodeRateLimited} {
		if -32768 <= code && code <= -32000 {
			t.Errorf("the error code %d is in the range that JSON-RPC reserves; want a different one", code)
		}
	}
}
