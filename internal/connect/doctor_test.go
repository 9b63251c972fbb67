package connect_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/internal/connect"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// checked returns the faults that a check finds.
func checked(t *testing.T, r *connect.Relay) string {
	t.Helper()
	var faults []string
	r.Check(t.Context(), func(ok bool, text string) {
		if !ok {
			faults = append(faults, text)
		}
	})
	return strings.Join(faults, "\n")
}

// TestDoctorNamesTheRemedy checks a server that is no relay, a clock that differs by an
// hour, an address without a server, and a relay whose host is away.
func TestDoctorNamesTheRemedy(t *testing.T) {
	w := newWorld(t, nil)
	if got := checked(t, w.relay); got != "" {
		t.Errorf("a good relay has the faults %s", got)
	}
	for _, c := range []struct {
		name  string
		serve http.HandlerFunc
		want  string
	}{
		{"a web server", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("<html>Welcome")) }, "is no relay: check the URL"},
		{"no page", http.NotFound, "refuses"},
		{"a clock an hour behind", func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
			_, _ = rw.Write([]byte(`{"hosts":[{"host":"laptop","state":"online"}]}`))
		}, "clock differs by 1h0m"},
	} {
		server, err := stack.Serve(c.serve)
		if err != nil {
			t.Fatal(err)
		}
		base := "http" + strings.TrimPrefix(server.URL(), "ws")
		if got := checked(t, connect.NewRelay(base, connect.FileTokens(w.file))); !strings.Contains(got, c.want) || strings.Contains(got, "\n") {
			t.Errorf("%s: %q; want one sentence with %q", c.name, got, c.want)
		}
		server.Stop()
		if got := checked(t, connect.NewRelay(base, connect.FileTokens(w.file))); !strings.Contains(got, "check the network and the relay's URL") {
			t.Errorf("nothing listens: %q", got)
		}
	}
	if err := w.StopAgent(); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the host is away", func() bool {
		return strings.Contains(checked(t, connect.NewRelay(w.Relay.URL(), connect.FileTokens(w.file))), stack.Host+" at "+connect.RelayName(w.Relay.URL())+" is offline")
	})
}

// TestLevelOfATokenFileIsItsOwn connects with a local token of a lower level than the
// relay's token, which cannot be lowered.
func TestLevelOfATokenFileIsItsOwn(t *testing.T) {
	w := newWorld(t, nil)
	made, err := w.tokens.Make("viewer", nil, auth.AccessRead)
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.dial(t, "/ahp/"+stack.Host, refclient.Options{Token: made.Token, TokenIn: refclient.InTkn})
	if err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the connection ends", c.Done())
	if code, reason := c.CloseStatus(); code != int(ahp.CloseForbidden) || !strings.Contains(reason, "relay token client --level") {
		t.Errorf("closed with %d %q", code, reason)
	}
}

// TestOtherUsersOpenNothing checks the modes of the socket and of the file with local
// tokens.
func TestOtherUsersOpenNothing(t *testing.T) {
	dir := t.TempDir()
	l, err := connect.Listen("unix:" + filepath.Join(dir, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tokens := connect.NewTokens(filepath.Join(dir, "state", "tokens.json"))
	if _, err := tokens.Make("editor", nil, ""); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"sock": 0o600, "state": 0o700, "state/tokens.json": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v; want the mode %v", name, fmt.Sprint(info, err), want)
		}
	}
}
