package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ahprelay/auth"
	"ahprelay/auth/device"
	"ahprelay/gateway"
	peopleapi "ahprelay/gateway/api/people"
	"ahprelay/internal/connect"
	"ahprelay/test/stack"
)

// A terminal receives the output of a command.
type terminal struct{ said chan string }

func (w terminal) Write(b []byte) (int, error) {
	w.said <- string(b)
	return len(b), nil
}

// sees waits until the output matches a pattern, and returns the match.
func (w terminal) sees(t *testing.T, pattern string) []string {
	t.Helper()
	all, late := "", time.After(time.Minute)
	for {
		if found := regexp.MustCompile(pattern).FindStringSubmatch(all); found != nil {
			return found
		}
		select {
		case more := <-w.said:
			all += more
		case <-late:
			t.Fatalf("the command says %q; want %s", all, pattern)
		}
	}
}

// TestSignIn signs a machine in by an invitation, and a second machine by a code that
// the first machine approves. The second machine prints client tokens and keeps a token
// in a file. Then the first machine signs out, and the second machine's device is
// removed at the relay.
func TestSignIn(t *testing.T) {
	relay, err := gateway.StartRelay(t.Context(), gateway.RelayConfig{DataDir: t.TempDir(), Listen: "127.0.0.1:0", AdminListen: gateway.NoListener})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	link, err := relay.SetupLink("")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	own, other := filepath.Join(dir, "own"), filepath.Join(dir, "other")
	command := func(ctx context.Context, errs io.Writer, args ...string) (string, error) {
		var out bytes.Buffer
		err := new(app).run(ctx, append(args, "--key-file"), strings.NewReader(""), &out, errs)
		return strings.TrimSpace(out.String()), err
	}
	fileOf := func(dir string) string { return filepath.Join(dir, "relays", connect.RelayName(relay.URL())+".json") }
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := command(t.Context(), io.Discard, "login", link, "--state-dir", filepath.Join(file, "x")); err == nil || !strings.Contains(err.Error(), "--state-dir: mkdir "+file) {
		t.Errorf("login that cannot store the sign-in: %v; want an error before the link is used", err)
	}
	if _, err := command(t.Context(), io.Discard, "login", link, "--state-dir", own); err != nil {
		t.Fatal(err)
	}
	if _, err := command(t.Context(), io.Discard, "login", link, "--state-dir", other); err == nil || !strings.Contains(err.Error(), "used up") {
		t.Errorf("login with a used link: %v; want used up", err)
	}
	first, err := device.Open(fileOf(own))
	if err != nil {
		t.Fatal(err)
	}

	screen := terminal{make(chan string, 100)}
	in := make(chan error, 1)
	go func() {
		_, err := command(t.Context(), screen, "login", relay.URL(), "--state-dir", other, "--name", "build-7", "--no-qr")
		in <- err
	}()
	shown := screen.sees(t, `\n  ([B-Z]{4}-([B-Z]{4}))\n[\s\S]*must show the fingerprint (\S+)\.`)
	var waiting peopleapi.Waiting
	if err := first.Call(t.Context(), http.MethodGet, "/api/requests/"+shown[1], nil, &waiting); err != nil {
		t.Fatal(err)
	}
	if waiting.Name != "build-7" || waiting.Fingerprint != shown[3] || waiting.User == "" {
		t.Errorf("the approving person is shown %+v; want the machine build-7 and the fingerprint in %s", waiting, shown[0])
	}
	if err := first.Call(t.Context(), http.MethodPost, "/api/requests/"+waiting.ID, map[string]any{"approve": true, "code": shown[2]}, nil); err != nil {
		t.Fatal(err)
	}
	if err := <-in; err != nil {
		t.Fatal(err)
	}

	token, err := command(t.Context(), io.Discard, "access", "--state-dir", other, "--level", "look", "--host", "laptop", "--ttl", "10m")
	if err != nil {
		t.Fatal(err)
	}
	who, err := relay.Keys().Tokens().VerifyClient(token)
	if err != nil || who.Subject != "owner" || who.Access.Level() != "look" || who.Hosts[0] != "laptop" || who.Key != "" || time.Until(who.Expires) > 10*time.Minute {
		t.Errorf("the token for a client is %+v, %v; want the owner's, at the level look, for laptop, without a key", who, err)
	}

	if out, err := command(t.Context(), io.Discard, "url", "lapotp", "--state-dir", other); err == nil || out != "" || !strings.Contains(err.Error(), "no host named lapotp") {
		t.Errorf("url of an unknown host = %q, %v; want an error that names the host", out, err)
	}

	up := &connect.Home{Dir: other}
	release, err := up.Lock() // as ahp-connect up does
	if err != nil {
		t.Fatal(err)
	}
	if out, err := command(t.Context(), io.Discard, "open", "lapotp", "--print", "--state-dir", other); err == nil || out != "" || !strings.Contains(err.Error(), "no host named lapotp") {
		t.Errorf("open of an unknown host = %q, %v; want an error that names the host", out, err)
	}
	release()

	// A lifetime below a second is refused: the relay would choose an hour, and --keep would
	// request tokens without a pause.
	for _, ttl := range []string{"0s", "900ms"} {
		if out, err := command(t.Context(), io.Discard, "access", "--state-dir", other, "--ttl", ttl); err == nil || out != "" || !strings.Contains(err.Error(), "--ttl is "+ttl) {
			t.Errorf("access --ttl %s = %q, %v; want a refusal that names --ttl", ttl, out, err)
		}
	}
	// ahp-connect keeps a token in a file, and renews it.
	ctx, stop := context.WithCancel(t.Context())
	file, ended := filepath.Join(dir, "token"), make(chan error, 1)
	keeps := terminal{make(chan string, 1000)}
	go func() {
		_, err := command(ctx, keeps, "access", "--state-dir", other, "--keep", file, "--ttl", "2s")
		ended <- err
	}()
	keeps.sees(t, "token renewed")
	keeps.sees(t, "token renewed")
	if kept, err := os.ReadFile(file); err != nil {
		t.Error(err)
	} else if _, err := relay.Keys().Tokens().VerifyClient(strings.TrimSpace(string(kept))); err != nil {
		t.Errorf("the token in the file: %v; want a valid one", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("access ends with %v when it is stopped; want no error", err)
	}

	if _, err := command(t.Context(), io.Discard, "logout", "--state-dir", own); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(fileOf(own)); err == nil {
		t.Error("the device's file exists after logout; want it removed")
	}
	second, err := device.Open(fileOf(other))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Call(t.Context(), http.MethodDelete, "/api/devices/"+second.ID, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := command(t.Context(), io.Discard, "access", "--state-dir", other); err == nil || !strings.Contains(err.Error(), "removed") || !strings.Contains(err.Error(), "ahp-connect login") {
		t.Errorf("access with a removed device: %v; want an error with the word removed and the remedy", err)
	}
	if err := os.Chmod(fileOf(other), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := command(t.Context(), io.Discard, "access", "--state-dir", other); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("access with a file that other users may read: %v; want an error with chmod 600", err)
	}
	if _, err := command(t.Context(), io.Discard, "access", "--state-dir", own, "--ttl", "721h"); err == nil || !strings.Contains(err.Error(), "--ttl is 721h0m0s; want at most 720h") {
		t.Errorf("access with a long lifetime: %v; want an error that names --ttl", err)
	}
	for _, bad := range []string{"relay.example.com", "http://relay.example.com", "https://user:pw@relay.example.com", "ftp://relay.example.com"} {
		if _, err := command(t.Context(), io.Discard, "login", bad, "--state-dir", other); err == nil {
			t.Errorf("login %s returns no error; want one", bad)
		} else if strings.HasPrefix(bad, "http:") && !strings.Contains(err.Error(), "--relay-plain") {
			t.Errorf("login %s: %v; want both remedies", bad, err)
		}
	}
	page, err := stack.Serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotImplemented)
		_, _ = io.WriteString(w, "<html>\n<h1>Not here</h1>")
	}))
	if err != nil {
		t.Fatal(err)
	}
	at := "http" + strings.TrimPrefix(page.URL(), "ws")
	for range 2 { // first a server listens there, and then none
		if _, err := command(t.Context(), io.Discard, "login", at, "--state-dir", other); err == nil || !strings.Contains(err.Error(), "URL") || strings.Contains(err.Error(), "\n") {
			t.Errorf("login at a web server: %v; want one sentence with the remedy", err)
		}
		page.Stop()
	}
}

