package gateway

import (
	"cmp"
	"fmt"
	"net/mail"
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
	Contact string                // the operator's contact for push services: a mail address or an https URL; default: the public URL if it is https, or else relay@localhost
	Mail    *notify.MailConfig    // default: no mail
	Private []netip.Prefix        // private addresses allowed as targets
	Ways    []notify.TenantTarget // targets of tenants
}

// check returns an error for an invalid setting. Push services refuse other contacts (RFC 8292, section 2.1).
func (c *NotifyConfig) check() error {
	if a, err := mail.ParseAddress(c.Contact); c.Contact != "" && !strings.HasPrefix(c.Contact, "https://") && (err != nil || a.Address != c.Contact) {
		return fmt.Errorf("--notify-contact %q: want a mail address such as admin@example.com, or https://…", c.Contact)
	}
	if c.Mail == nil {
		return nil
	}
	return c.Mail.Check()
}

// contact returns Contact or its default for a relay with the given public URL.
func (c *NotifyConfig) contact(public string) string {
	if !strings.HasPrefix(public, "https://") {
		public = ""
	}
	return cmp.Or(c.Contact, public, "relay@localhost")
}

// startNotify starts the notification service, and the keepers of last states and waiting
// items. It connects host-agents to the server's board of events.
func (r *Relay) startNotify(cfg *RelayConfig, server *Server) (err error) {
	r.startKeeper(cfg, server)
	if r.exchange, err = notify.StartExchange(notify.ExchangeConfig{
		Board: server.board, Conn: r.conn, Tenants: r.tenants, Registry: r.registry, Log: r.log,
	}); err != nil {
		return err
	}
	public := cfg.Gateway.PublicURL
	if r.teller, err = notify.Start(notify.Config{
		Board: server.board, Records: r.records, Instance: cfg.Gateway.Instance, HasEnded: r.registry.HasEnded, Bus: r.conn, Log: r.log, Follow: r.exchange.Follow,
		Standing: server.people.Standing, Capability: server.notify.Capability,
		PublicURL: public, Contact: cfg.Notify.contact(public), Mail: cfg.Notify.Mail, Private: cfg.Notify.Private,
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
