package auth

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestOperatorTokensAreForOperatorsOnly(t *testing.T) {
	keys, others := loadTestKeys(t), loadTestKeys(t)
	now := time.Now()
	keys.Now = func() time.Time { return now }
	token, err := keys.Tokens().IssueOperator("relay revoke")
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Tokens().VerifyOperator(token); err != nil {
		t.Errorf("VerifyOperator: %v; want no error", err)
	}
	if err := others.Tokens().VerifyOperator(token); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("VerifyOperator with other keys: %v; want ErrTokenInvalid", err)
	}
	if _, err := keys.Tokens().VerifyClient(token); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("VerifyClient of an operator's token: %v; want ErrTokenInvalid", err)
	}
	admin := Client{Tenant: "acme", Subject: "ada", Hosts: []string{AllHosts}, Access: AccessAdmin, Expires: now.Add(time.Second)}
	clients, err := keys.Tokens().IssueClient(admin)
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Tokens().VerifyOperator(clients); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("a client's token with admin access: %v; want ErrTokenInvalid", err)
	}
	long, err := keys.Tokens().issue(operatorKind, keys.Tokens().newClaims("", "x", "", time.Time{}, now.Add(time.Hour)))
	if err != nil {
		t.Fatal(err)
	}
	if err := keys.Tokens().VerifyOperator(long); !errors.Is(err, ErrTokenInvalid) {
		t.Errorf("an operator's token valid for an hour: %v; want ErrTokenInvalid", err)
	}
	now = now.Add(operatorTTL + Leeway + time.Second)
	if err := keys.Tokens().VerifyOperator(token); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("VerifyOperator after the token's end: %v; want ErrTokenExpired", err)
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

func TestTokenID(t *testing.T) {
	keys, others := loadTestKeys(t), loadTestKeys(t)
	expires := time.Now().Add(time.Hour).Truncate(time.Second)
	client, err := keys.Tokens().IssueClient(Client{ID: "one", Tenant: "acme", Subject: "ada", Hosts: []string{"h"}, Access: AccessRead, Expires: expires})
	if err != nil {
		t.Fatal(err)
	}
	host, err := keys.Tokens().IssueHost(Enrolment{ID: "two", Tenant: "acme", Host: "h", Expires: expires})
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[string]string{client: "one", host: "two"} {
		if id, until, err := keys.Tokens().TokenID(token); id != want || !until.Equal(expires) || err != nil {
			t.Errorf("TokenID = %s, %v, %v; want %s, %v", id, until, err, want, expires)
		}
		if _, _, err := others.Tokens().TokenID(token); !errors.Is(err, ErrTokenInvalid) {
			t.Errorf("TokenID with different keys: %v; want ErrTokenInvalid, because a stranger's token may lie", err)
		}
	}
	for _, bad := range []string{"", "a.b", "one", client[:20], strings.Repeat("x", MaxTokenSize+1)} {
		if _, _, err := keys.Tokens().TokenID(bad); !errors.Is(err, ErrTokenInvalid) {
			t.Errorf("TokenID(%.20q): %v; want ErrTokenInvalid", bad, err)
		}
	}
	keys.Now = func() time.Time { return expires.Add(time.Minute) }
	if _, _, err := keys.Tokens().TokenID(client); !errors.Is(err, ErrTokenExpired) {
		t.Errorf("TokenID after the token's end: %v; want ErrTokenExpired", err)
	}
}
