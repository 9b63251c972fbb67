package auth

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestOperatorToken(t *testing.T) {
	keys, others := loadTestKeys(t), loadTestKeys(t)
	now := time.Now()
	keys.Now = func() time.Time { return now }
	token, err := keys.IssueOperator("relay revoke")
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.VerifyOperator(token); err != nil {
		t.Errorf("VerifyOperator: %v", err)
	}
	if err := others.VerifyOperator(token); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("with other keys: %v", err)
	}
	if _, err := keys.VerifyClient(token); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("as a client's: %v", err)
	}
	admin := Client{Tenant: "acme", Subject: "ada", Hosts: []string{AllHosts}, Access: AccessAdmin, Expires: now.Add(time.Second)}
	clients, err := keys.IssueClient(admin)
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.VerifyOperator(clients); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("a client's token with admin access: %v", err)
	}
	long, err := keys.issue(operatorKind, keys.newClaims("", "x", "", time.Time{}, now.Add(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.VerifyOperator(long); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("one that is good for an hour: %v", err)
	}
	now = now.Add(operatorTTL + Leeway + time.Second)
	if err := keys.VerifyOperator(token); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("later: %v", err)
	}
}

func loadTestKeys(t *testing.T) *Keys {
	t.Helper()
	keys, err := LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestPeekToken(t *testing.T) {
	keys, others := loadTestKeys(t), loadTestKeys(t)
	expires := time.Now().Add(time.Hour).Truncate(time.Second)
	client, err := keys.IssueClient(Client{ID: "one", Tenant: "acme", Subject: "ada", Hosts: []string{"h"}, Access: AccessRead, Expires: expires})
	if err != nil {
		t.Fatal(err)
	}
	host, err := keys.IssueHost(Enrolment{ID: "two", Tenant: "acme", Host: "h", Expires: expires})
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]string{client: "one", host: "two"} {
		if id, until, err := keys.PeekToken(token); id != want || !until.Equal(expires) || err != nil {
			t.Errorf("PeekToken = %s, %v, %v; want %s, %v", id, until, err, want, expires)
		}
		// What it says of its end may be a lie.
		if id, until, err := others.PeekToken(token); id != want || !until.IsZero() || err != nil {
			t.Errorf("with other keys: %s, %v, %v; want %s and no time", id, until, err, want)
		}
	}
	for _, bad := range []string{"", "a.b", "one", client[:20], strings.Repeat("x", MaxTokenSize+1)} {
		if _, _, err := keys.PeekToken(bad); err == nil {
			t.Errorf("PeekToken(%.20q) is content", bad)
		}
	}
}
