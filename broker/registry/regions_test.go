package registry_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/broker/embedded"
	"ahprelay/broker/registry"
	"ahprelay/test/faultproxy"
	"ahprelay/test/natssite"
)

// regionTTL is the lease time in tests of regions. Host-agents renew every regionRenew, which is
// much shorter even on a busy machine.
const (
	regionTTL   = 3 * time.Second
	regionRenew = 300 * time.Millisecond
)

// A region is a region with one relay. Other regions reach it through way, a proxy that can break
// the network.
type region struct {
	*natssite.Site
	*registry.Registry
	way *faultproxy.Proxy
}

// startRegions starts regions with one relay each, joined by gateways, and waits until all are
// ready.
func startRegions(t *testing.T, names ...string) map[string]*region {
	t.Helper()
	keys := natssite.NewKeys(t)
	regions, listen, remotes := map[string]*region{}, map[string]string{}, map[string][]string{}
	for _, name := range names {
		listen[name] = natssite.FreePort(t)
		way, err := faultproxy.New("", listen[name])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(way.Close)
		regions[name], remotes[name] = &region{way: way}, []string{way.Addr()}
	}
	for name, r := range regions {
		r.Site = regionNode(t, keys, embedded.Gateways{Region: name, Listen: listen[name], Advertise: r.way.Addr(), Remotes: remotes})
	}
	for name, r := range regions {
		r.Registry = registryWith(t, r.Site, registry.Config{Region: name, Cluster: true, LeaseTTL: regionTTL})
	}
	for name, r := range regions {
		natssite.Eventually(t, name+" is ready", func() bool { return r.Degraded() == "" })
	}
	return regions
}

func regionNode(t *testing.T, keys *auth.Keys, gateways embedded.Gateways) *natssite.Site {
	t.Helper()
	return regionNodeWith(t, keys, nil, gateways)
}

