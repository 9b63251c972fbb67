package main

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"ahprelay/gateway"
	"ahprelay/gateway/notify"
)

// notifyFlags say how people are told while they look at nothing.
type notifyFlags struct {
	NotifyContact  string   `help:"Whom push services of browsers may ask about this relay: an address of mail, or https://… Default: --public-url." placeholder:"ADDRESS"`
	NotifySMTP     string   `help:"Mail server for notifications, as smtp://user@host:587 (STARTTLS) or smtps://user@host:465. Without it, none go by mail." placeholder:"URL" name:"notify-smtp"`
	NotifySMTPFile string   `help:"File with the password at the mail server." type:"path" placeholder:"FILE" name:"notify-smtp-password-file"`
	NotifyMailFrom string   `help:"From whom they come." placeholder:"ADDRESS" name:"notify-mail-from"`
	NotifyPrivate  []string `help:"Addresses that are not on the public Internet, and may be ways of notification all the same: 10.1.2.3 or 10.0.0.0/8. Whoever has a token can have the relay send there." placeholder:"CIDR" name:"notify-private"`
	NotifyWays     string   `help:"File with ways of tenants, a JSON array: [{\"kind\":\"slack\",\"url\":\"https://…\",\"kinds\":[\"approval\",\"failed\"],\"hosts\":[\"ci-*\"]}]. The same at all relays." type:"path" placeholder:"FILE" name:"notify-ways"`
}

func (f *notifyFlags) config() (cfg gateway.NotifyConfig, err error) {
	cfg.Contact = f.NotifyContact
	if cfg.Private, err = prefixes("--notify-private", f.NotifyPrivate); err != nil {
		return cfg, err
	}
	if f.NotifyWays != "" {
		data, err := os.ReadFile(f.NotifyWays)
		if err == nil {
			cfg.Ways, err = notify.ReadTenantWays(data)
		}
		if err != nil {
			return cfg, fmt.Errorf("--notify-ways %s: %w", f.NotifyWays, err)
		}
	}
	if f.NotifySMTP == "" {
		return cfg, nil
	}
	if f.NotifyMailFrom == "" {
		return cfg, errors.New("--notify-smtp: add --notify-mail-from, from whom mail comes")
	}
	server := f.NotifySMTP
	if f.NotifySMTPFile != "" {
		password, err := os.ReadFile(f.NotifySMTPFile)
		if err != nil {
			return cfg, err
		}
		u, err := url.Parse(server)
		if err != nil || u.User == nil {
			return cfg, errors.New("--notify-smtp: want smtp://user@host:587, for the password of --notify-smtp-password-file")
		}
		u.User = url.UserPassword(u.User.Username(), strings.TrimSpace(string(password)))
		server = u.String()
	}
	cfg.Mail = &notify.MailConfig{URL: server, From: f.NotifyMailFrom}
	return cfg, cfg.Mail.Check()
}
