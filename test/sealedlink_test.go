package test

import (
	"context"
	"encoding/base64"
	"fmt"
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

// link makes a link at the host, as host-agent share does. It returns the link as made
// and as parsed.
func (h *sealedHost) link(order hostagent.DeviceOrder) (hostagent.SealedLink, *sealed.ShareLink) {
	h.t.Helper()
	made, err := h.control.Link(h.t.Context(), order)
	if err != nil {
		h.t.Fatal(err)
	}
	key, err := base64.RawURLEncoding.DecodeString(made.HostKey)
	if err != nil {
		h.t.Fatal(err)
	}
	device, err := sealed.ReadLinkKeys(made.Keys)
	if err != nil {
		h.t.Fatal(err)
	}
	text := sealed.ShareLink{Relay: h.url, Host: made.Host, Session: order.Session, Key: sealed.Key(key), Device: device}.String()
	l, err := sealed.ParseShareLink(text)
	if err != nil {
		h.t.Fatal(err)
	}
	return made, &l
}

// followed returns an ahp-connect that has followed a link. Its relay token is a token
// for the relay's own link, which names no session of the host.
func (h *sealedHost) followed(l *sealed.ShareLink) *connect.Relays {
	h.t.Helper()
	home, relays := h.newHome(func(c *auth.Client) { c.Access, c.Channels = auth.AccessRead, []string{"sealed:/link"} })
	p, err := relays.All()[0].Follow(home, l)
	if err != nil || !p.Link {
		h.t.Fatalf("Follow = %+v, %v; want a link's pairing", p, err)
	}
	return relays
}

// dialed connects a client with a dialer, and sends initialize.
func (h *sealedHost) dialed(dial dialer, id string) *refclient.Client {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), stepTime)
	defer cancel()
	c, err := dial(ctx, refclient.Options{})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Abort() })
	if _, err := c.Initialize(ctx, refclient.InitializeParams{ClientID: id, ProtocolVersions: []string{"0.9.0"}}); err != nil {
		h.t.Fatal(err)
	}
	return c
}

// sessions creates sessions with these names at the host.
func (h *sealedHost) sessions(owner *refclient.Client, names ...string) {
	h.t.Helper()
	for _, name := range names {
		if _, err := owner.Call(h.t.Context(), "createSession", map[string]any{"channel": name, "provider": "demo"}); err != nil {
			h.t.Fatal(err)
		}
	}
}

// TestSealedLinkShowsOneSession follows a link to a sealed host. The viewers see the
// link's session and nothing else, cannot change anything, and cannot send requests to
// the host-agent. The link's limit bounds the number of viewers. The end of the link
// ends their connections.
func TestSealedLinkShowsOneSession(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	owner := h.dialed(h.throughConnect(h.relays), "owner")
	const shown, hidden = "demo:/shown", "demo:/hidden"
	h.sessions(owner, shown, hidden)
	made, l := h.link(hostagent.DeviceOrder{Session: shown, People: 2})
	relays := h.followed(l)
	dial := h.throughConnect(relays)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	viewers := []*refclient.Client{h.dialed(dial, "viewer-1"), h.dialed(dial, "viewer-2")}
	for _, c := range viewers {
		if _, err := c.Subscribe(ctx, shown); err != nil {
			t.Errorf("subscribe by a viewer to the link's session: %v; want no error", err)
		}
		if _, err := c.Subscribe(ctx, hidden); err == nil {
			t.Error("a viewer subscribes to a different session; want an error")
		}
		if list, err := c.Call(ctx, "listSessions", map[string]any{"channel": "ahp-root://"}); err != nil || strings.Contains(string(list), hidden) || !strings.Contains(string(list), shown) {
			t.Errorf("a viewer's list is %s, %v; want %s only", list, err, shown)
		}
		if _, err := c.Call(ctx, "createSession", map[string]any{"channel": "demo:/new", "provider": "demo"}); err == nil {
			t.Error("a viewer creates a session; want an error")
		}
	}
	if _, err := relays.All()[0].Dial(ctx, stack.Host, ""); err == nil || !strings.Contains(err.Error(), "as many viewers") {
		t.Errorf("a viewer above the link's limit: %v; want as many viewers", err)
	}
	p := &connect.Pairing{Relay: h.url, Host: stack.Host, Key: l.Key, Device: l.Device}
	if err := viewers[1].Close(); err != nil {
		t.Fatal(err)
	}
	h.awaitConnected(2) // the owner and a viewer
	for _, answer := range h.asks(p, map[string]any{"id": 1, "do": "devices"}, map[string]any{"id": 2, "do": "push", "way": "w"}, map[string]any{"id": 3, "do": "remove", "device": made.ID}) {
		if text, _ := answer["error"].(string); !strings.Contains(text, "for its session only") {
			t.Errorf("the host-agent answers a viewer with %v; want for its session only", answer)
		}
	}

	if _, err := h.control.OrderDevices(ctx, hostagent.DeviceOrder{Do: "remove", Device: made.ID}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-viewers[0].Done():
	case <-ctx.Done():
		t.Fatal("a viewer is connected after the link's end; want it closed")
	}
	h.wantRefused(relays, ahp.CloseTokenEnded, "removed")
	select {
	case <-owner.Done():
		t.Error("the owner's connection has ended with the link; want it open")
	default:
	}
}

