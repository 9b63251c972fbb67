package connect_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/auth/device"
	"ahprelay/internal/connect"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// checked returns the faults that Relay.Check reports, a line each.
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

// TestDoctorNamesTheRemedy runs the check at a good relay, at servers that are no relay, at a relay
// whose clock differs by an hour, at an address where nothing listens, and at a relay whose
// host-agent has stopped. For each fault, the check must report a sentence with the remedy.
func TestDoctorNamesTheRemedy(t *testing.T) {
	w := newWorld(t, nil)
	if got := checked(t, w.relay); got != "" {
		t.Errorf("the doctor's report about a working relay is %s; want no faults", got)
	}
	for _, c := range []struct {
		name  string
		serve http.HandlerFunc
		want  string
	}{
		{"a web server", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("<html>Welcome")) }, "is no relay: check the URL"},
		{"no page", http.NotFound, "refuses"},
		{"a page for what is not there", func(rw http.ResponseWriter, _ *http.Request) {
			rw.WriteHeader(http.StatusNotFound)
			_, _ = rw.Write([]byte("<html>\n<h1>Not here"))
		}, "is no relay (HTTP 404): check the URL"},
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
			t.Errorf("for a relay that is away, doctor says %q; want to check the network and the URL", got)
		}
	}
	if err := w.StopAgent(); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "the host is away", func() bool {
		got := checked(t, connect.NewRelay(w.Relay.URL(), connect.FileTokens(w.file)))
		return strings.Contains(got, stack.Host+" at "+connect.RelayName(w.Relay.URL())+" is offline") && strings.HasSuffix(got, "; run host-agent check on its machine")
	})
}

// TestSignInWorksWithAWrongClock signs in at relays whose clocks differ from this machine's by an
// hour. ahp-connect must use a token for half its life by this machine's clock. For a revoked
// sign-in, the error must name the remedy.
func TestSignInWorksWithAWrongClock(t *testing.T) {
	for _, differs := range []time.Duration{-time.Hour, 0, time.Hour} {
		var made atomic.Int32
		server, err := stack.Serve(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/api/hosts":
				http.Error(rw, "token revoked", http.StatusUnauthorized)
				return
			case "/api/tokens":
			default:
				_, _ = rw.Write([]byte(`{"access_token":"a","expires_in":900,"device":"d","tenant":"default","subject":"ada"}`))
				return
			}
			made.Add(1)
			now := time.Now().Add(differs)
			claims := fmt.Sprintf(`{"iat":%d,"exp":%d}`, now.Unix(), now.Add(time.Hour).Unix())
			_ = json.NewEncoder(rw).Encode(map[string]any{"token": "h." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".s", "expires": now.Add(time.Hour)})
		}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(server.Stop)
		d, err := device.Login{Relay: "http" + strings.TrimPrefix(server.URL(), "ws") + "/setup#link"}.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		home := &connect.Home{Dir: t.TempDir()}
		if _, _, err := home.Save(d); err != nil {
			t.Fatal(err)
		}
		relays, err := home.Relays()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			before := time.Now()
			_, until, err := relays.All()[0].Token(t.Context(), stack.Host, "")
			if err != nil {
				t.Fatal(err)
			}
			if good := until.Sub(before); good < 25*time.Minute || good > 31*time.Minute {
				t.Errorf("the relay's clock differs by %v: a token with a lifetime of an hour is used for %v; want 30 minutes", differs, good)
			}
		}
		if made.Load() != 1 {
			t.Errorf("the relay's clock differs by %v: %d tokens for two uses; want one", differs, made.Load())
		}
		if _, err := relays.All()[0].Hosts(t.Context()); err == nil || !strings.Contains(err.Error(), "run ahp-connect login "+d.Relay) {
			t.Errorf("Hosts with a revoked token = %v; want run ahp-connect login", err)
		}
	}
}

// TestLevelOfATokenFileIsItsOwn connects with a local token for level look, while the relay's token
// comes from a file, and ahp-connect cannot lower its level. The connection must close as
// forbidden, with the remedy.
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
		t.Errorf("the connection ended with %d %q; want CloseForbidden and the token's command", code, reason)
	}
}

// TestOtherUsersOpenNothing checks that only the owner may open the socket, the state directory and
// the file with local tokens.
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
