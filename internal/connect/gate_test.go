package connect_test

import (
	"testing"

	"ahprelay/test/faultproxy"
)

// newGate returns a network fault in front of a relay.
func newGate(t *testing.T, target string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New("", target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}
