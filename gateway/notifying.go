package gateway

import (
	"cmp"
	"context"
	"net/netip"
	"path/filepath"
	"strings"

	"ahprelay/auth"
	"ahprelay/gateway/notify"
)

// Files in the data directory.
const (
	recordsName = "records.json" // what relays share and has no end: what people have set, and keys for push services

	// Those of relays that shared nothing.
	formerWaysName    = "notify.json"
	formerQueueName   = "notify.queue"
	formerPushKeyName = "notify-key.json"
)

// NotifyConfig says how people are told while they look at nothing.
type NotifyConfig struct {
	Contact string             // of the operator, for push services: an address of mail, or https://…; default: the relay's public URL
	Mail    *notify.MailConfig // default: none is sent
	Private []netip.Prefix     // addresses that are not public, and may be ways all the same
	Ways    []notify.TenantWay // of tenants
}

// startNotify has people told of what is on the server's board, and the board hear
// host-agents.
func (r *Relay) startNotify(ctx context.Context, cfg *RelayConfig, server *Server) (err error) {
	if cfg.Notify.Mail != nil {
		if err := cfg.Notify.Mail.Check(); err != nil {
			return err
		}
	}
	if r.exchange, err = notify.StartExchange(notify.ExchangeConfig{
		Board: server.board, Conn: r.conn, Tenants: r.tenants, Registry: r.registry, Log: r.log,
	}); err != nil {
		return err
	}
	file := func(name string) string { return filepath.Join(cfg.DataDir, name) }
	public := strings.TrimSuffix(cfg.Gateway.PublicURL, "/")
	if r.teller, err = notify.StartTeller(notify.TellerConfig{
		Board: server.board, Records: r.records, Instance: cfg.Gateway.Instance, HasEnded: r.registry.HasEnded, Bus: r.conn, Log: r.log, Follow: r.exchange.Follow,
		Standing: server.people.Standing, Capability: server.notify.Capability,
		PublicURL: public, Contact: cmp.Or(cfg.Notify.Contact, public, "relay@localhost"), Mail: cfg.Notify.Mail, Private: cfg.Notify.Private,
		Ways:   cfg.Notify.Ways,
		Former: notify.Former{Queue: file(formerQueueName), Ways: file(formerWaysName), Key: file(formerPushKeyName)},
	}); err != nil {
		return err
	}
	r.receiver = notify.StartReceiver(notify.ReceiverConfig{
		Board: server.board, Tenants: r.tenants, Registry: r.registry, Log: r.log, Keep: r.teller.Keep,
		Instance: cfg.Gateway.Instance,
		Sign:     func(body []byte) (key, signature []byte) { return r.keys.Sign(auth.AnswerRequest, body) },
	})
	server.notify.Start(r.teller, r.receiver.Answer, r.exchange.Follow)
	return nil
}

// stopNotify ends all that startNotify has begun.
func (r *Relay) stopNotify() {
	if r.receiver != nil {
		r.receiver.Close()
	}
	if r.teller != nil {
		r.teller.Close()
	}
	if r.exchange != nil {
		r.exchange.Close()
	}
}
