package registry

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/embedded"
	"ahprelay/broker/link"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"
)

// aMinute bounds how long tests wait for what must happen.
const aMinute = time.Minute

// until waits until holds returns true, and fails after a minute.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(aMinute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// An agentLogin can log in at an embedded server as the host-agent of a host. Its credentials come
// from some relay.
type agentLogin struct {
	url          string
	tenant, host string
	key          *auth.AgentKey
	jwt          string
}

func newAgentLogin(t *testing.T, server broker.RelayDialConfig, tenant, host string) *agentLogin {
	t.Helper()
	key, err := auth.NewAgentKey()
	if err != nil {
		t.Fatal(err)
	}
	jwt, _, err := server.Keys.Authority().AgentUser(tenant, host, key.Public(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return &agentLogin{"nats://" + server.Server.(*embedded.Server).Addr().String(), tenant, host, key, jwt}
}

func (a *agentLogin) connect() (*nats.Conn, error) {
	return nats.Connect(a.url, nats.Timeout(aMinute),
		nats.UserJWT(func() (string, error) { return a.jwt, nil }, a.key.SignNonce),
		nats.CustomInboxPrefix(link.HostPrefix(a.tenant, a.host)+"inbox.agent"))
}

// login calls connect until it succeeds, and returns the connection.
func (a *agentLogin) login(t *testing.T) (nc *nats.Conn) {
	t.Helper()
	until(t, a.tenant+" logs in", func() (in bool) {
		var err error
		nc, err = a.connect()
		return err == nil
	})
	t.Cleanup(nc.Close)
	return nc
}

// holds acquires the host's lease. It repeats the request like a host-agent, because a request may
// be lost while an account opens or closes.
func (a *agentLogin) holds(t *testing.T, nc *nats.Conn, seq uint64) {
	t.Helper()
	body, err := json.Marshal(leaseRequest{Op: opHold, Instance: "agent", Seq: seq, Presence: online})
	if err != nil {
		t.Fatal(err)
	}
	until(t, a.tenant+" has its host", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), leaseTimeout)
		defer cancel()
		var answer leaseAnswer
		msg, err := nc.RequestWithContext(ctx, leaseSubject(a.tenant, a.host), body)
		return err == nil && json.Unmarshal(msg.Data, &answer) == nil && answer.Result == leaseHeld
	})
}

