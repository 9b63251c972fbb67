package connect_test

import (
	"testing"

	"ahprelay/test/faultproxy"
)

// newGate returns a proxy in front of target, which can break the network. It is closed when the
// test ends.
func newGate(t *testing.T, target string) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.New("", target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}
