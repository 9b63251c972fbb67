package wake

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"ahprelay/ahp"
	"ahprelay/broker/link"
)

const (
	MostNames     = 8
	MostAddresses = 8
	MaxOrder      = 8 << 10 // bytes of a signed Order

	maxList = 512 // bytes of a list in Terms
)

// Terms are what a host-agent permits and offers for waking. Lists are comma-separated texts,
// so Terms can be compared with ==.
type Terms struct {
	By        string `json:"by,omitempty"`        // hosts which may wake this host's machine
	Addresses string `json:"addresses,omitempty"` // hardware addresses of this machine; only with By
	For       string `json:"for,omitempty"`       // hosts whose machines this host-agent can wake
}

// Check rejects malformed terms.
func (t Terms) Check() error {
	for name, list := range map[string]string{"wake.by": t.By, "wake.for": t.For} {
		if _, err := Names(list); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if t.Addresses == "" {
		return nil
	}
	if err := checkAddresses(strings.Split(t.Addresses, ",")); err != nil {
		return fmt.Errorf("wake.addresses: %w", err)
	}
	return nil
}

// Names decodes a list of host names.
func Names(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	names := strings.Split(list, ",")
	if len(list) > maxList || len(names) > MostNames {
		return nil, fmt.Errorf("want at most %d names in %d bytes", MostNames, maxList)
	}
	for _, name := range names {
		if err := ahp.CheckName("host", name); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// Allows reports whether a host may, and can, wake this host's machine.
func (t Terms) Allows(host string) bool { return t.Addresses != "" && has(t.By, host) }

// Wakes reports whether this host-agent is to wake a host.
func (t Terms) Wakes(host string) bool { return has(t.For, host) }

func has(list, name string) bool {
	return slices.Contains(strings.Split(list, ","), name) && name != ""
}

func checkAddresses(list []string) error {
	if len(list) == 0 || len(list) > MostAddresses {
		return fmt.Errorf("%d addresses; want 1 to %d", len(list), MostAddresses)
	}
	for _, text := range list {
		if at, err := net.ParseMAC(text); err != nil || len(at) != 6 {
			return fmt.Errorf("%.40q is not a hardware address of 6 bytes", text)
		}
	}
	return nil
}

// An Order asks a host-agent to wake a machine. It is the body of an auth.Signed (auth.WakeOrder).
type Order struct {
	Tenant    string   `json:"tenant"`
	Host      string   `json:"host"`      // host whose host-agent sends the magic packet
	Agent     string   `json:"agent"`     // instance of its host-agent
	Target    string   `json:"target"`    // the sleeping host
	Addresses []string `json:"addresses"` // hardware addresses of its machine
	Subject   string   `json:"subject"`   // person that asked for it
	Token     string   `json:"token"`
	At        int64    `json:"at"` // time in µs by the relay's clock; rises with each order of the relay
}

// Subject returns the subject on which a host-agent receives orders.
func Subject(tenant, host, agent string) string {
	return link.HostPrefix(tenant, host) + "ctl.wake." + agent
}

// ReadOrder decodes and checks an Order.
func ReadOrder(body []byte) (o Order, err error) {
	if json.Unmarshal(body, &o) != nil {
		return o, errors.New("order: invalid JSON")
	}
	if err := ahp.CheckName("target", o.Target); err != nil {
		return o, err
	}
	if err := checkAddresses(o.Addresses); err != nil {
		return o, err
	}
	if o.At <= 0 {
		return o, errors.New("order without a time")
	}
	return o, nil
}
