package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	hostsapi "ahprelay/gateway/api/hosts"
	"ahprelay/test/procs"
)

// TestBackupAndRestore follows the drill in docs/operating.md: an operator backs up a
// running relay, loses its machine, and restores the backup. The host then reconnects
// without a new enrolment. Tokens stay valid, and a revoked token stays revoked.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	programs, err := procs.Build(ctx)
	must(t, err)
	site, err := procs.Start(ctx, procs.Config{Bench: procs.Bench{Programs: programs, Dir: t.TempDir()}, NoRecord: true})
	must(t, err)
	t.Cleanup(func() {
		site.Close()
		must(t, site.Verify())
	})
	relay := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(ctx, filepath.Join(programs, procs.RelayProgram), append(args[:1:1], append([]string{"--data-dir", site.DataDir()}, args[1:]...)...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("relay %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	token, err := site.Token()
	must(t, err)
	keys, err := auth.ExistingKeys(site.DataDir())
	must(t, err)
	revoked, err := keys.Tokens().IssueClient(auth.Client{
		Tenant: procs.Tenant, Subject: "bob", Hosts: []string{procs.Host}, Access: auth.AccessWrite, Expires: time.Now().Add(time.Hour),
	})
	must(t, err)
	base := strings.TrimSuffix(strings.Replace(site.RelayURL(), "ws://", "http://", 1), "/ahp/"+procs.Host)
	sees := func(token string) (string, error) {
		info, err := procs.GetJSON[hostsapi.Info](ctx, base+"/api/hosts/"+procs.Host, token)
		return string(info.State), err
	}
	if state, err := sees(revoked); err != nil || state != "online" {
		t.Fatalf("before its revocation, bob's token sees the host %q, %v; want online", state, err)
	}
	relay("revoke", "--subject", "bob")

	backup := filepath.Join(t.TempDir(), "backup")
	relay("backup", backup)
	site.Relay.Kill()
	must(t, os.RemoveAll(site.DataDir()))
	if said := relay("restore", backup); !strings.Contains(said, "restored") {
		t.Errorf("restore prints %s; want restored", said)
	}
	must(t, site.StartRelay(ctx))
	var state string
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if state, err = sees(token); err == nil && state == "online" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("a minute after the restore, the host is %q, %v; want online; the host-agent's log:\n%s", state, err, site.Agent.Log())
		}
	}
	if state, err := sees(revoked); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("after the restore, a revoked token sees %q, %v; want HTTP 401", state, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
