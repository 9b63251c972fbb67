package auth_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

func TestAgentsUserIsLimitedToItsHost(t *testing.T) {
	k, _ := newKeys(t)
	key := newAgentKey(t)
	user, expires, err := k.Authority().AgentUser("acme", "laptop", key.Public(), 0)
	if err != nil {
		t.Fatalf("AgentUser: %v; want no error", err)
	}
	if want := start.Add(auth.DefaultAgentTTL); !expires.Equal(want) {
		t.Errorf("expires %v; want %v", expires, want)
	}
	c, err := jwt.DecodeUserClaims(user)
	if err != nil {
		t.Fatal(err)
	}
	only := jwt.StringList{"ahp.v1.acme.laptop.>"}
	for _, p := range []jwt.Permission{c.Pub, c.Sub} {
		if len(p.Allow) != 1 || p.Allow[0] != only[0] || len(p.Deny) != 0 {
			t.Errorf("permission %+v; want %v only", p, only)
		}
	}
	if c.Resp != nil || c.BearerToken {
		t.Error("the credentials permit answers to any subject, or work without the nkey; want neither")
	}
	account, err := k.Authority().TenantAccount("acme")
	if err != nil {
		t.Fatal(err)
	}
	if c.Subject != key.Public() || c.IssuerAccount != "" || c.Issuer != account {
		t.Errorf("sub %s, account %q, issuer %s; want the agent's nkey, signed by the tenant's account %s",
			c.Subject, c.IssuerAccount, c.Issuer, account)
	}
}

func TestAgentUserRefuses(t *testing.T) {
	k, _ := newKeys(t)
	key := newAgentKey(t)
	for _, test := range []struct{ tenant, host, nkey string }{
		{">", "laptop", key.Public()},
		{"acme", "*", key.Public()},
		{"acme", "a.b", key.Public()},
		{"acme", "laptop", k.Authority().RelaysAccount()},
		{"acme", "laptop", ""},
	} {
		if _, _, err := k.Authority().AgentUser(test.tenant, test.host, test.nkey, 0); err == nil {
			t.Errorf("AgentUser(%q, %q, %q) succeeds; want an error", test.tenant, test.host, test.nkey)
		}
	}
}

func TestLifetimeOfAUserIsRead(t *testing.T) {
	k, _ := newKeys(t)
	k.Now = nil
	user, _, err := k.Authority().AgentUser("acme", "laptop", newAgentKey(t).Public(), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	got, err := auth.UserLifetime(user)
	if err != nil || got < 59*time.Second || got > 61*time.Second {
		t.Errorf("UserLifetime = %v, %v; want about a minute", got, err)
	}
	relay, err := k.Authority().RelayUser("")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := auth.UserLifetime(relay.JWT); got != 0 || err != nil {
		t.Errorf("UserLifetime(relay) = %v, %v; want for ever", got, err)
	}
	account, err := k.Authority().RelaysAccountJWT(auth.Embedded)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "x.y.z", account} {
		if _, err := auth.UserLifetime(bad); err == nil {
			t.Errorf("UserLifetime(%.8q…) succeeds; want an error", bad)
		}
	}
}

// TestWriteTrustConfig starts a NATS server whose configuration is only the written file. The
// server must accept the relay, the system user and a host-agent, and refuse all others.
func TestWriteTrustConfig(t *testing.T) {
	k, _ := newKeys(t)
	k.Now = nil
	dir := t.TempDir()
	trust := filepath.Join(dir, "trust.conf")
	for range 2 { // the second call replaces the file
		if err := k.Authority().WriteTrustConfig(trust); err != nil {
			t.Fatalf("WriteTrustConfig: %v; want no error", err)
		}
	}
	conf := filepath.Join(dir, "nats.conf")
	text := "listen: \"127.0.0.1:-1\"\ninclude \"trust.conf\"\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		t.Fatalf("ProcessConfigFile: %v; want no error", err)
	}
	opts.NoSigs, opts.NoLog = true, true
	s, err := server.NewServer(opts)
	if err != nil {
		t.Fatalf("NewServer: %v; want no error", err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })

	relay, err := k.Authority().RelayUser("")
	if err != nil {
		t.Fatal(err)
	}
	nc := connect(t, s, nats.UserJWT(func() (string, error) { return relay.JWT, nil }, relay.Sign))
	if err := nc.Flush(); err != nil {
		t.Errorf("the relay's user cannot use the connection: %v", err)
	}
	system, err := k.Authority().SystemUser()
	if err != nil {
		t.Fatal(err)
	}
	nc = connect(t, s, nats.UserJWT(func() (string, error) { return system.JWT, nil }, system.Sign))
	if _, err := nc.Request("$SYS.REQ.SERVER.PING", nil, 5*time.Second); err != nil {
		t.Errorf("the system user's request: %v; want an answer", err)
	}
	key := newAgentKey(t)
	agent, _, err := k.Authority().AgentUser("acme", "laptop", key.Public(), 0)
	if err != nil {
		t.Fatal(err)
	}
	login := nats.UserJWT(func() (string, error) { return agent, nil }, key.SignNonce)
	if early, err := nats.Connect(s.ClientURL(), login); err == nil {
		early.Close()
		t.Error("a host-agent connects before a relay has sent its tenant's account; want a refusal")
	}
	claim, err := k.Authority().TenantAccountJWT(auth.External, "acme", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nc.Request("$SYS.REQ.CLAIMS.UPDATE", []byte(claim), 5*time.Second); err != nil {
		t.Fatalf("sending the tenant's account: %v; want no error", err)
	}
	connect(t, s, login)

	stranger, _ := newKeys(t)
	alien, err := stranger.Authority().RelayUser("")
	if err != nil {
		t.Fatal(err)
	}
	for name, opt := range map[string]nats.Option{
		"no credentials":       nats.Name("x"),
		"other keys":           nats.UserJWT(func() (string, error) { return alien.JWT, nil }, alien.Sign),
		"another's nkey":       nats.UserJWT(func() (string, error) { return agent, nil }, alien.Sign),
		"user name, password":  nats.UserInfo("relay", "relay"),
		"JWT without the nkey": nats.UserJWT(func() (string, error) { return agent, nil }, func([]byte) ([]byte, error) { return nil, nil }),
	} {
		if nc, err := nats.Connect(s.ClientURL(), opt); err == nil {
			nc.Close()
			t.Errorf("a user with %s has connected; want a refusal", name)
		}
	}
}

func TestWriteTrustConfigFails(t *testing.T) {
	k, _ := newKeys(t)
	path := filepath.Join(t.TempDir(), "missing", "trust.conf")
	if err := k.Authority().WriteTrustConfig(path); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("WriteTrustConfig = %v; want an error that names the path", err)
	}
}

func connect(t *testing.T, s *server.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), opts...)
	if err != nil {
		t.Fatalf("Connect: %v; want no error", err)
	}
	t.Cleanup(nc.Close)
	return nc
}
