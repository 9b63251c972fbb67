package embedded

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"ahprelay/auth"
)

const waitTime = 3 * time.Minute // how long tests wait for what must happen

// agentAt logs in at the server's TCP port as the host-agent of a host.
func agentAt(s *Server, tenant, host string) (*nats.Conn, error) {
	key, err := nkeys.CreateUser()
	if err != nil {
		return nil, err
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, err
	}
	user, _, err := s.keys.Authority().AgentUser(tenant, host, public, time.Hour)
	if err != nil {
		return nil, err
	}
	login := nats.UserJWT(func() (string, error) { return user, nil }, key.Sign)
	return nats.Connect("nats://"+s.Addr().String(), login, nats.Timeout(waitTime), nats.NoReconnect(), nats.CustomInboxPrefix("ahp.v1."+tenant+"."+host+".inbox"))
}

// occupy takes the only turn of a party. The party's writers then wait until the test calls
// release.
func occupy(t *testing.T, s *Server, whose *party) (release func()) {
	t.Helper()
	s.turns.asked.Add(1)
	done, err := s.turns.fair.Take(t.Context(), whose[:]...)
	if err != nil {
		t.Fatal(err)
	}
	return func() { s.turns.asked.Add(-1); done() }
}

// contended returns when some writer waits for a turn.
func contended(t *testing.T, s *Server, what string) {
	t.Helper()
	for end := time.Now().Add(waitTime); !s.turns.fair.Contended(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s waits for no turn; want it in line", what)
		}
	}
}

