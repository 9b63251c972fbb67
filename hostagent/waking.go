package hostagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/broker"
	"ahprelay/broker/wake"
	"ahprelay/internal/fair"
	"ahprelay/internal/wol"
)

// Bounds of orders to wake machines.
const (
	ordersRoom = 16          // most unread orders; a further order is dropped, and the relay sends it again
	wakeEvery  = time.Second // shortest time between two orders for the same host, after the first wakeAtOnce
	wakeAtOnce = 4
	mostKeys   = 16 // most relays' keys whose last order is remembered
)

// Waking configures which machines a host-agent wakes, and which host-agents may wake its own.
type Waking struct {
	For []string // hosts whose machines the host-agent may wake; they are on networks of this machine
	By  []string // hosts whose host-agents may wake this machine

	// Send and Addresses are replaced in tests. Defaults: [wol.Send] and [wol.Addresses].
	Send      func(net.HardwareAddr) error
	Addresses func(most int) []string
}

// check rejects invalid host names.
func (c *Waking) check() error {
	for flag, list := range map[string][]string{"--wake-for": c.For, "--wake-by": c.By} {
		if _, err := wake.Names(strings.Join(list, ",")); err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	return nil
}

// terms returns what relays must know to have machines woken. The addresses are read at
// each call, because a machine may change networks.
func (c *Waking) terms() wake.Terms {
	terms := wake.Terms{By: strings.Join(c.By, ","), For: strings.Join(c.For, ",")}
	if terms.By == "" {
		return terms
	}
	addresses := c.Addresses
	if addresses == nil {
		addresses = wol.Addresses
	}
	terms.Addresses = strings.Join(addresses(wake.MostAddresses), ",")
	return terms
}

// A waker carries out relays' orders to wake the machines of other hosts on this network.
// Only one goroutine uses a waker.
type waker struct {
	agent *Agent
	rates *fair.Buckets    // limits orders, by host
	last  map[string]int64 // time of the last order, by the key of the relay that signed it
	send  func(net.HardwareAddr) error
}

func newWaker(a *Agent) *waker {
	w := &waker{agent: a, rates: fair.NewBuckets(wakeEvery, wakeAtOnce), last: map[string]int64{}, send: a.cfg.Waking.Send}
	if w.send == nil {
		w.send = wol.Send
	}
	return w
}

// run carries out orders until ctx ends.
func (w *waker) run(ctx context.Context, conn *broker.Conn) {
	if len(w.agent.cfg.Waking.For) == 0 {
		return
	}
	end, err := conn.Hear(wake.Subject(w.agent.tenant, w.agent.host, w.agent.instance), ordersRoom, func(data []byte) {
		if err := w.take(data); err != nil {
			w.agent.cfg.Log.Warn("order to wake a machine refused", "error", err)
		}
	})
	if err != nil {
		w.agent.cfg.Log.Error("orders to wake machines unavailable", "error", err)
		return
	}
	defer end()
	<-ctx.Done()
}

// take checks an order and carries it out.
func (w *waker) take(data []byte) error {
	o, key, err := w.read(data)
	switch {
	case err != nil:
		return err
	case o.At <= w.last[key]:
		return errors.New("the order is older than an earlier one")
	case !slices.Contains(w.agent.cfg.Waking.For, o.Target):
		return fmt.Errorf("--wake-for does not name the host %q", o.Target)
	case !w.rates.Allow(o.Target):
		return errors.New("too many orders")
	}
	if len(w.last) >= mostKeys { // relays' keys change seldom
		clear(w.last)
	}
	w.last[key] = o.At
	for _, text := range o.Addresses {
		at, _ := net.ParseMAC(text) // checked by ReadOrder
		if err := w.send(at); err != nil {
			return fmt.Errorf("magic packet for %s: %w", o.Target, err)
		}
	}
	w.agent.cfg.Log.Info(auditMessage, "event", "wake", "host", o.Target, "subject", o.Subject, "token", o.Token)
	return nil
}

// read verifies that a trusted relay has signed an order for this host-agent, and decodes
// the order.
func (w *waker) read(data []byte) (o wake.Order, key string, err error) {
	var signed auth.Signed
	if len(data) > wake.MaxOrder || json.Unmarshal(data, &signed) != nil {
		return o, "", errors.New("malformed or too long")
	}
	if err := w.agent.verify(&signed, auth.WakeOrder); err != nil {
		return o, "", err
	}
	if o, err = wake.ReadOrder(signed.Body); err != nil {
		return o, "", err
	}
	if o.Tenant != w.agent.tenant || o.Host != w.agent.host || o.Agent != w.agent.instance {
		return o, "", errors.New("addressed to a different host-agent")
	}
	return o, string(signed.Key), nil
}