// TestKeptTokenIsRenewedBeforeItsEnd computes the pause before a kept token is renewed. The relay issues no token beyond
// the end of the person's sign-in.
func TestKeptTokenIsRenewedBeforeItsEnd(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ ttl, left, want time.Duration }{
		{720 * time.Hour, 720 * time.Hour, 360 * time.Hour},
		{720 * time.Hour, 8 * time.Hour, 4 * time.Hour}, // the sign-in ends in 8 h
		{720 * time.Hour, 4 * time.Second, retryToken},
		{2 * time.Second, 2 * time.Second, time.Second},
	} {
		token, err := keys.Tokens().IssueClient(auth.Client{Tenant: "default", Subject: "ada", Hosts: []string{"*"}, Access: auth.AccessRead, Expires: time.Now().Add(test.left)})
		if err != nil {
			t.Fatal(err)
		}
		if got := (&accessCmd{TTL: test.ttl}).pause(token); got > test.want || got < test.want-time.Second {
			t.Errorf("with --ttl %v, a token for %v is renewed after %v; want %v", test.ttl, test.left, got, test.want)
		}
	}
}

// TestKeptTokenIsRenewedAfterSleep lets the machine sleep for two hours while ahp-connect waits for half an hour: wall time goes
// on, and timers stop. The wait must end soon after the sleep.
func TestKeptTokenIsRenewedAfterSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slept atomic.Int64
		began := time.Now()
		wall := func() time.Time { return time.Now().Add(time.Duration(slept.Load())) }
		time.AfterFunc(time.Minute, func() { slept.Store(int64(2 * time.Hour)) })
		if !passes(t.Context(), began.Add(30*time.Minute), wall) || time.Since(began) > time.Minute+retryToken {
			t.Errorf("the wait ends after %v without the sleep; want an end soon after the sleep", time.Since(began))
		}
		slept.Store(0)
		began = time.Now()
		if !passes(t.Context(), began.Add(30*time.Minute), wall) || time.Since(began) != 30*time.Minute {
			t.Errorf("without sleep, the wait ends after %v; want 30m", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if passes(ctx, time.Now().Add(time.Hour), wall) {
			t.Error("passes returns true after the end of its context; want false")
		}
	})
}

// TestFailedLoginHidesTheInvitation signs in with an invitation link while no relay answers, and at a server with TLS. The link is
// still good, so no error may contain its secret.
func TestFailedLoginHidesTheInvitation(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	for _, relay := range []string{"http://127.0.0.1:1", server.URL, strings.Replace(server.URL, "https", "http", 1)} {
		_, err := command(t.Context(), t.TempDir(), nil, "login", relay+"/setup#S3CRET")
		if err == nil || strings.Contains(err.Error(), "S3CRET") || !strings.Contains(err.Error(), relay) {
			t.Errorf("a failed login at %s ends with %v; want an error without the secret", relay, err)
		}
	}
}
