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

// notifyFlags configure notifications.
type notifyFlags struct {
	NotifyContact  string   `help:"This relay's contact for browsers' push services: an e-mail address, or https://… Default: --public-url, if it is https://." placeholder:"ADDRESS"`
	NotifySMTP     string   `help:"Mail server for notifications, as smtp://user@host:587 (STARTTLS) or smtps://user@host:465. Without it, e-mail is unavailable." placeholder:"URL" name:"notify-smtp"`
	NotifySMTPFile string   `help:"File with the mail server's password." type:"path" placeholder:"FILE" name:"notify-smtp-password-file" with:"notify-smtp"`
	NotifyMailFrom string   `help:"Sender address for notification mails." placeholder:"ADDRESS" name:"notify-mail-from" with:"notify-smtp"`
	NotifyPrivate  []string `help:"Private addresses that notification targets may use: 10.1.2.3 or 10.0.0.0/8. Every token holder can then make the relay send there." placeholder:"CIDR" name:"notify-private"`
	NotifyWays     string   `help:"File with tenants' notification targets, a JSON array: [{\"kind\":\"slack\",\"url\":\"https://…\",\"kinds\":[\"approval\",\"failed\"],\"hosts\":[\"ci-*\"]}]. Use the same file at all relays." type:"path" placeholder:"FILE" name:"notify-ways"`
}

func (f *notifyFlags) config() (cfg gateway.NotifyConfig, err error) {
	cfg.Contact = f.NotifyContact
	if cfg.Private, err = prefixes("--notify-private", f.NotifyPrivate); err != nil {
		return cfg, err
	}
	if f.NotifyWays != "" {
		data, err := os.ReadFile(f.NotifyWays)
		if err == nil {
			cfg.Ways, err = notify.ReadTenantTargets(data)
		}
		if err != nil {
			return cfg, fmt.Errorf("--notify-ways %s: %w", f.NotifyWays, err)
		}
	}
	if f.NotifySMTP == "" {
		return cfg, nil
	}
	if f.NotifyMailFrom == "" {
		return cfg, errors.New("--notify-smtp: --notify-mail-from is missing, the sender address")
	}
	server := f.NotifySMTP
	if f.NotifySMTPFile != "" {
		password, err := os.ReadFile(f.NotifySMTPFile)
		if err != nil {
			return cfg, fmt.Errorf("--notify-smtp-password-file: %w", err)
		}
		u, err := url.Parse(server)
		if err != nil || u.User == nil {
			return cfg, errors.New("--notify-smtp: want smtp://user@host:587; the password belongs into --notify-smtp-password-file")
		}
		u.User = url.UserPassword(u.User.Username(), strings.TrimSpace(string(password)))
		server = u.String()
	}
	cfg.Mail = &notify.MailConfig{URL: server, From: f.NotifyMailFrom}
	return cfg, nil
}