// told writes the host and its user into the store, as another relay does after it has issued
// credentials.
func (a *agentLogin) told(t *testing.T, r *Registry) {
	t.Helper()
	now := time.Now()
	s := hostState{Key: hostKey(a.tenant, a.host), Enrolled: now, Users: natsUsers{{NKey: a.key.Public(), Token: "t-" + a.tenant, Issued: now, Expires: now.Add(time.Hour)}}}
	rev, err := r.view.store.write(t.Context(), hostKeys+s.Key, s, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.applyHost(&r.view, s, rev, 0, false)
}

func isOpen(r *Registry, tenant string) bool { return slices.Contains(r.cfg.Tenants.Names(), tenant) }

// TestAccountsOnDemand logs in at a relay's server. The login must open the tenant's account. The
// account must stay open while somebody is connected, close afterwards, and open again for the next
// login. A user who was revoked meanwhile must be refused. The account of a tenant without hosts
// must close at once.
func TestAccountsOnDemand(t *testing.T) {
	t.Parallel()
	keys, err := auth.LoadKeys(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	own, err := embedded.Start(embedded.Config{Keys: keys, Store: t.TempDir(), Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	server := broker.RelayDialConfig{Keys: keys, Server: own}
	r := startTest(t, server, Config{})
	ada, eve := newAgentLogin(t, server, "ada", "h"), newAgentLogin(t, server, "eve", "h")
	if nc, err := ada.connect(); err == nil {
		nc.Close()
		t.Fatal("a host-agent of an unknown tenant connects; want a refusal")
	}
	ada.told(t, r)
	eve.told(t, r)
	if names := r.cfg.Tenants.Names(); len(names) > 0 {
		t.Fatalf("the accounts %v are open while no host-agent is connected; want none", names)
	}
	nc := ada.login(t)
	ada.holds(t, nc, 1)
	if isOpen(r, "eve") {
		t.Error("the account of a different tenant was opened; want only ada's")
	}
	later := func() time.Time { return time.Now().Add(2 * accountIdle) }
	r.accounts.tidy(later())
	if !isOpen(r, "ada") {
		t.Fatal("an account was closed whose host's lease this relay keeps; want it open")
	}
	r.keeping.sweep(later()) // now the lease expires
	r.accounts.tidy(later())
	if !isOpen(r, "ada") {
		t.Fatal("an account was closed while a host-agent is connected; want it open")
	}
	nc.Close()
	until(t, "the account is closed", func() bool { r.accounts.tidy(later()); return !isOpen(r, "ada") })
	release, err := r.cfg.Tenants.Use("ada")
	if err != nil {
		t.Fatal(err)
	}
	r.accounts.tidy(later())
	if !isOpen(r, "ada") {
		t.Error("an account was closed while it is in use; want it open")
	}
	release()
	until(t, "the account is closed again", func() bool { r.accounts.tidy(later()); return !isOpen(r, "ada") })
	nc = ada.login(t)
	ada.holds(t, nc, 2)
	nc.Close()

	nc = eve.login(t)
	eve.holds(t, nc, 1)
	nc.Close()
	r.keeping.sweep(later())
	until(t, "both accounts are closed", func() bool { r.accounts.tidy(later()); return len(r.cfg.Tenants.Names()) == 0 })
	if err := r.Revocations().Add(auth.Revocation{Token: "t-eve", At: time.Now().Add(time.Second)}); err != nil {
		t.Fatal(err)
	}
	until(t, "it is known whom to refuse", func() bool {
		r.mu.RLock()
		defer r.mu.RUnlock()
		return len(r.accounts.tenants["eve"].refused) > 0
	})
	until(t, "the account is opened for who was revoked", func() bool { // at most one request a second
		if nc, err := eve.connect(); err == nil {
			nc.Close()
			t.Fatal("a host-agent with revoked credentials connects; want a refusal")
		}
		return isOpen(r, "eve")
	})
	nc = ada.login(t)
	nc.Close()
	if err := r.Forget(t.Context(), "ada", "h"); err != nil {
		t.Fatal(err)
	}
	until(t, "the account of a tenant without hosts is closed", func() bool { return !isOpen(r, "ada") })
}

// TestOneRelayStandsByForEachTenant ranks relays for many tenants. Each relay must come first for a
// fair part. If relays end, the first relay for a tenant must stay first.
func TestOneRelayStandsByForEachTenant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		relays := rapid.SliceOfNDistinct(rapid.StringMatching("[a-z0-9]{13}"), 1, 8, rapid.ID).Draw(t, "relays")
		first := func(relays []string, tenant string) string {
			return slices.MaxFunc(relays, func(a, b string) int {
				if standbyRank(a, tenant) < standbyRank(b, tenant) {
					return -1
				}
				return 1
			})
		}
		counts := map[string]int{}
		const tenants = 400
		for i := range tenants {
			tenant := "tenant-" + string(rune('a'+i%26)) + string(rune('a'+i/26))
			owner := first(relays, tenant)
			counts[owner]++
			if fewer := slices.DeleteFunc(slices.Clone(relays), func(r string) bool { return r != owner && r > relays[0] }); first(fewer, tenant) != owner {
				t.Fatal("the tenant's first relay is not first in a shorter list; want the same relay")
			}
		}
		for _, r := range relays {
			if counts[r] < tenants/len(relays)/4 {
				t.Fatalf("relay %s stands by for %d of %d tenants: %v; want a quarter of its share or more", r, counts[r], tenants, counts)
			}
		}
	})
}