func regionNodeWith(t *testing.T, keys *auth.Keys, log *slog.Logger, gateways embedded.Gateways) *natssite.Site {
	t.Helper()
	server, err := embedded.Start(embedded.Config{
		Keys: keys, Listen: "127.0.0.1:0", Tenants: natssite.Acme, Store: t.TempDir(), Gateways: gateways, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return &natssite.Site{Keys: keys, Server: server}
}

// hold enrols a host in a region, connects a host-agent there, and acquires the host's lease.
func (r *region) hold(t *testing.T, host, instance string) *registry.LeaseHolder {
	t.Helper()
	r.enrol(t, host)
	h := r.holder(t, host, instance)
	acquire(t, h)
	return h
}

func (r *region) enrol(t *testing.T, host string) {
	t.Helper()
	natssite.Enrol(t, r, "acme", host)
}

func (r *region) holder(t *testing.T, host, instance string) *registry.LeaseHolder {
	t.Helper()
	h, err := registry.NewLeaseHolder(registry.LeaseConfig{
		Conn: natssite.DialAgent(t, r.AgentConfig(t, "acme", host, 0)), Tenant: "acme", Host: host, Instance: instance, Renew: regionRenew,
		Presence: registry.Presence{State: registry.Online, AgentVersion: "1.1"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// sees waits until the region's view of a host fulfils holds, and returns the host.
func (r *region) sees(t *testing.T, what, host string, holds func(registry.Host) bool) registry.Host {
	t.Helper()
	var h registry.Host
	natssite.Eventually(t, what, func() bool {
		h, _ = r.Lookup("acme", host)
		return holds(h)
	})
	return h
}

func online(h registry.Host) bool { return h.State == registry.Online && h.Silent.IsZero() }

// TestRegionsDecideAboutTheirHosts runs two regions with hosts. Each region must see the other's
// hosts, and decide about its own hosts, even if their host-agents are connected in the other. Then
// the network between them is cut: each must continue, keep its view of the other's hosts, and
// decide about new hosts. Afterwards they must agree again.
func TestRegionsDecideAboutTheirHosts(t *testing.T) {
	t.Parallel()
	regions := startRegions(t, "east", "west")
	east, west := regions["east"], regions["west"]
	laptop, desktop := east.hold(t, "laptop", "laptop-1"), west.hold(t, "desktop", "desktop-1")
	run(t, laptop)
	run(t, desktop)
	for name, r := range regions {
		for host, home := range map[string]string{"laptop": "east", "desktop": "west"} {
			if h := r.sees(t, name+" sees "+host, host, online); h.Region != home || h.AgentInstance == "" || h.Fence == 0 {
				t.Errorf("the region %s knows the host as %+v; want its home to be %s", name, h, home)
			}
		}
	}
	// The host belongs to east and its host-agent connects in west: west's relay keeps the lease,
	// and east decides about it.
	east.enrol(t, "roaming")
	west.sees(t, "west knows the one that roams", "roaming", func(h registry.Host) bool { return h.Region == "east" })
	roaming := west.hold(t, "roaming", "roaming-1")
	run(t, roaming)
	east.sees(t, "east sees the one that roams", "roaming", online)
	laptop.Update(registry.Presence{State: registry.Offline, Reason: "host stopped"})
	west.sees(t, "west sees a change", "laptop", func(h registry.Host) bool { return h.State == registry.Offline && h.Reason == "host stopped" })
	laptop.Update(registry.Presence{State: registry.Online})
	west.sees(t, "west sees another", "laptop", online)

	apart := time.Now()
	for _, r := range regions {
		r.way.Cut()
	}
	for name, host := range map[string]string{"east": "desktop", "west": "laptop"} {
		h := regions[name].sees(t, name+" says that it hears nothing", host, func(h registry.Host) bool { return !h.Silent.IsZero() })
		if h.State != registry.Online || h.AgentInstance != host+"-1" {
			t.Errorf("the relay in %s knows %s as %+v; want its state before the cut", name, host, h)
		}
	}
	// A rival for each host, in the host's region, waits for longer than a lease and must be
	// refused.
	ctx, cancel := context.WithTimeout(t.Context(), natssite.Patience)
	defer cancel()
	for name, host := range map[string]string{"east": "laptop", "west": "desktop"} {
		if err := regions[name].holder(t, host, "rival").Acquire(ctx); !errors.Is(err, registry.ErrHostTaken) {
			t.Errorf("Acquire by a second host-agent for %s = %v; want %v", host, err, registry.ErrHostTaken)
		}
	}
	east.sees(t, "east says of its own host that its lease has run out", "roaming", func(h registry.Host) bool { return h.State == registry.Offline })
	if h, _ := east.Lookup("acme", "desktop"); h.State != registry.Online || h.Silent.IsZero() {
		t.Errorf("cut off from west, east lists a host of west as %+v; want its last known state", h)
	}
	if h, _ := west.Lookup("acme", "roaming"); !online(h) {
		t.Errorf("west hears the host-agent, but lists its host as %+v; want online", h)
	}
	for name, host := range map[string]string{"east": "laptop", "west": "desktop"} {
		if h, _ := regions[name].Lookup("acme", host); !online(h) {
			t.Errorf("%s lists its own host %s as %+v; want online", name, host, h)
		}
	}
	if took := time.Since(apart); took < regionTTL {
		t.Errorf("the checks ended %v after the regions were separated; want them to last longer than a lease, %v", took, regionTTL)
	}
	fresh := east.hold(t, "fresh", "fresh-1") // the separated region also decides about a new host
	run(t, fresh)

	for _, r := range regions {
		if err := r.way.Heal(); err != nil {
			t.Fatal(err)
		}
	}
	for name, r := range regions {
		for _, host := range []string{"laptop", "desktop", "roaming", "fresh"} {
			if h := r.sees(t, name+" sees "+host+" again", host, online); h.AgentInstance != host+"-1" {
				t.Errorf("%s sees %s as %+v; want its first instance", name, host, h)
			}
		}
		natssite.Eventually(t, name+" says that all is well", func() bool { return r.Degraded() == "" })
	}
}

// TestRegionOfOtherKeys joins two regions with different keys. Each must refuse the other, also if
// the other accepts all certificates. The log must give the reason.
func TestRegionOfOtherKeys(t *testing.T) {
	t.Parallel()
	lines := natssite.LogLines{Lines: make(chan string, 1000)}
	claimed := natssite.FreePort(t)
	west := regionNodeWith(t, natssite.NewKeys(t), slog.New(lines), embedded.Gateways{
		Region: "west", Listen: "127.0.0.1:0", Remotes: map[string][]string{"east": {claimed}},
	})
	regionNode(t, natssite.NewKeys(t), embedded.Gateways{
		Region: "east", Listen: claimed, Remotes: map[string][]string{"west": {west.Server.GatewayAddr()}},
	})
	deadline := time.After(natssite.Patience)
	for refused := false; !refused; {
		select {
		case line := <-lines.Lines:
			refused = strings.Contains(line, "gateway handshake error") && strings.Contains(line, "need the same keys")
		case <-deadline:
			t.Fatal("the log has no error about east's different keys; want one")
		}
	}
	forger, err := natssite.NewKeys(t).ClusterTLS()
	if err != nil {
		t.Fatal(err)
	}
	forger.InsecureSkipVerify, forger.VerifyPeerCertificate, forger.VerifyConnection = true, nil, nil
	c, err := tls.Dial("tcp", west.Server.GatewayAddr(), forger)
	if err == nil {
		_ = c.SetReadDeadline(time.Now().Add(natssite.Patience))
		_, err = c.Read(make([]byte, 1)) // with TLS 1.3, the first read returns the refusal
		_ = c.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "remote error: tls:") {
		t.Errorf("a connection that accepts any certificate, with keys from a different cluster: %v; want a TLS refusal", err)
	}
}

// TestOneRegionDecides separates two regions, and enrols the same host in both, with a host-agent
// in each. When they are joined again, the region whose name is first must have the host, with a
// higher lease number than the other had. The other host-agent must end.
func TestOneRegionDecides(t *testing.T) {
	t.Parallel()
	regions := startRegions(t, "east", "west")
	east, west := regions["east"], regions["west"]
	for _, r := range regions {
		r.way.Cut()
	}
	first := west.hold(t, "laptop", "west-1")
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	loser := west.hold(t, "laptop", "west-2") // the second lease in the west
	ended := make(chan error, 1)
	go func() { ended <- loser.Run(t.Context()) }()
	winner := east.hold(t, "laptop", "east-1")
	stop := run(t, winner)
	west.sees(t, "west has it", "laptop", online)
	before := east.sees(t, "east has it", "laptop", online)
	rival, _ := west.Lookup("acme", "laptop")
	if rival.Fence <= before.Fence {
		t.Fatalf("the numbers of the leases are %d and %d; want the one of the west higher", before.Fence, rival.Fence)
	}
	for _, r := range regions {
		if err := r.way.Heal(); err != nil {
			t.Fatal(err)
		}
	}
	for name, r := range regions {
		r.sees(t, name+" sees who has it", "laptop", func(h registry.Host) bool {
			return online(h) && h.Region == "east" && h.AgentInstance == "east-1" && h.Fence > rival.Fence
		})
	}
	natssite.Eventually(t, "the winner knows its number", func() bool { return winner.Fence() > rival.Fence })
	if err := natssite.Next(t, "the end of the other", ended); !errors.Is(err, registry.ErrHostTaken) {
		t.Errorf("the second host-agent ends with %v; want %v", err, registry.ErrHostTaken)
	}
	if err := stop(); err != nil {
		t.Errorf("the holder of the host stops with %v; want no error", err)
	}
}