// awaitConnected waits until the host-agent lists n clients.
func (h *sealedHost) awaitConnected(n int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), stepTime)
	defer cancel()
	for len(h.connected()) != n {
		select {
		case <-ctx.Done():
			h.t.Fatalf("%d clients are connected; want %d", len(h.connected()), n)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// TestSealedLinkEndsInTime lets a link's time run out. The viewers' connections end,
// whatever they do. A device that was paired before keeps its own access.
func TestSealedLinkEndsInTime(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	own := h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	owner := h.dialed(h.throughConnect(h.relays), "owner")
	h.sessions(owner, "demo:/1")
	const life = 4 * time.Second
	began := time.Now()
	_, l := h.link(hostagent.DeviceOrder{Session: "demo:/1", Seconds: int(life.Seconds())})
	if p, err := h.relays.All()[0].Follow(h.home, l); err != nil || p.Link || p.Device.Identity() != own.Device.Identity() {
		t.Errorf("a paired machine follows a link as %+v, %v; want its own keys", p, err)
	}
	relays := h.followed(l)
	ctx, cancel := context.WithTimeout(t.Context(), stepTime)
	defer cancel()
	viewer, err := h.throughConnect(relays)(ctx, refclient.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer viewer.Close()
	select {
	case <-viewer.Done():
	case <-ctx.Done():
		t.Fatal("a viewer is connected after the link's time; want it closed")
	}
	if took := time.Since(began); took < life {
		t.Errorf("the link ended after %v; want %v", took, life)
	}
	h.wantRefused(relays, ahp.CloseTokenEnded, "time at the host is over")

	for what, order := range map[string]hostagent.DeviceOrder{
		"no session":      {Session: "demo"},
		"many sessions":   {Session: "demo:/*"},
		"unknown session": {Session: "demo:/none"},
		"level own":       {Session: "demo:/1", Level: auth.AccessAdmin},
		"unknown level":   {Session: "demo:/1", Level: "all"},
		"no end":          {Session: "demo:/1", Seconds: 8 * 86400},
		"the past":        {Session: "demo:/1", Seconds: -1},
		"many people":     {Session: "demo:/1", People: 100_000},
	} {
		if made, err := h.control.Link(ctx, order); err == nil {
			t.Errorf("%s: %+v; want no link", what, made)
		}
	}
}

// subjects returns the subjects of the connected clients that begin with a text.
func (h *sealedHost) subjects(begin string) (all []string) {
	h.t.Helper()
	list, err := h.control.Clients(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	for _, c := range list.Clients {
		if strings.HasPrefix(c.Subject, begin) {
			all = append(all, c.Subject)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestViewersOfASealedLinkAreOneClientOfTheHost follows a link on two machines, each
// with three clients. The host sees one connection, and all clients receive its
// actions. Each machine has its own subject. The owner kicks one subject: only this
// machine's connections end.
func TestViewersOfASealedLinkAreOneClientOfTheHost(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	h := startSealed(t, server.URL(), nil)
	h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	vars := flowVars("demo", "00000000")
	owner := join(t, h.throughConnect(h.relays), "owner", vars)
	create(t, owner, vars)
	watch(t, owner, vars)
	_, l := h.link(hostagent.DeviceOrder{Session: vars["session"]})
	before := len(h.Tap.Conns())
	var machines [2][]*refclient.Client
	for i := range machines {
		dial := h.throughConnect(h.followed(l))
		for j := range 3 {
			c := join(t, dial, fmt.Sprintf("viewer-%d-%d", i, j), vars)
			watch(t, c, vars)
			machines[i] = append(machines[i], c)
		}
	}
	const actions = 50
	say(t, owner, vars["chat"], 1, fmt.Sprintf("stream %d 2 100", actions))
	awaitDeltas(t, append(slices.Concat(machines[0], machines[1]), owner), actions)
	for i, machine := range machines {
		for _, c := range machine {
			wantSameFrames(t, fmt.Sprint("viewer of machine ", i), deltas(c), deltas(owner))
		}
	}
	if n := len(h.Tap.Conns()) - before; n != 1 {
		t.Errorf("the host has %d connections for the viewers of a link; want 1", n)
	}
	subjects := h.subjects("link-")
	if len(subjects) != len(machines) {
		t.Fatalf("two machines have the subjects %v; want one each", subjects)
	}
	if ended, err := h.control.Kick(t.Context(), hostagent.Kick{Subject: subjects[0], For: time.Minute}); err != nil || ended != 3 {
		t.Errorf("%d connections of %s are ended, %v; want 3", ended, subjects[0], err)
	}
	h.awaitConnected(4)
	if left := h.subjects("link-"); len(left) != 1 || left[0] != subjects[1] {
		t.Errorf("%v are left; want %s, who has not been kicked", left, subjects[1])
	}
}
