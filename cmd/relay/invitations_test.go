package main

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
)

// TestInvitationIsListedAndWithdrawn makes an invitation, lists it and withdraws it.
func TestInvitationIsListedAndWithdrawn(t *testing.T) {
	dir := t.TempDir()
	at := []string{"--data-dir", dir, "--relay", serving(t, dir)}
	command := func(args ...string) (string, error) {
		out, _, err := relay(t, append(args, at...)...)
		return out, err
	}
	if out, err := command("setup-link", "--subject", "ada", "--no-qr"); err != nil || !strings.Contains(out, "/setup#") {
		t.Fatalf("setup-link prints %q, %v; want a link", out, err)
	}
	out, err := command("invitations")
	found := regexp.MustCompile(`(?m)^([0-9a-f]{16}) +ada +own +\* +the operator +\S+$`).FindStringSubmatch(out)
	if err != nil || found == nil {
		t.Fatalf("invitations ends with %v; want ada's invitation in\n%s", err, out)
	}
	if out, err := command("withdraw", found[1]); err != nil || !strings.Contains(out, found[1]) {
		t.Errorf("withdraw prints %q, %v; want the invitation's ID", out, err)
	}
	if _, err := command("withdraw", found[1]); err == nil {
		t.Error("a second withdraw of an invitation succeeds; want an error")
	}
	if out, err := command("invitations"); err != nil || strings.Contains(out, found[1]) {
		t.Errorf("invitations after the withdrawal: %v; want none\n%s", err, out)
	}
}

// TestRevokeExpiredToken revokes by an expired token. This must work, because tokens
// derived from it may still be valid.
func TestRevokeExpiredToken(t *testing.T) {
	dir := t.TempDir()
	keys, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	keys.Now = func() time.Time { return time.Now().Add(-2 * time.Hour) }
	token, err := keys.Tokens().IssueClient(auth.Client{
		ID: "over", Tenant: "default", Subject: "ada", Hosts: []string{"*"}, Access: auth.AccessAdmin, Expires: time.Now().Add(-time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := relay(t, "revoke", "--data-dir", dir, "--relay", serving(t, dir), "--token", token)
	if err != nil || !strings.Contains(out, "token over") {
		t.Errorf("revoke of an expired token prints %q, %v; want the token's ID", out, err)
	}
}
