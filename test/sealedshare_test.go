package test

import (
	"fmt"
	"testing"

	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/test/stack"
)

// deltasTo returns how many bytes the host-agent sends for actions of 1 KB to clients.
func deltasTo(t *testing.T, dial dialer, meter *stack.Meter, tap *stack.Tap, clients, actions int) (bytes int64) {
	t.Helper()
	vars := flowVars("demo", "00000000")
	all := joinAll(t, dial, clients, vars)
	say(t, all[0], vars["chat"], 1, "stream 20 2 100") // teaches the host-agent which clients share
	awaitDeltas(t, all, 20)
	before := meter.Bytes()
	say(t, all[0], vars["chat"], 2, fmt.Sprintf("stream %d 2 %d", actions, 1024-deltaSize(t, all[0])))
	awaitDeltas(t, all, 20+actions)
	bytes = int64(meter.Bytes() - before)
	for i, c := range all {
		wantAllOf(t, fmt.Sprintf("viewer-%d", i), c, tap.Conns()[i])
	}
	return bytes
}

// TestSealedBytesCrossOnce sends actions of 1 KB to 50 clients, at a sealed host through
// ahp-connect, and at a host that is not sealed. The sealed host sends one copy and a tag for
// each client: at most twice as much. All clients receive the host's bytes.
func TestSealedBytesCrossOnce(t *testing.T) {
	t.Parallel()
	const clients, actions = 50, 200
	_, server := newRefhost(t, nil)
	s := &stack.Stack{}
	plain := meteredStack(t, server.URL(), &s)
	unsealed := deltasTo(t, throughRelay(t, s), plain, s.Tap, clients, actions)

	_, server = newRefhost(t, nil)
	var meter *stack.Meter
	h := startSealed(t, server.URL(), func(cfg *stack.Config) { cfg.NATSOverTCP = true }, func(relay *stack.Stack, cfg *hostagent.Config) (err error) {
		meter, err = stack.NewMeter(relay.Relay.NATSAddr().String())
		cfg.NATSURLs = []string{"nats://" + meter.Addr()}
		return err
	})
	t.Cleanup(meter.Close)
	h.pair(h.home, h.relays, "owner", auth.AccessAdmin)
	sealed := deltasTo(t, h.throughConnect(h.relays), meter, h.Tap, clients, actions)
	t.Logf("%d clients × %d actions of 1 KB: %d bytes sealed, %d unsealed", clients, actions, sealed, unsealed)
	if sealed > 2*unsealed {
		t.Errorf("a sealed host sends %d bytes; want at most twice %d", sealed, unsealed)
	}
}
