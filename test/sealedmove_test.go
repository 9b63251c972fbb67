package test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/test/faultproxy"
	"ahprelay/test/refclient"
	"ahprelay/test/stack"
)

// TestRestartIsInvisibleToSealedClients restarts the relay in order, twice. Meanwhile a
// sealed host sends 500 actions a second to three clients behind ahp-connect, and one
// client sends up to 2,000 messages a second. Two viewers of a link look on. All connections
// stay open. No message is lost, repeated or changed. The host sees a single connection for
// each client, and one for both viewers.
func TestRestartIsInvisibleToSealedClients(t *testing.T) {
	t.Parallel()
	_, server := newRefhost(t, nil)
	address, err := faultproxy.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	h := startSealed(t, server.URL(), func(cfg *stack.Config) { cfg.Relay.Listen = address })
	h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	vars := flowVars("demo", "00000000")
	const clients, actions = 3, 600
	all := joinAll(t, h.throughConnect(h.relays), clients, vars)
	say(t, all[0], vars["chat"], 1, "stream 20 2 100") // teaches the host-agent which clients share a chat
	awaitDeltas(t, all, 20)
	_, link := h.link(hostagent.DeviceOrder{Session: vars["session"]})
	look := h.throughConnect(h.followed(link))
	viewers := []*refclient.Client{h.dialed(look, "looker-1"), h.dialed(look, "looker-2")}
	for _, c := range viewers {
		watch(t, c, vars)
	}
	say(t, all[0], vars["chat"], 2, fmt.Sprintf("stream %d 2 512", actions))
	awaitDeltas(t, all, 100)

	stop := make(chan struct{})
	typed := make(chan int)
	go func() { // the pauses are short, so a restart often interrupts a message
		n := 0
		defer func() { typed <- n }()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := all[0].Dispatch(vars["chat"], map[string]any{"type": "chat/draftChanged", "n": n}); err != nil {
				<-all[0].Done()
				code, reason := all[0].CloseStatus()
				t.Errorf("message %d: %v (close %d %s); want it sent", n, err, code, reason)
				return
			}
			n++
			time.Sleep(time.Millisecond / 2)
		}
	}()
	for range 2 {
		if err := h.RestartRelay(t.Context()); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	n := <-typed
	if t.Failed() {
		return
	}
	awaitDeltas(t, all, 20+actions)
	awaitDeltas(t, viewers, actions)
	for _, c := range viewers {
		wantSameFrames(t, "a link's viewer", deltas(c), deltas(all[0])[20:])
	}
	for _, c := range all { // behind the rest
		if _, err := c.Call(t.Context(), "listSessions", map[string]any{"channel": "ahp-root://"}); err != nil {
			t.Fatal(err)
		}
	}
	conns := h.Tap.Conns()
	if want := clients + 2; len(conns) != want { // one tests whether the host shows the link's session
		t.Fatalf("the host has seen %d connections; want %d", len(conns), want)
	}
	for i, c := range all {
		wantAllOf(t, fmt.Sprintf("viewer-%d", i), c, conns[i])
	}
	seen := 0
	for _, frame := range conns[0].ToHost() {
		if bytes.Contains(frame, []byte("chat/draftChanged")) {
			if !bytes.Contains(frame, fmt.Appendf(nil, `"n":%d,`, seen)) {
				t.Fatalf("the host received %s; want message %d", frame, seen)
			}
			seen++
		}
	}
	if seen != n {
		t.Errorf("the host received %d messages; want the %d that the client sent", seen, n)
	}
}
