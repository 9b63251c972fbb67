package connect_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ahprelay/internal/connect"
	"ahprelay/internal/sealed"
	"ahprelay/test/locked"
)

// newLister returns a relay that lists these hosts, and the server behind it.
func newLister(t *testing.T, hosts string) (*connect.Relay, *httptest.Server) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"hosts":[`+hosts+`]}`) }))
	t.Cleanup(server.Close)
	return connect.NewRelay(server.URL, connect.FileTokens(file)), server
}

// TestPairedHostIsNoOtherRelaysHost pairs this machine with a host at a relay that does not answer.
// Another relay lists a host with the same name. A request that names no relay must not reach that host,
// where it would be opened unsealed. It must still reach a host with which this machine is not paired. The
// list of hosts for local programs must name the relay of the other host: its bare name opens nothing.
func TestPairedHostIsNoOtherRelaysHost(t *testing.T) {
	own, away := newLister(t, `{"host":"laptop"}`)
	other, _ := newLister(t, `{"host":"laptop"},{"host":"desktop"}`)
	away.Close()
	home := &connect.Home{Dir: t.TempDir()}
	device, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	if err := home.SavePairing(&connect.Pairing{Relay: own.URL, Host: "laptop", Device: device}); err != nil {
		t.Fatal(err)
	}
	relays := connect.NewRelays(own, other).Seal(home)
	for _, state := range []string{"paired", "unpaired"} {
		if relay, err := relays.Find(context.Background(), "", "laptop"); relay != nil || err == nil || !strings.Contains(err.Error(), own.Name) {
			t.Errorf("%s: Find returns a relay: %v, %v; want an error that names %s", state, relay != nil, err, own.Name)
		}
		if relay, err := relays.Find(context.Background(), "", "desktop"); relay != other || err != nil {
			t.Errorf("%s: Find returns the relay that lists another host: %v, %v; want it", state, relay == other, err)
		}
		w := &world{log: &locked.Buffer{}, tokens: connect.NewTokens(filepath.Join(t.TempDir(), "tokens.json"))}
		w.serve(t, relays, nil)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.address+"/api/hosts", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+w.token(t, "console"))
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		list, err := io.ReadAll(answer.Body)
		if want := `"host":"` + other.Name + `/laptop"`; err != nil || answer.Body.Close() != nil || !strings.Contains(string(list), want) || !strings.Contains(string(list), `"host":"desktop"`) {
			t.Errorf("%s: the list of hosts is %s, %v; want %s and desktop", state, list, err, want)
		}
		if err := home.Unpair(own.URL, "laptop", false); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnknownHostIsNamedWithTheKnown checks hosts at one relay, and at two. The error for an unknown host must name it, and those that the
// person may open. A relay that does not answer may have the host.
func TestUnknownHostIsNamedWithTheKnown(t *testing.T) {
	one, away := newLister(t, `{"host":"laptop"},{"host":"desktop"}`)
	other, _ := newLister(t, `{"host":"phone"}`)
	single, both := connect.NewRelays(one), connect.NewRelays(one, other)
	for _, test := range []struct {
		relays         *connect.Relays
		at, host, want string
	}{
		{single, "", "laptop", ""},
		{single, "", "lapotp", "no host named lapotp at " + one.Name + "; the hosts that you may open there: laptop, desktop"},
		{both, "", "phone", ""},
		{both, "", "lapotp", "no host named lapotp: ahp-connect hosts lists"},
		{both, other.Name, "laptop", "no host named laptop at " + other.Name + "; the hosts that you may open there: phone"},
		{both, "elsewhere", "laptop", "not signed in at elsewhere"},
	} {
		if err := test.relays.CheckHost(t.Context(), test.at, test.host); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("CheckHost of %q, %q = %v; want %q", test.at, test.host, err, test.want)
		}
	}
	away.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := connect.NewRelays(connect.NewRelay(one.URL, connect.FileTokens(file))).CheckHost(t.Context(), "", "laptop"); err != nil {
		t.Errorf("CheckHost at a relay that does not answer = %v; want no error", err)
	}
}
