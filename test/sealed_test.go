package test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ahprelay/ahp"
	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/internal/connect"
	"ahprelay/internal/sealed"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// A sealedHost is a sealed host behind a relay, with the home directory of an
// ahp-connect.
type sealedHost struct {
	*stack.Stack
	t       *testing.T
	url     string // the relay's URL
	issue   func(change func(*auth.Client)) (string, error)
	control hostagent.Control
	home    *connect.Home
	relays  *connect.Relays
}

// startSealed starts a relay, a sealed host-agent and the home directory of an
// ahp-connect, which is not paired yet.
func startSealed(t *testing.T, upstream string, change func(*stack.Config), more ...func(*stack.Stack, *hostagent.Config) error) *sealedHost {
	t.Helper()
	dir, err := os.MkdirTemp("", "ahp") // short enough for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	control := filepath.Join(dir, "control.sock")
	cfg := stack.Config{Upstream: upstream, DataDir: t.TempDir()}
	state := t.TempDir()
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	s, err := stack.StartWith(ctx, cfg, func(s *stack.Stack, agent *hostagent.Config) error {
		agent.Sealed, agent.StateDir, agent.Control = &hostagent.Sealing{}, state, control
		for _, f := range more {
			if err := f(s, agent); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	h := &sealedHost{Stack: s, t: t, url: s.Relay.URL(), issue: s.Token, control: hostagent.Control{Path: control}}
	return h.controlled(ctx)
}

// controlled waits for the host-agent's control socket, and creates the home directory
// of an ahp-connect.
func (h *sealedHost) controlled(ctx context.Context) *sealedHost {
	h.t.Helper()
	h.awaitControl(ctx)
	h.home, h.relays = h.newHome(nil)
	return h
}

// awaitControl waits until the host-agent's control socket answers, which may be after
// the host is online.
func (h *sealedHost) awaitControl(ctx context.Context) {
	h.t.Helper()
	for {
		_, err := h.control.Devices(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			h.t.Fatal(err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// newHome creates an ahp-connect's home directory with a client token, which change
// edits.
func (h *sealedHost) newHome(change func(*auth.Client)) (*connect.Home, *connect.Relays) {
	h.t.Helper()
	token, err := h.issue(change)
	if err != nil {
		h.t.Fatal(err)
	}
	home := &connect.Home{Dir: h.t.TempDir()}
	file := filepath.Join(home.Dir, "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return home, connect.NewRelays(connect.NewRelay(h.url, connect.FileTokens(file))).Seal(home)
}

// code orders a pairing code for a subject and a level at the host.
func (h *sealedHost) code(subject string, level auth.Access) hostagent.PairingCode {
	h.t.Helper()
	code, err := h.control.OrderDevices(h.t.Context(), hostagent.DeviceOrder{Do: "pair", Subject: subject, Level: level})
	if err != nil {
		h.t.Fatal(err)
	}
	return code
}

// pair orders a new code for the subject and the level, and pairs the home directory's
// device with the host by this code. It returns the pairing.
func (h *sealedHost) pair(home *connect.Home, relays *connect.Relays, subject string, level auth.Access) *connect.Pairing {
	h.t.Helper()
	shown := h.code(subject, level)
	code, err := sealed.ParseCode(shown.Code)
	if err != nil {
		h.t.Fatal(err)
	}
	p, err := relays.All()[0].Pair(h.t.Context(), home, connect.PairConfig{Host: stack.Host, Code: code, Name: "test", Pending: func(p *connect.Pairing) {
		words := p.Device.Identity().Fingerprint().Words()
		list, err := h.control.Devices(h.t.Context())
		if err != nil || len(list.Waiting) != 1 || list.Waiting[0].Words != words || list.Words != sealed.HostFingerprint(p.Key).Words() {
			h.t.Errorf("the host shows %+v, %v; want one waiting device with the words %s", list, err, words)
			return
		}
		if _, err := h.control.OrderDevices(h.t.Context(), hostagent.DeviceOrder{Do: "confirm", Device: list.Waiting[0].Fingerprint}); err != nil {
			h.t.Error(err)
		}
	}})
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

// serve starts the endpoint of an ahp-connect. It returns the endpoint's URL and a
// local token for it.
func (h *sealedHost) serve(relays *connect.Relays) (url, token string) {
	h.t.Helper()
	tokens := connect.NewTokens("")
	made, err := tokens.Make("test", nil, "")
	if err != nil {
		h.t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- connect.NewEndpoint(connect.Config{Relays: relays, Tokens: tokens, Log: slog.New(slog.DiscardHandler)}).Serve(ctx, l)
	}()
	h.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			h.t.Error(err)
		}
	})
	return "ws://" + l.Addr().String() + "/ahp/" + stack.Host, made.Token
}

// throughConnect returns a dialer that connects to a sealed host through a paired
// ahp-connect. The dialer waits until the host-agent has admitted the connection,
// because ahp-connect answers pings itself until then.
func (h *sealedHost) throughConnect(relays *connect.Relays) dialer {
	url, token := h.serve(relays)
	return func(ctx context.Context, opts refclient.Options) (*refclient.Client, error) {
		before := h.connected()
		opts.Token = token
		c, err := refclient.Dial(ctx, url, opts)
		if err != nil {
			return nil, err
		}
		for {
			for id := range h.connected() {
				if !before[id] {
					return c, nil
				}
			}
			select {
			case <-c.Done():
				return c, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// connected returns the ids of all clients that the host-agent lists.
func (h *sealedHost) connected() map[string]bool {
	h.t.Helper()
	list, err := h.control.Clients(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	ids := map[string]bool{}
	for _, c := range list.Clients {
		ids[c.ID] = true
	}
	return ids
}

// TestSealedHostChangesNoByte runs every flow at a sealed host through ahp-connect.
// Client and host must receive each other's messages byte for byte.
func TestSealedHostChangesNoByte(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, f := range readFlows(t) {
		t.Run(f.name, func(t *testing.T) {
			host := upstream(t, dir)
			h := startSealed(t, host.url, nil)
			h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
			got := play(t, f, h.throughConnect(h.relays), host.vars(f.name, 0))
			wantAsHostSent(t, h.Tap, got)
		})
	}
}

// wantRefused connects through ahp-connect. The connection must end with the code and
// the reason.
func (h *sealedHost) wantRefused(relays *connect.Relays, code ahp.CloseCode, reason string) {
	h.t.Helper()
	url, token := h.serve(relays)
	ctx, cancel := context.WithTimeout(h.t.Context(), stepTime)
	defer cancel()
	c, err := refclient.Dial(ctx, url, refclient.Options{Token: token})
	if err != nil {
		h.t.Fatal(err)
	}
	defer c.Close()
	select {
	case <-c.Done():
	case <-ctx.Done():
		h.t.Fatal("the refused connection is open; want it closed")
	}
	if got, text := c.CloseStatus(); got != int(code) || !strings.Contains(text, reason) {
		h.t.Errorf("the connection was closed with %d %q; want %d %q", got, text, code, reason)
	}
}

// TestSealedHostRefusesOthers connects to a sealed host without a pairing: without
// sealing, with an unknown device, and as a canvas's stream. The host-agent refuses
// each connection.
func TestSealedHostRefusesOthers(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	h.wantRefused(h.relays, ahp.CloseForbidden, "this host is sealed")

	known := h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	home, relays := h.newHome(nil)
	device, err := sealed.NewDevice()
	if err != nil {
		t.Fatal(err)
	}
	stranger := *known
	stranger.Device = device
	if err := home.SavePairing(&stranger); err != nil {
		t.Fatal(err)
	}
	h.wantRefused(relays, ahp.CloseTokenEnded, "does not know this device")

	// ahp-connect opens no connection if the host's key is not the stored key.
	other, err := sealed.NewSecret()
	if err != nil {
		t.Fatal(err)
	}
	swapped := *known
	swapped.Key = other.Public()
	if err := home.SavePairing(&swapped); err != nil {
		t.Fatal(err)
	}
	h.wantRefused(relays, ahp.CloseBadMessage, "does not accept the sealed handshake")
	if conns := len(h.Tap.Conns()); conns != 0 {
		t.Errorf("%d refused connections reached the host; want 0", conns)
	}
}

// TestSealedIsListed checks that the relay's API lists a sealed host's key, also while
// the host is away, and lists no key for an unsealed host.
func TestSealedIsListed(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	open := startStack(t, stack.Config{Upstream: server.URL()})
	want := func(s *stack.Stack, is bool) {
		t.Helper()
		if info, err := s.API(t.Context()); err != nil || info.Sealed != is {
			t.Errorf("listed as %+v, %v; want sealed: %v", info, err, is)
		}
	}
	want(h.Stack, true)
	want(open, false)
	if err := h.StopAgent(); err != nil {
		t.Fatal(err)
	}
	want(h.Stack, true)
}

// TestSealedIsRemembered replaces a sealed host-agent by an unsealed host-agent.
// ahp-connect remembers that the host was sealed, and opens no unsealed connection.
func TestSealedIsRemembered(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	s := startStack(t, stack.Config{Upstream: server.URL()})
	token, err := s.Token(nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.home.Dir, "token2")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := h.home.Pairing(h.Relay.URL(), stack.Host)
	if err != nil {
		t.Fatal(err)
	}
	p.Relay = s.Relay.URL()
	if err := h.home.SavePairing(p); err != nil {
		t.Fatal(err)
	}
	relays := connect.NewRelays(connect.NewRelay(s.Relay.URL(), connect.FileTokens(file))).Seal(h.home)
	h.wantRefused(relays, ahp.CloseForbidden, "this host is not sealed")

	// After ahp-connect has forgotten the host's key, it still opens no unsealed
	// connection.
	if err := h.home.Unpair(s.Relay.URL(), stack.Host, false); err != nil {
		t.Fatal(err)
	}
	h.wantRefused(relays, ahp.CloseForbidden, "run ahp-connect pair")
	if conns := len(s.Tap.Conns()); conns != 0 {
		t.Errorf("%d unsealed connections reached the host; want 0", conns)
	}
	if err := h.home.Unpair(s.Relay.URL(), stack.Host, true); err != nil {
		t.Fatal(err)
	}
	url, local := h.serve(relays)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	c, err := refclient.Dial(ctx, url, refclient.Options{Token: local})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: "one", ProtocolVersions: []string{"0.9.0"}}); err != nil {
		t.Errorf("initialize after the host was forgotten: %v; want no error", err)
	}
}

// TestPairingCodesAreUsedOnce pairs with wrong codes, a used code, and after too many
// attempts. Each attempt fails. A new code works.
func TestPairingCodesAreUsedOnce(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	try := func(code sealed.Code) error {
		_, err := h.relays.All()[0].Pair(t.Context(), h.home, connect.PairConfig{Host: stack.Host, Code: code, Pending: func(*connect.Pairing) { t.Error("a wrong code is proved; want an error") }})
		return err
	}
	const refused = "the code is wrong, used or too old"
	if err := try(sealed.NewCode()); err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("pairing with a wrong code: %v; want that the code is wrong", err)
	}
	shown := h.code("owner", auth.AccessAdmin)
	right, err := sealed.ParseCode(shown.Code)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		if err := try(sealed.NewCode()); err == nil || !strings.Contains(err.Error(), refused) {
			t.Errorf("a pairing with a wrong code: %v; want a refusal", err)
		}
	}
	if err := try(right); err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("a pairing with the right code after five wrong ones: %v; want a refusal", err)
	}
	h.pair(h.home, h.relays, "owner", auth.AccessAdmin) // a new code works

	// The host refuses a device during pairing. The code cannot be used again.
	shown = h.code("bob", auth.AccessTalk)
	if right, err = sealed.ParseCode(shown.Code); err != nil {
		t.Fatal(err)
	}
	home, relays := h.newHome(nil)
	_, err = relays.All()[0].Pair(t.Context(), home, connect.PairConfig{Host: stack.Host, Code: right, Pending: func(p *connect.Pairing) {
		if _, err := h.control.OrderDevices(t.Context(), hostagent.DeviceOrder{Do: "refuse", Device: p.Device.Identity().Fingerprint().String()}); err != nil {
			t.Error(err)
		}
	}})
	if err == nil || !strings.Contains(err.Error(), "refused this device") {
		t.Errorf("pairing after a refusal: %v; want that the host refused the device", err)
	}
	if p, err := home.Pairing(h.Relay.URL(), stack.Host); p != nil || err != nil {
		t.Errorf("after the refusal, the device has the pairing %v, %v; want none", p, err)
	}
	if err := try(right); err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("a pairing with a used code: %v; want a refusal", err)
	}
}

// TestSealedLevelsComeFromTheHost pairs two devices: one with a level at the host below
// the level of its relay token, one with a level above. The level at the host counts
// for both.
func TestSealedLevelsComeFromTheHost(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	for _, c := range []struct {
		relay, host auth.Access
		creates     bool
	}{
		{auth.AccessWrite, auth.AccessRead, false},
		{auth.AccessRead, auth.AccessWrite, true},
	} {
		home, relays := h.newHome(func(cl *auth.Client) { cl.Access = c.relay })
		h.pair(home, relays, "ada", c.host)
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		client, err := h.throughConnect(relays)(ctx, refclient.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Initialize(ctx, refclient.InitializeParams{ClientID: "level-" + string(c.host), ProtocolVersions: []string{"0.9.0"}}); err != nil {
			t.Fatal(err)
		}
		_, err = client.Call(ctx, "createSession", map[string]any{"channel": "demo:/" + string(c.host), "provider": "demo"})
		if (err == nil) != c.creates {
			t.Errorf("relay token %s, device %s: createSession = %v; want success only if the device's level permits it", c.relay, c.host, err)
		}
		_ = client.Close()
		cancel()
	}
}

// TestRemovedDeviceIsDisconnected removes a device from a distance. The device's
// connection ends. A new host-agent does not admit the device either.
func TestRemovedDeviceIsDisconnected(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	home, relays := h.newHome(nil)
	p := h.pair(home, relays, "bob", auth.AccessTalk)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	client, err := h.throughConnect(relays)(ctx, refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	bob := p.Device.Identity().Fingerprint().String()
	if _, err := relays.All()[0].Devices(ctx, stack.Host, bob); err == nil || !strings.Contains(err.Error(), "level own") {
		t.Errorf("Devices by a device with the level talk: %v; want an error about the level own", err)
	}
	list, err := h.relays.All()[0].Devices(ctx, stack.Host, "")
	if err != nil || len(list) != 2 {
		t.Fatalf("the owner sees the devices %+v, %v; want 2", list, err)
	}
	if list, err = h.relays.All()[0].Devices(ctx, stack.Host, bob); err != nil || len(list) != 1 {
		t.Fatalf("after the removal, the owner sees the devices %+v, %v; want 1", list, err)
	}
	removed := time.Now() // the host-agent has acknowledged the removal
	select {
	case <-client.Done():
	case <-ctx.Done():
		t.Fatal("the removed device's connection is open; want it closed")
	}
	t.Logf("the connection ended %v after the removal", time.Since(removed)) // without the removal, it stays open
	if code, reason := client.CloseStatus(); code != int(ahp.CloseTokenEnded) || !strings.Contains(reason, "removed") {
		t.Errorf("the connection ended with %d %q; want CloseTokenEnded, removed", code, reason)
	}
	h.wantRefused(relays, ahp.CloseTokenEnded, "removed")
	if err := h.StopAgent(); err != nil {
		t.Fatal(err)
	}
	if err := h.StartAgent(); err != nil {
		t.Fatal(err)
	}
	if err := h.AwaitState(ctx, "online"); err != nil {
		t.Fatal(err)
	}
	h.wantRefused(relays, ahp.CloseTokenEnded, "removed")
	if list, err = h.relays.All()[0].Devices(ctx, stack.Host, ""); err != nil || len(list) != 1 {
		t.Errorf("after a restart, the owner sees the devices %+v, %v; want 1", list, err)
	}
}

// admits lets the owner's device admit a new device with the grant. It returns an
// ahp-connect with the new device.
func (h *sealedHost) admits(owner *connect.Pairing, grant sealed.Grant) *connect.Relays {
	h.t.Helper()
	device, err := sealed.NewDevice()
	if err != nil {
		h.t.Fatal(err)
	}
	grant.Device, grant.From, grant.End, grant.Serial = device.Identity(), time.Now(), time.Now().Add(time.Hour), sealed.Fingerprint{1}.String()
	text, err := owner.Device.SignGrant(owner.Key, grant)
	if err != nil {
		h.t.Fatal(err)
	}
	home, relays := h.newHome(nil)
	if err := home.SavePairing(&connect.Pairing{Relay: owner.Relay, Host: owner.Host, Key: owner.Key, Device: device, Grants: []string{text}}); err != nil {
		h.t.Fatal(err)
	}
	return relays
}

// TestMatrixHoldsSealed sends the messages of TestMatrixHoldsThroughTheRelay at a
// sealed host. Each device has a grant instead of a token. A grant permits all methods
// of its level.
func TestMatrixHoldsSealed(t *testing.T) {
	t.Parallel()
	p := newScriptedHost(t)
	h := startSealed(t, p.server.URL(), nil)
	owner := h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	columns := 0
	runMatrix(t, p, func(t *testing.T, allow auth.Client) *refclient.Client {
		if len(allow.Methods) > 0 || allow.Reverse {
			return nil
		}
		columns++
		ctx, cancel := context.WithTimeout(t.Context(), stepTime)
		defer cancel()
		relays := h.admits(owner, sealed.Grant{Subject: "owner", Level: allow.Access, Channels: slices.Sorted(slices.Values(allow.Channels))})
		c, err := h.throughConnect(relays)(ctx, refclient.Options{Unanswered: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Abort() })
		return c
	})
	if columns != 7 {
		t.Errorf("%d columns ran; want five levels, and a channel from both sides", columns)
	}
}

// TestSealedClientIDTheft sends the messages of TestClientIDTheft at a sealed host.
// There the host-agent alone sees clientIds.
func TestSealedClientIDTheft(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	owner := h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	dialAs := func(subject string) func() *refclient.Client {
		dial := h.throughConnect(h.admits(owner, sealed.Grant{Subject: subject, Level: auth.AccessWrite}))
		return func() *refclient.Client {
			ctx, cancel := context.WithTimeout(t.Context(), stepTime)
			defer cancel()
			c, err := dial(ctx, refclient.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Abort() })
			return c
		}
	}
	ada, bob := dialAs("ada"), dialAs("bob")
	first, id := ada(), unique("c")
	if code := codeOf(t, first, "initialize", greeting("initialize", id)); code != 0 {
		t.Fatalf("ada's initialize: error code %d; want 0", code)
	}
	for _, method := range []string{"initialize", "reconnect"} {
		wantSentAway(t, "while the owner is there", bob(), method, id)
	}
	_ = first.Close()
	wantSentAway(t, "when the owner is away", bob(), "reconnect", id)
	if code := codeOf(t, ada(), "reconnect", greeting("reconnect", id)); code != 0 {
		t.Errorf("the owner's reconnect: error code %d; want none", code)
	}
}

// TestSealedClientWaitsForItsHost connects while the host is absent. ahp-connect holds
// the request initialize until the host returns, and answers pings, as a relay does for
// unsealed hosts.
func TestSealedClientWaitsForItsHost(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	if err := h.StopAgent(); err != nil {
		t.Fatal(err)
	}
	url, token := h.serve(h.relays)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	c, err := refclient.Dial(ctx, url, refclient.Options{Token: token})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	greeted := make(chan error, 1)
	go func() {
		_, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: "one", ProtocolVersions: []string{"0.9.0"}})
		greeted <- err
	}()
	if _, err := c.Call(ctx, "ping", map[string]any{"channel": "ahp-root://"}); err != nil {
		t.Errorf("ping while the host is unreachable: %v; want an answer", err)
	}
	select {
	case err := <-greeted:
		t.Fatalf("initialize is answered before the host is online: %v; want it to wait", err)
	default:
	}
	if err := h.StartAgent(); err != nil {
		t.Fatal(err)
	}
	if err := <-greeted; err != nil {
		t.Errorf("initialize, once the host is online: %v; want no error", err)
	}
}

// TestSealedGrantsForChannelsManageNoDevices admits a device with the level own for one
// channel only. The device can neither list nor remove the host's devices.
func TestSealedGrantsForChannelsManageNoDevices(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	owner := h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	for _, c := range []struct {
		channels []string
		manages  bool
	}{{nil, true}, {[]string{"demo:/one"}, false}} {
		relays := h.admits(owner, sealed.Grant{Subject: "owner", Level: auth.AccessAdmin, Channels: c.channels})
		list, err := relays.All()[0].Devices(t.Context(), stack.Host, "")
		if manages := err == nil && len(list) == 1; manages != c.manages {
			t.Errorf("a grant of own for the channels %q sees the devices %+v, %v; want them only without a limit", c.channels, list, err)
		}
	}
}
