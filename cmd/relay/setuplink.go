package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
	peopleapi "ahprelay/gateway/api/people"
)

type setupLinkCmd struct {
	relayFlag
	Subject string `help:"The new owner's name." default:"owner" placeholder:"NAME"`
	URL     string `help:"The relay's base URL for the new owner's browser. Default: --relay, if given; otherwise the relay's --public-url, its address, or the name in its certificate." placeholder:"URL" name:"url"`
	NoQR    bool   `help:"Print no QR code." name:"no-qr"`
}

func (c *setupLinkCmd) Run(ctx context.Context, s *streams) error {
	relay, err := c.running()
	if err != nil {
		return err
	}
	base, err := relay.linkBase(c.URL)
	if err != nil {
		return err
	}
	if err := auth.CheckSubject(c.Subject); err != nil {
		return fmt.Errorf("--subject: %w", err)
	}
	var made struct {
		Link    string
		Expires time.Time
	}
	err = relay.operate(ctx, http.MethodPost, "/operator/invites", "relay setup-link", map[string]string{"tenant": c.Tenant, "subject": c.Subject}, &made)
	if err != nil {
		return err
	}
	_, secret, _ := strings.Cut(made.Link, "#")
	link := peopleapi.SetupLink(base, secret)
	if _, err := fmt.Fprintln(s.out, link); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "The first visitor becomes an owner of the relay. The link is valid until %s.\n", made.Expires.Local().Format(time.DateTime))
	if c.NoQR && givesKeys(link) {
		return nil
	}
	return showSetup(s, s.out, link, relay.at.URL)
}

// showSetup prints the QR code of a setup link. Browsers give keys only to pages over https:// or
// of their own machine. If they give none to the link's page, showSetup prints that instead, and the
// link at the relay's own address, here, if browsers on this machine can use it.
func showSetup(s *streams, out io.Writer, link, here string) error {
	if givesKeys(link) {
		return cli.PrintQR(out, s.err, link)
	}
	fmt.Fprint(s.err, "Browsers sign in over https:// only, or on the relay's own machine.")
	if givesKeys(here) {
		_, secret, _ := strings.Cut(link, "#")
		fmt.Fprintf(s.err, " On this machine, open\n\n  %s\n", peopleapi.SetupLink(here, secret))
	}
	fmt.Fprintln(s.err)
	return nil
}

// givesKeys reports whether browsers give keys to a page at the address.
func givesKeys(address string) bool {
	u, err := url.Parse(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Scheme == "https" || u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}
