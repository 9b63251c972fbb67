package gateway

import (
	"cmp"
	"net/netip"
	"strings"

	"ahprelay/auth"
	"ahprelay/gateway/notify"
)

const (
	recordsName = "records.json" // permanent records shared by relays, such as notification settings
)

// NotifyConfig configures notifications.
type NotifyConfig struct {
	Contact string                // the operator's contact for push services: a mail address or an https URL; default: the public URL or, if unknown, relay@localhost
	Mail    *notify.MailConfig    // default: no mail
	Private []netip.Prefix        // private addresses allowed as targets
	Ways    []notify.TenantTarget // targets of tenants
}

// startNotify starts the notification service, and the keepers of last states and waiting
// items. It connects host-agents to the server's board of events.
func (r *Relay) startNotify(cfg *RelayConfig, server *Server) (err error) {
	r.startKeeper(cfg, server)
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
	public := strings.TrimSuffix(cfg.Gateway.PublicURL, "/")
	if r.teller, err = notify.Start(notify.Config{
		Board: server.board, Records: r.records, Instance: cfg.Gateway.Instance, HasEnded: r.registry.HasEnded, Bus: r.conn, Log: r.log, Follow: r.exchange.Follow,
		Standing: server.people.Standing, Capability: server.notify.Capability,
		PublicURL: public, Contact: cmp.Or(cfg.Notify.Contact, public, "relay@localhost"), Mail: cfg.Notify.Mail, Private: cfg.Notify.Private,
		Targets: cfg.Notify.Ways,
	}); err != nil {
		return err
	}
	r.receiver = notify.StartReceiver(notify.ReceiverConfig{
		Board: server.board, Tenants: r.tenants, Registry: r.registry, Log: r.log, Keep: r.teller.Keep, Lacks: r.exchange.AskAgain,
		Instance: cfg.Gateway.Instance,
		Sign:     func(body []byte) auth.Signed { return r.keys.Sign(auth.AnswerRequest, body) },
	})
	server.notify.Start(r.teller, server.unlessCutOff(r.receiver.Answer), r.exchange.Follow)
	return nil
}
