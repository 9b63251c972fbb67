package contentproxy

import (
	"fmt"
	"strings"
	"testing"

	"ahprelay/ahp/view"
)

// claims dispatches an action from the client that names an address with this port for a canvas.
func (c *client) claims(id string, port int) {
	c.t.Helper()
	c.sends(`{"method":"dispatchAction","params":{"channel":"ahp-canvas:/%s","clientSeq":1,"action":{"type":"canvas/updated","url":"http://127.0.0.1:%d/"}}}`, id, port)
}

// mints reports whether the client gets a minted address for a host's canvas at this port.
func (c *client) mints(id string, port int) bool {
	c.t.Helper()
	return strings.Contains(c.opens(id, serverState("i"+id, fmt.Sprintf("http://127.0.0.1:%d/", port))), Scheme)
}

// TestClaimsAreOfOneCanvas has a client name 2,000 ports for a canvas. Addresses with these ports
// must not be minted for this canvas, and must be minted for others.
func TestClaimsAreOfOneCanvas(t *testing.T) {
	h := newHost(t, Config{})
	c := h.client(t)
	for port := range 2000 {
		c.claims("1", 4000+port)
	}
	for _, port := range []int{4000, 4001, 5999, 9000} {
		if c.mints("1", port) {
			t.Errorf("an address with the port %d, which a client may have named, is replaced by ahp-canvas-content:; want it unchanged", port)
		}
	}
	if !h.client(t).mints("2", 4000) {
		t.Error("the host's address for a different canvas is not replaced by ahp-canvas-content:; want it replaced")
	}
	if n := len(h.claims[canvasKey{c.known, "ahp-canvas:/1"}]); n != maxPorts+1 {
		t.Errorf("%d ports are remembered; want %d", n, maxPorts+1)
	}
}

// TestClaimsInOtherWords has a client write an address in an unusual way, and the host repeat it in
// the usual way. The host's address must not be minted for this canvas, and must be minted for
// another.
func TestClaimsInOtherWords(t *testing.T) {
	for _, said := range []string{
		"http://127.0.0.1:04000/", "http://LOCALHOST:4000", "HTTP://127.1:4000/x", "http://2130706433:4000?x", `http:\\\\localhost:4000\\x`,
		"\\thttp://local\\nhost:40\\t00/", "http:localhost:4000", "http://user:4000@localhost:4000/", "http://[0::1]:4000/", "http://localhost:4000#/",
	} {
		c := newHost(t, Config{}).client(t)
		c.sends(`{"method":"dispatchAction","params":{"channel":"ahp-canvas:/1","clientSeq":1,"action":{"type":"canvas/updated","url":"%s"}}}`, said)
		if c.mints("1", 4000) || !c.mints("2", 4000) {
			t.Errorf("%s: the client's address is minted, or a different canvas's is not; want only the latter", said)
		}
	}
	c := newHost(t, Config{}).client(t)
	c.sends(`{"method":"dispatchAction","params":{"channel":"ahp-canvas:/1","clientSeq":1,"action":{"type":"canvas/updated","url":"http://LOCALHOST/"}}}`)
	if c.mints("1", 80) {
		t.Error("an address without a port is replaced by ahp-canvas-content:; want it unchanged")
	}
}

// TestClaimsAreBounded has clients name ports for more canvases than the Host remembers. For
// canvases above the bound, no address may be minted.
func TestClaimsAreBounded(t *testing.T) {
	h := newHost(t, Config{})
	c := h.client(t)
	for i := range maxClaims + 1 {
		c.claims(fmt.Sprint("c", i), 4000)
	}
	if len(h.claims) != maxClaims || c.mints(fmt.Sprint("c", maxClaims), 4000) {
		t.Errorf("%d canvases are remembered, or an address for a canvas above the bound is minted; want maxClaims, and none", len(h.claims))
	}
}

// TestEndedProcessesAreForgotten connects to two host processes and ends the first process. The
// Host must keep only what it knows about the second process.
func TestEndedProcessesAreForgotten(t *testing.T) {
	h := newHost(t, Config{})
	var first *view.Host
	for range 2 {
		v := view.NewHost(nil).Conn("ada")
		c := &client{Conn: h.Conn(v.Host()), view: v, t: t}
		c.claims("1", 4000)
		if c.opens("1", serverState("i1", "http://127.0.0.1:4001/")); first == nil {
			first = v.Host()
		}
	}
	h.Ended(first)
	if len(h.claims) != 1 || len(h.vouched) != 1 {
		t.Errorf("%d claims and %d facts from hosts are kept; want one of each, for the running process", len(h.claims), len(h.vouched))
	}
	for c := range h.vouched {
		if c.of == first {
			t.Error("a fact from the ended process is kept; want it forgotten")
		}
	}
}
