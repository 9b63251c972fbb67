package registry

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/test/natssite"

	"github.com/nats-io/nats.go"
)

// TestForgottenHostStaysRevoked revokes and forgets a host, in either order. Its host-agent still has
// credentials that have not expired, and a connection. NATS must end the connection and refuse the
// credentials, also after the relay has computed the refused users again, also if the tenant
// has no further host, and also after the relay has restarted.
func TestForgottenHostStaysRevoked(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ revokedFirst, last, restarted bool }{
		"revoked, then forgotten":                {revokedFirst: true},
		"the last host, revoked, then forgotten": {revokedFirst: true, last: true},
		"forgotten, then revoked":                {},
		"the last host, forgotten, then revoked": {last: true},
		"revoked and forgotten before a restart": {revokedFirst: true, restarted: true},
		"forgotten, then revoked by a successor": {restarted: true, last: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			site, file := natssite.New(t), filepath.Join(t.TempDir(), "revocations.json")
			start := func() *Registry {
				revocations, err := LoadRevocations(file, nil)
				if err != nil {
					t.Fatal(err)
				}
				return startTest(t, broker.RelayDialConfig{Keys: site.Keys, Server: site.Server}, Config{Revocations: revocations})
			}
			r := start()
			laptop := loginOf(t, site, r, "laptop")
			nc, err := laptop()
			if err != nil {
				t.Fatalf("login before the revocation: %v; want no error", err)
			}
			defer nc.Close()
			if !test.last {
				loginOf(t, site, r, "tablet")
			}
			revoke := func() {
				if err := r.Revocations().Add(auth.Revocation{Tenant: "acme", Host: "laptop", At: time.Now().UTC()}); err != nil {
					t.Fatal(err)
				}
				natssite.Eventually(t, "NATS ends the connection", nc.IsClosed)
			}
			if test.revokedFirst {
				revoke()
			}
			natssite.Eventually(t, "the host is forgotten", func() bool {
				err := r.Forget(t.Context(), "acme", "laptop")
				return err == nil || errors.Is(err, ErrUnknownHost)
			})
			if test.restarted {
				r.Close()
				site.Restart(t)
				r = start()
			}
			if !test.revokedFirst {
				revoke()
			}
			desktop := loginOf(t, site, r, "desktop")
			r.accounts.tidy(time.Now())
			if err := r.cfg.Tenants.Await(t.Context(), "acme"); err != nil {
				t.Fatal(err)
			}
			natssite.Eventually(t, "the tenant's account is open", func() bool { return logsIn(desktop) == nil })
			if err := logsIn(laptop); !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrAuthRevoked) {
				t.Errorf("login after the host was forgotten: %v; want a refusal", err)
			}
		})
	}
}

// TestFormerUsersExpire forgets a host with users that have credentials. The relay must keep these users
// until the credentials have expired, or until the host returns.
func TestFormerUsersExpire(t *testing.T) {
	t.Parallel()
	site := natssite.New(t)
	r := startTest(t, broker.RelayDialConfig{Keys: site.Keys, Server: site.Server}, Config{})
	kept := func() (hosts, tokens int) {
		r.mu.RLock()
		defer r.mu.RUnlock()
		return len(r.accounts.former), len(r.accounts.tokens)
	}
	for _, name := range []string{"laptop", "tablet"} {
		loginOf(t, site, r, name)
		natssite.Eventually(t, "the host is forgotten", func() bool {
			err := r.Forget(t.Context(), "acme", name)
			return err == nil || errors.Is(err, ErrUnknownHost)
		})
	}
	natssite.Enrol(t, r, "acme", "laptop")
	if k, _ := r.known("acme.laptop"); len(k.Users) != 1 {
		t.Errorf("the host that has returned has %d users; want 1", len(k.Users))
	}
	r.mu.Lock()
	r.accounts.correctLocked(time.Now().Add(auth.DefaultAgentTTL))
	former := len(r.accounts.former["acme"])
	r.accounts.correctLocked(time.Now().Add(auth.DefaultAgentTTL + 2*userSlack))
	r.mu.Unlock()
	if former != 1 {
		t.Errorf("%d former hosts while the credentials may be in use; want 1", former)
	}
	if hosts, tokens := kept(); hosts != 0 || tokens != 1 {
		t.Errorf("%d tenants with former hosts, and %d tokens after the credentials have expired; want none, and the known host's token", hosts, tokens)
	}
}

// TestFormerUsersLeaveTheStore stores the users of a forgotten host shortly before their credentials
// expire. The store must then remove them.
func TestFormerUsersLeaveTheStore(t *testing.T) {
	t.Parallel()
	r := startTest(t, newTestServer(t), Config{})
	now := time.Now()
	host := hostState{Key: "acme.laptop", Users: natsUsers{{NKey: auth.AllUsers, Expires: now.Add(time.Second - userSlack)}}}
	natssite.Eventually(t, "the users are stored", func() bool { return r.view.store.putFormer(t.Context(), &host, now) == nil })
	natssite.Eventually(t, "the users are removed", func() bool {
		rev, err := r.view.store.read(t.Context(), formerKeys+host.Key, &host)
		return rev == 0 && err == nil
	})
}

// loginOf admits a host-agent, and returns a function that logs in with its credentials.
func loginOf(t *testing.T, site *natssite.Site, r *Registry, host string) (login func() (*nats.Conn, error)) {
	t.Helper()
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	user, expires, err := site.Keys.Authority().AgentUser("acme", host, key.Public(), 0)
	if err != nil {
		t.Fatal(err)
	}
	natssite.Enrol(t, r, "acme", host)
	if err := r.Admit(t.Context(), auth.Enrolment{ID: host, Tenant: "acme", Host: host, IssuedAt: time.Now().Add(-time.Hour)}, key.Public(), expires); err != nil {
		t.Fatal(err)
	}
	return func() (*nats.Conn, error) {
		return natssite.Connect(site.URL(), nats.NoReconnect(), nats.UserJWT(func() (string, error) { return user, nil }, key.SignNonce))
	}
}

func logsIn(login func() (*nats.Conn, error)) error {
	nc, err := login()
	if err == nil {
		nc.Close()
	}
	return err
}
