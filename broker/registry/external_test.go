package registry_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/registry"
	"ahprelay/test/natssite"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// A natsServer is a NATS server as an operator runs it, with a relay's trust configuration.
type natsServer struct {
	*server.Server
	dir, accounts string
}

func startNATS(t *testing.T, keys *auth.Keys, listen, more string) *natsServer {
	t.Helper()
	s := &natsServer{dir: t.TempDir()}
	s.accounts = filepath.Join(s.dir, auth.AccountsDir)
	if err := keys.Authority().WriteTrustConfig(filepath.Join(s.dir, "nats-trust.conf")); err != nil {
		t.Fatal(err)
	}
	if more == "" {
		more = fmt.Sprintf("resolver: {type: full, dir: %q}", s.accounts)
	}
	conf := filepath.Join(s.dir, "nats.conf")
	if err := os.WriteFile(conf, []byte(fmt.Sprintf("listen: %q\ninclude \"nats-trust.conf\"\njetstream: {store_dir: %q}\n%s\n", listen, filepath.Join(s.dir, "jetstream"), more)), 0o600); err != nil {
		t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	opts.NoSigs, opts.NoLog = true, true
	if s.Server, err = server.NewServer(opts); err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(s.stop)
	if !s.ReadyForConnections(natssite.Patience) {
		t.Fatal("the NATS server is not ready after natssite.Patience; want it ready")
	}
	return s
}

func (s *natsServer) stop() {
	s.Shutdown()
	s.WaitForShutdown()
}

// TestExternalServersGetTheTenants runs a relay with an external NATS server, and revokes a host.
// The server must cut its host-agent off and refuse its credentials. A new server without accounts
// must get the tenants and the revocations from the relay.
func TestExternalServersGetTheTenants(t *testing.T) {
	keys := natssite.NewKeys(t)
	nats1 := startNATS(t, keys, "127.0.0.1:-1", "")
	address := nats1.Addr().String()
	dial := broker.RelayDialConfig{Keys: keys, Instance: "relay1", URL: "nats://" + address}
	tenants, err := broker.StartTenants(t.Context(), broker.TenantsConfig{Relay: dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tenants.Close)
	r, err := registry.Start(t.Context(), registry.Config{Conn: natssite.DialRelay(t, dial), Tenants: tenants})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)

	// s is a site without a server: it provides only the keys.
	s := &natssite.Site{Keys: keys}
	enrolment := auth.Enrolment{ID: "t1", Tenant: "acme", Host: "laptop", IssuedAt: time.Now().Add(-time.Hour)}
	badEvents, bad := natssite.Watched(admitForAt(t, s, r, enrolment, dial.URL))
	otherEvents, other := natssite.Watched(admitForAt(t, s, r, auth.Enrolment{ID: "t2", Tenant: "acme", Host: "desktop", IssuedAt: time.Now()}, dial.URL))
	acquire(t, holderAt(t, bad))
	natssite.DialAgent(t, other)
	wantHost(t, r, registry.Online, "")

	if err := r.Revocations().Add(auth.Revocation{Tenant: "acme", Host: "laptop", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	natssite.Next(t, "the end of the connection", badEvents.Disconnected)
	wantHost(t, r, registry.Offline, "revoked")
	if len(otherEvents.Disconnected) > 0 {
		t.Errorf("the second host-agent was disconnected: %v; want it connected", <-otherEvents.Disconnected)
	}
	stolen := nats.UserJWT(func() (string, error) { return bad.Credentials(t.Context()) }, bad.Sign)
	refused := func() bool {
		nc, err := natssite.Connect(dial.URL, stolen)
		if err == nil {
			nc.Close()
		}
		return errors.Is(err, nats.ErrAuthorization)
	}
	natssite.Eventually(t, "revoked credentials are refused", refused)

	// A new server without accounts replaces the first.
	nats1.stop()
	startNATS(t, keys, address, "")
	natssite.Next(t, "the host-agent is back", otherEvents.Reconnected)
	natssite.Eventually(t, "revoked credentials are still refused", refused)
}

func holderAt(t *testing.T, cfg broker.AgentDialConfig) *registry.LeaseHolder {
	t.Helper()
	h, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: natssite.DialAgent(t, cfg), Tenant: cfg.Tenant, Host: cfg.Host, Instance: cfg.Instance, Presence: registry.Presence{State: registry.Online},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestExternalWithoutResolver runs a relay with an external NATS server whose resolver keeps
// accounts in memory. The relay must log that it needs a resolver with type full.
func TestExternalWithoutResolver(t *testing.T) {
	keys := natssite.NewKeys(t)
	nats := startNATS(t, keys, "127.0.0.1:-1", "resolver: MEMORY")
	log := natssite.LogLines{Lines: make(chan string, 100)}
	dial := broker.RelayDialConfig{Keys: keys, Instance: "relay1", URL: "nats://" + nats.Addr().String()}
	tenants, err := broker.StartTenants(t.Context(), broker.TenantsConfig{Relay: dial, Log: slog.New(log)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tenants.Close)
	if err := tenants.Open("acme", nil); err != nil {
		t.Fatal(err)
	}
	natssite.Eventually(t, "word of the resolver", func() bool { return strings.Contains(natssite.Next(t, "log line", log.Lines), "type full") })
}
