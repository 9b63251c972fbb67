package hostagent

import (
	"cmp"
	"encoding/json"
	"errors"
	"net/http"

	"ahprelay/auth"
	"ahprelay/internal/sealed"
)

// Devices lists the devices of a sealed host.
type Devices struct {
	Host    string           `json:"host"`
	Words   string           `json:"words"` // the words for the host's key, which people compare
	Devices []DeviceInfo     `json:"devices"`
	Waiting []PairingRequest `json:"waiting"` // pairings that wait for a person's decision
}

// A DeviceOrder changes the devices of a sealed host.
type DeviceOrder struct {
	Do      string      `json:"do"` // pair, confirm, refuse, remove or link
	Subject string      `json:"subject,omitempty"`
	Level   auth.Access `json:"level,omitempty"`
	Console string      `json:"console,omitempty"` // with "pair": the console's URL, instead of Sealing.Console
	Device  string      `json:"device,omitempty"`  // fingerprint, or a grant's serial to remove

	// With "link".
	Session string `json:"session,omitempty"` // URI of the session
	Seconds int    `json:"seconds,omitempty"` // how long the link is valid; 0 for an hour
	People  int    `json:"people,omitempty"`  // most connections at the same time; 0 for 64
}

// errNotSealed reports a request for devices at a host that is not sealed.
var errNotSealed = errors.New("this host is not sealed: start host-agent with --sealed")

func (s *seals) serveDevices(w http.ResponseWriter, _ *http.Request) {
	if s == nil {
		writeError(w, http.StatusConflict, errNotSealed)
		return
	}
	say(w, http.StatusOK, Devices{s.agent.host, s.fingerprint().Words(), s.devices(), s.requests()})
}

// newCode makes a pairing code. Its link leads to order.Console, or else to Sealing.Console, and
// names the agent's first relay.
func (s *seals) newCode(order DeviceOrder) (PairingCode, error) {
	cfg := &s.agent.cfg
	console := cmp.Or(order.Console, cfg.Sealed.Console)
	for _, relay := range cfg.Relays {
		if console == "" {
			break
		}
		if err := sealed.CheckConsole(console, relay); err != nil {
			return PairingCode{}, err
		}
	}
	return s.makeCode(order.Subject, order.Level, sealed.PairLink{Console: console, Relay: cfg.Relays[0], Host: s.agent.host})
}

func (s *seals) serveDeviceOrder(w http.ResponseWriter, r *http.Request) {
	var order DeviceOrder
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAnswer)).Decode(&order); err != nil {
		writeError(w, http.StatusBadRequest, errors.New("want JSON with do"))
		return
	}
	var answer any = struct{}{}
	err := errNotSealed
	switch {
	case s == nil:
	case order.Do == "pair":
		answer, err = s.newCode(order)
	case order.Do == "confirm", order.Do == "refuse":
		err = s.decide(order.Device, order.Do == "confirm")
	case order.Do == "remove":
		if err = s.removeDevice(order.Device, true); err == nil {
			s.endRemoved()
		}
	case order.Do == "link":
		answer, err = s.makeLink(r.Context(), order)
	default:
		err = errors.New("do: want pair, confirm, refuse, remove or link")
	}
	if err != nil {
		writeError(w, http.StatusConflict, err)
		return
	}
	say(w, http.StatusOK, answer)
}
