package auth_test

import (
	"testing"
	"time"

	"ahprelay/auth"

	"github.com/nats-io/jwt/v2"
)

// TestSameKeysDeriveTheSameAccount derives NATS accounts for tenants. Relays with the same keys
// must derive the same account, and relays with other keys another.
func TestSameKeysDeriveTheSameAccount(t *testing.T) {
	dir := t.TempDir()
	k, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := auth.LoadKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	stranger, _ := newKeys(t)
	seen := map[string]string{k.Authority().SystemAccount(): "system", k.Authority().RelaysAccount(): "relays"}
	account := func(k *auth.Keys, tenant string) string {
		public, err := k.Authority().TenantAccount(tenant)
		if err != nil {
			t.Fatalf("TenantAccount(%q): %v; want no error", tenant, err)
		}
		return public
	}
	for _, tenant := range []string{"acme", "acme2", "a", "ac"} {
		public := account(k, tenant)
		if other, taken := seen[public]; taken {
			t.Errorf("the tenants %s and %s share an account; want different ones", tenant, other)
		}
		seen[public] = tenant
		if account(again, tenant) != public {
			t.Errorf("%s has a different account after a restart; want the same", tenant)
		}
		if account(stranger, tenant) == public {
			t.Errorf("%s has the same account with different keys; want a different one", tenant)
		}
	}
	for _, bad := range []string{"", "*", "a.b", "acme\x00", "Acme"} {
		if _, err := k.Authority().TenantAccount(bad); err == nil {
			t.Errorf("TenantAccount(%q) succeeds; want an error", bad)
		}
		if _, err := k.Authority().TenantAccountJWT(auth.External, bad, nil); err == nil {
			t.Errorf("TenantAccountJWT(%q) succeeds; want an error", bad)
		}
		if _, err := k.Authority().RelayUser(bad); err == nil && bad != "" {
			t.Errorf("RelayUser(%q) succeeds; want an error", bad)
		}
	}
}

func TestTenantAccountJWT(t *testing.T) {
	k, _ := newKeys(t)
	user := newAgentKey(t).Public()
	text, err := k.Authority().TenantAccountJWT(auth.External, "acme", map[string]time.Time{user: start})
	if err != nil {
		t.Fatal(err)
	}
	c, err := jwt.DecodeAccountClaims(text)
	if err != nil {
		t.Fatal(err)
	}
	vr := jwt.CreateValidationResults()
	c.Validate(vr)
	if vr.IsBlocking(true) {
		t.Errorf("NATS servers refuse the claim: %v; want no blocking issue", vr.Issues)
	}
	l := c.Limits
	if l.Imports != 0 || l.Exports != 0 || l.WildcardExports || l.LeafNodeConn != 0 || l.IsJSEnabled() || !l.DisallowBearer || l.Conn != jwt.NoLimit {
		t.Errorf("limits %+v; want no imports, exports, leaf nodes, JetStream or bearer tokens, and no bound of connections", l)
	}
	if !c.IsClaimRevoked(&jwt.UserClaims{ClaimsData: jwt.ClaimsData{Subject: user, IssuedAt: start.Unix()}}) ||
		c.IsClaimRevoked(&jwt.UserClaims{ClaimsData: jwt.ClaimsData{Subject: user, IssuedAt: start.Unix() + 1}}) ||
		c.IsClaimRevoked(&jwt.UserClaims{ClaimsData: jwt.ClaimsData{Subject: newAgentKey(t).Public(), IssuedAt: start.Unix()}}) {
		t.Errorf("revocations %v; want those of %s up to %v", c.Revocations, user, start)
	}
}

// TestRelaysUsersAreLimited fails unless a relay's NATS user is limited to its account and
// subjects.
func TestRelaysUsersAreLimited(t *testing.T) {
	k, _ := newKeys(t)
	for tenant, want := range map[string]string{"acme": "ahp.v1.acme.>", "": "ahp.relays.v1.>"} {
		user, err := k.Authority().RelayUser(tenant)
		if err != nil {
			t.Fatal(err)
		}
		c, err := jwt.DecodeUserClaims(user.JWT)
		if err != nil {
			t.Fatal(err)
		}
		account := k.Authority().RelaysAccount()
		if tenant != "" {
			if account, err = k.Authority().TenantAccount(tenant); err != nil {
				t.Fatal(err)
			}
		}
		if c.Issuer != account || c.Pub.Allow[0] != want || c.Sub.Allow[0] != want {
			t.Errorf("user of %q: %+v by %s; want %s in account %s", tenant, c.Permissions, c.Issuer, want, account)
		}
	}
}
