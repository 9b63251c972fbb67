package gateway

import (
	"encoding/json"

	"ahprelay/auth"
	"ahprelay/broker/wake"
)

// orderWake asks a host-agent to wake a different host's machine.
func (s *Server) orderWake(o wake.Order) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	signed, err := json.Marshal(s.cfg.Keys.Sign(auth.WakeOrder, body))
	if err != nil {
		return err
	}
	return s.cfg.Bus.Publish(wake.Subject(o.Tenant, o.Host, o.Agent), signed)
}
