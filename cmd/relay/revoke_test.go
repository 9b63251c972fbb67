package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
)

// serving starts a relay, which stops when the test ends, and returns its URL.
func serving(t *testing.T, dir string, flags ...string) (url string) {
	t.Helper()
	url, _ = servingWith(t, dir, "none", flags...)
	return url
}

// servingWith is serving with an admin listener, whose URL it also returns.
func servingWith(t *testing.T, dir, listen string, flags ...string) (url, admin string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	logs := newSyncBuffer()
	ended := make(chan error, 1)
	args := append([]string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--admin-listen", listen, "--drain", "1s"}, flags...)
	go func() { ended <- run(ctx, args, os.Stdout, logs) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("serve ended with %v; want no error", err)
		}
	})
	_, rest, _ := strings.Cut(logs.await(t, "relay ready"), "url=")
	url, rest, _ = strings.Cut(rest, " admin=")
	admin, _, _ = strings.Cut(rest, " ")
	return url, admin
}

// TestRevokeWorksWithAndWithoutARelay revokes while a relay runs, through this relay,
// and while none runs, in the data directory.
func TestRevokeWorksWithAndWithoutARelay(t *testing.T) {
	dir := t.TempDir()
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	expires := time.Now().Add(time.Hour)
	token, err := keys.Tokens().IssueClient(auth.Client{ID: "FILED", Tenant: "default", Subject: "ada", Hosts: []string{"laptop"}, Access: auth.AccessRead, Expires: expires})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := relay(t, "revoke", "--data-dir", dir, "--relay", "http://127.0.0.1:1", "--host", "laptop"); !errors.Is(err, errNotReceived) {
		t.Errorf("revoke without a relay: %v; want errNotReceived", err)
	}
	url := serving(t, dir)
	for want, args := range map[string][]string{
		"token FILED":                       {"--token-file", file},
		"token SPELT":                       {"--token", "SPELT"},
		"subject ada@example.com of tenant": {"--subject", "ada@example.com", "--tenant", "acme"},
	} {
		args = append([]string{"revoke", "--data-dir", dir, "--relay", url}, args...)
		if out, _, err := relay(t, args...); err != nil || !strings.Contains(out, want) || !strings.Contains(out, url) {
			t.Errorf("%v = %q, %v; want %s", args, out, err, want)
		}
	}
	out, _, err := relay(t, "revocations", "--data-dir", dir, "--relay", url)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"laptop", "FILED", time.Now().UTC().Add(auth.MaxDerivedTTL + time.Hour).Format("2006-01-02T"), "SPELT", "for ever", "acme", "ada@example.com"} {
		if !strings.Contains(out, want) {
			t.Errorf("revocations lacks %s:\n%s", want, out)
		}
	}
	if out, _, err := relay(t, "revoke", "--data-dir", dir, "--relay", "http://127.0.0.1:1", "--host", "laptop"); err == nil || !strings.Contains(err.Error(), "nothing is revoked: a relay uses") {
		t.Errorf("revoke beside a relay that runs elsewhere: %q, %v; want nothing is revoked", out, err)
	}
	unsaved := filepath.Join(dir, "revocations.json") // as a directory, it cannot be replaced
	if err := errors.Join(os.Remove(unsaved), os.Mkdir(unsaved, 0o700)); err != nil {
		t.Fatal(err)
	}
	if out, _, err := relay(t, "revoke", "--data-dir", dir, "--relay", url, "--token", "UNSAVED"); err == nil || !strings.HasPrefix(err.Error(), "revoked, but") {
		t.Errorf("revoke at a relay that cannot save it = %q, %v; want an error that says that it is revoked", out, err)
	}
}

func TestUnclearRevocationsAreRefused(t *testing.T) {
	dir := t.TempDir()
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--token":                       {"--data-dir", dir},
		"can't be used":                 {"--data-dir", dir, "--host", "laptop", "--subject", "ada"},
		"keys":                          {"--data-dir", t.TempDir(), "--host", "laptop"},
		"is empty":                      {"--data-dir", dir, "--token-file", empty},
		"no such file":                  {"--data-dir", dir, "--token-file", empty + "x"},
		"only a running relay can read": {"--data-dir", dir, "--token", "a.b"},
		`host "My Laptop"`:              {"--data-dir", dir, "--host", "My Laptop"},
	} {
		args = append([]string{"revoke", "--relay", "http://127.0.0.1:1"}, args...)
		if _, _, err := relay(t, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %q in it", args, err, want)
		}
	}
}

// TestForgetPrintsAWholeCommand forgets a host of a tenant. The printed command that ends the host's tokens must work as it is.
func TestForgetPrintsAWholeCommand(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "relay data")
	if _, err := auth.LoadKeys(dir); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer server.Close()
	out, _, err := relay(t, "forget", "--relay", server.URL, "--data-dir", dir, "--tenant", "acme", "laptop")
	if want := "relay revoke --data-dir '" + dir + "' --tenant acme --host laptop ends them"; err != nil || !strings.Contains(out, want) {
		t.Errorf("forget prints %q, %v; want %q in it", out, err, want)
	}
}