// TestPortTakesTurns takes the turn of an address, and then of a host. A login from that address,
// and a message from that host, must wait until the turn is released.
func TestPortTakesTurns(t *testing.T) {
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(Config{Keys: keys, Listen: "127.0.0.1:0", Tenants: map[string]map[string]time.Time{"acme": nil}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	release := occupy(t, s, &party{"all", nil, "127.0.0.1"})
	type login struct {
		conn *nats.Conn
		err  error
	}
	in := make(chan login, 1)
	go func() {
		conn, err := agentAt(s, "acme", "laptop")
		in <- login{conn, err}
	}()
	contended(t, s, "a login")
	release()
	agent := <-in
	if agent.err != nil {
		t.Fatal(agent.err)
	}
	defer agent.conn.Close()
	heard, err := agent.conn.SubscribeSync("ahp.v1.acme.laptop.x")
	if err == nil {
		err = agent.conn.FlushTimeout(waitTime)
	}
	if err != nil {
		t.Fatal(err)
	}
	release = occupy(t, s, partyOf("acme", "laptop"))
	if err := agent.conn.Publish("ahp.v1.acme.laptop.x", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	contended(t, s, "a message")
	release()
	ctx, cancel := context.WithTimeout(t.Context(), waitTime)
	defer cancel()
	if msg, err := heard.NextMsgWithContext(ctx); err != nil || string(msg.Data) != "hello" {
		t.Errorf("the subscriber receives %v, %v; want hello", msg, err)
	}
}

// accountOf returns the name of a tenant's account.
func accountOf(t *testing.T, s *Server, tenant string) string {
	t.Helper()
	account, err := s.keys.Authority().TenantAccount(tenant)
	if err != nil {
		t.Fatal(err)
	}
	return account
}

// TestDropWhileItIsSet drops a tenant's account while it is being created, and again afterwards.
// Then no login may succeed.
func TestDropWhileItIsSet(t *testing.T) {
	t.Parallel()
	s := startPort(t)
	if err := s.SetTenant("acme", nil); err != nil {
		t.Fatal(err)
	}
	public := accountOf(t, s, "acme")
	s.accounts.known.Delete(public) // what the first drop does
	if err := s.DropTenant("acme"); err != nil {
		t.Fatal(err)
	}
	s.Resolve(func(string) (string, error) { return "", errNoAccount })
	if nc, err := agentAt(s, "acme", "laptop"); err == nil {
		nc.Close()
		t.Error("a host-agent of a tenant without an account connects; want a refusal")
	}
}

// TestOneLoginMakesAnAccount fetches an account twice, as two logins do. The second fetch must wait
// until the first has made the account, because it would otherwise get an account without its
// revocations. If the first makes no account, the second must wait for buildTimeout at most.
func TestOneLoginMakesAnAccount(t *testing.T) {
	t.Parallel()
	s := startPort(t)
	account := accountOf(t, s, "umbrella")
	claim, err := s.keys.Authority().TenantAccountJWT(auth.Embedded, "umbrella", nil)
	if err != nil {
		t.Fatal(err)
	}
	s.Resolve(func(string) (string, error) { return claim, nil })
	start := time.Now()
	if _, err := s.accounts.Fetch(account); err != nil || s.accounts.awaitOther("other") {
		t.Fatalf("the first Fetch failed (%v), or the fetch of a different account waited; want neither", err)
	}
	if !s.accounts.awaitOther(account) || time.Since(start) < buildTimeout {
		t.Errorf("the second fetch of an account stopped waiting for the first %v after its start; want buildTimeout", time.Since(start))
	}
	for range 2 { // in both rounds, the first fetch has ended
		if err := s.SetTenant("umbrella", nil); err != nil {
			t.Fatal(err)
		}
		if s.accounts.awaitOther(account) {
			t.Error("a fetch waits although the account is made; want no wait")
		}
	}
	s.accounts.mu.Lock()
	defer s.accounts.mu.Unlock()
	if _, left := s.accounts.building[account]; left {
		t.Error("the resolver still lists the account as being fetched after the server has it; want it removed")
	}
}

// TestExpiredAccountIsRenewed lets a tenant's account expire, as a route can while the server builds
// the account. The server still has the account's claim. A host-agent must be able to log in again.
func TestExpiredAccountIsRenewed(t *testing.T) {
	t.Parallel()
	s := startPort(t)
	if err := s.SetTenant("acme", nil); err != nil {
		t.Fatal(err)
	}
	public := accountOf(t, s, "acme")
	account, _ := s.account(public)
	claims := jwt.NewAccountClaims(public)
	claims.Expires = 1
	s.nats.UpdateAccountClaims(account, claims)
	await(t, "a host-agent logs in", func() bool { // NATS requests an account's claim once a second
		nc, err := agentAt(s, "acme", "laptop")
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
}

// TestTenantIsSetWhileARouteCreatesItsAccount sets a tenant when a route has just created its
// account, without a claim. The route then marks the account. A host-agent must be able to log in.
func TestTenantIsSetWhileARouteCreatesItsAccount(t *testing.T) {
	t.Parallel()
	s := startPort(t)
	public := accountOf(t, s, "umbrella")
	account, _ := s.nats.LookupOrRegisterAccount(public)
	set := make(chan error, 1)
	go func() { set <- s.SetTenant("umbrella", nil) }()
	select {
	case err := <-set:
		t.Errorf("SetTenant = %v while the account has no claim; want it to wait", err)
	case <-time.After(20 * buildPoll):
		mark := jwt.NewAccountClaims(public)
		mark.Expires = 1
		mark.Imports.Add(&jwt.Import{Account: "unknown", Subject: "x", Type: jwt.Stream}) // an account that lacks an import is incomplete
		s.nats.UpdateAccountClaims(account, mark)
		if err := <-set; err != nil {
			t.Fatal(err)
		}
	}
	nc, err := agentAt(s, "umbrella", "laptop")
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
}

// TestCloseEndsTheWaitForAnAccount closes the server while SetTenant waits for an account that a
// route has created without a claim. SetTenant must return an error.
func TestCloseEndsTheWaitForAnAccount(t *testing.T) {
	t.Parallel()
	s := startPort(t)
	_, _ = s.nats.LookupOrRegisterAccount(accountOf(t, s, "umbrella"))
	set := make(chan error, 1)
	go func() { set <- s.SetTenant("umbrella", nil) }()
	s.Close()
	select {
	case err := <-set:
		if err == nil {
			t.Error("SetTenant = nil at a closed server; want an error")
		}
	case <-time.After(waitTime):
		t.Error("SetTenant still waits after the server has ended; want an error")
	}
}
