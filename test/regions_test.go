package test

import (
	"testing"
	"time"

	"ahprelay/gateway"
	"ahprelay/hostagent"
	"ahprelay/test/faultproxy"
	"ahprelay/test/natssite"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// Two relays are in different regions. The host is in one region, and a client in the
// other region uses it. The regions are cut off from each other for longer than the
// resume window. Only the distant client's connection ends. After the cut, this client
// resumes without loss, and no process restarts.
func TestCutRegionReturnsWithoutLoss(t *testing.T) {
	t.Parallel()
	const resume = 5 * time.Second
	far := gateway.RelayConfig{
		DataDir: t.TempDir(), Listen: natssite.FreePort(t), NATSListen: natssite.FreePort(t), Region: "west", GatewayListen: natssite.FreePort(t),
	}
	near := gateway.RelayConfig{NATSListen: "127.0.0.1:0", Region: "east", GatewayListen: natssite.FreePort(t), AdminListen: gateway.NoListener}
	var ways []*faultproxy.Proxy
	for _, cfg := range []*gateway.RelayConfig{&far, &near} {
		way, err := faultproxy.New("", cfg.GatewayListen)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(way.Close)
		cfg.GatewayAdvertise, cfg.Gateway.Resume = way.Addr(), resume
		ways = append(ways, way)
	}
	remotes := []string{"west=" + far.GatewayAdvertise, "east=" + near.GatewayAdvertise} // both relays have the same list
	far.Gateways, near.Gateways = remotes, remotes
	dir := copyKeys(t, far.DataDir)
	other := startRelayProcess(t, far)
	_, server := newRefhost(t, nil)
	s := startStackWith(t, stack.Config{
		DataDir: dir, Upstream: server.URL(), NATSOverTCP: true, Relay: near, Agent: hostagent.Config{Resume: resume},
	}, nil)
	if info := other.await(t, "online"); info.Region != "east" {
		t.Errorf("the far relay says %+v; want a host of east", info)
	}
	vars := flowVars("demo", "00000000")
	viewers := []*viewer{{id: "near"}, {id: "far"}}
	for i, dial := range []dialer{throughRelay(t, s), other.dial} {
		v := viewers[i]
		v.client = join(t, dial, v.id, vars)
		if i == 0 {
			create(t, v.client, vars)
		}
		watch(t, v.client, vars)
	}
	here, there := viewers[0].client, viewers[1].client
	say(t, there, vars["chat"], 1, "stream 20 2 100")
	awaitDeltas(t, []*refclient.Client{here, there}, 20)

	for _, way := range ways {
		way.Cut()
	}
	say(t, here, vars["chat"], 2, "stream 50 2 100")
	awaitDeltas(t, []*refclient.Client{here}, 70)
	select {
	case <-there.Done():
	case <-time.After(stepTime):
		t.Fatal("a client of an unreachable host is still connected; want it closed")
	}
	if code, reason := there.CloseStatus(); code != 4100 {
		t.Errorf("the far client was closed with %d %q; want 4100", code, reason)
	}
	say(t, here, vars["chat"], 3, "stream 50 2 100")
	awaitDeltas(t, []*refclient.Client{here}, 120)
	if info := other.await(t, "online"); info.Silent.IsZero() {
		t.Errorf("the far relay says %+v; want that the host's region is not heard", info)
	}
	for _, way := range ways {
		if err := way.Heal(); err != nil {
			t.Fatal(err)
		}
	}
	viewers[1].resume(t, other.dial, []string{"ahp-root://", vars["session"], vars["chat"]})
	say(t, viewers[1].client, vars["chat"], 4, "stream 20 2 100")
	awaitDeltas(t, []*refclient.Client{here}, 140)
	want := text(t, viewers[0].actions())
	eventually(t, "the far one has got as much as the near one", func() bool { return text(t, viewers[1].actions()) == want })
	wantAllOf(t, "near", here, s.Tap.Conns()[0])
	eventually(t, "the far relay hears the region again", func() bool {
		info, err := other.host(t.Context())
		return err == nil && info.Silent.IsZero() && info.State == "online"
	})
}
