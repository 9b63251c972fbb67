package test

import (
	"fmt"
	"testing"

	"ahprelay/auth"
	"ahprelay/hostagent"
	"ahprelay/test/stack"
)

// deltasTo lets a host send actions with 1 KB each to clients of one chat. It waits
// until all have arrived, and returns how many bytes the host-agent sent for them.
func deltasTo(t *testing.T, dial dialer, meter *stack.Meter, tap *stack.Tap, clients, actions int) (bytes int64) {
	t.Helper()
	vars := flowVars("demo", "00000000")
	all := joinAll(t, dial, clients, vars)
	say(t, all[0], vars["chat"], 1, "stream 20 2 100") // teaches the host-agent which clients share a chat
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

// TestSealedBytesCrossOnce sends actions with 1 KB each to 50 clients, first of an
// unsealed host, then of a sealed host through ahp-connect. The sealed host-agent sends
// each action once, with a tag for each client, and at most twice the bytes of the
// unsealed host-agent. All clients receive every action.
func TestSealedBytesCrossOnce(t *testing.T) {
	t.Parallel()
	const clients, actions = 50, 80
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
