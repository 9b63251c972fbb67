package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
)

// TestAddressOfThePhonesNetworkIsChosen chooses among a machine's addresses. The chosen
// address must be reachable for a phone in the same network.
func TestAddressOfThePhonesNetworkIsChosen(t *testing.T) {
	for _, test := range []struct{ addresses, want string }{
		{"127.0.0.1/8 ::1/128", ""},
		{"127.0.0.1/8 fe80::1/64 192.168.1.7/24", "192.168.1.7"},
		{"2001:db8::7/64 10.0.0.7/8 127.0.0.1/8", "10.0.0.7"},
		{"203.0.113.7/24 192.168.1.7/24", "192.168.1.7"},
		{"203.0.113.7/24 2001:db8::7/64", "203.0.113.7"},
		{"2001:db8::7/64 fd00::7/64", "fd00::7"},
		{"169.254.1.1/16", ""},
	} {
		var list []net.Addr
		for text := range strings.FieldsSeq(test.addresses) {
			p := netip.MustParsePrefix(text)
			list = append(list, &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())})
		}
		got, ok := lanAddress(list)
		if ok != (test.want != "") || ok && got.String() != test.want {
			t.Errorf("%s: %v, %v; want %q", test.addresses, got, ok, test.want)
		}
	}
}

// TestDemoQRCodeFits80Columns checks that the demo's QR code fits into a terminal with
// 80 columns.
func TestDemoQRCodeFits80Columns(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	token, err := demoToken(keys.Tokens())
	if err != nil {
		t.Fatal(err)
	}
	const margin = 2 // columns of the margin that may be cut off
	if address := shortAddress("http://192.168.178.100:65535", token); cli.QRWidth(address)-margin > 80 {
		t.Errorf("the QR code of %s, %d bytes, needs %d columns; want at most 80", address, len(address), cli.QRWidth(address)-margin)
	}
}

// TestDemoOnLAN runs the demo with --lan alone. It must choose an address at which
// phones can reach it.
func TestDemoOnLAN(t *testing.T) {
	c := demoCmd{Listen: "0.0.0.0:8484"}
	if err := c.showOnLAN(); err == nil && (strings.HasPrefix(c.Listen, "0.0.0.0") || !strings.HasSuffix(c.Listen, ":8484")) {
		t.Errorf("the demo listens on %s; want an address of this machine's network, and the same port", c.Listen)
	}
	c = demoCmd{Listen: "192.0.2.7:1"}
	if err := c.showOnLAN(); err != nil || c.Listen != "192.0.2.7:1" {
		t.Errorf("the demo with an address listens on %s, %v; want that address", c.Listen, err)
	}
}

// TestDemoShowsItsQuestion runs the demo. The page must get the question that waits, which it shows above the list of sessions.
func TestDemoShowsItsQuestion(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, printed := io.Pipe()
	ended := make(chan error, 1)
	c := demoCmd{Listen: "127.0.0.1:0", Verbose: true}
	go func() {
		err := c.Run(ctx, &streams{out: printed, err: io.Discard, log: slog.New(slog.DiscardHandler)})
		_ = printed.CloseWithError(err)
		ended <- err
	}()
	var socket string
	for lines := bufio.NewScanner(out); socket == "" && lines.Scan(); {
		_, socket, _ = strings.Cut(lines.Text(), "ws://")
	}
	go io.Copy(io.Discard, out)
	host, token, ok := strings.Cut(socket, "/ahp/demo?access_token=")
	if !ok {
		t.Fatalf("the demo prints the address %q; want one with a token", socket)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/api/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	found := false
	for lines := bufio.NewScanner(response.Body); !found && lines.Scan(); {
		found = strings.Contains(lines.Text(), `"session":"demo:/login"`)
	}
	if !found {
		t.Error("the events within a minute have no question of the session demo:/login; want it")
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the demo ends with %v; want no error", err)
	}
}
