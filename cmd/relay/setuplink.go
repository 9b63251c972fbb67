package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"ahprelay/auth"
	"ahprelay/cmd/internal/cli"
)

type setupLinkCmd struct {
	dataFlag
	relayFlag
	Subject string `help:"The new owner's name." default:"owner" placeholder:"NAME"`
	NoQR    bool   `help:"Print no QR code." name:"no-qr"`
}

// Run prints a link, and, on a terminal, its QR code.
func (c *setupLinkCmd) Run(ctx context.Context, s *streams) error {
	keys, err := c.keys()
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
	err = c.operate(ctx, keys, http.MethodPost, "/operator/invites", "relay setup-link", map[string]string{"tenant": c.Tenant, "subject": c.Subject}, &made)
	if errors.Is(err, errNoRelay) {
		return fmt.Errorf("%w (the running relay must make this link)", err)
	}
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.out, made.Link); err != nil {
		return err
	}
	fmt.Fprintf(s.err, "The first visitor becomes an owner of the relay. The link is valid until %s.\n", made.Expires.Local().Format(time.DateTime))
	if c.NoQR {
		return nil
	}
	return cli.PrintQR(s.out, s.err, made.Link)
}
